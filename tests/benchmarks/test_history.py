"""Runs of a stage are kept, shown, and refused from a tree with changes."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import history, run
from tools.commit import TreeError

FIGURE = {
    "name": "lookup", "system": "monolith", "median": 2.5, "unit": "M keys/s", "ratios": {},
    "rows": 10, "dim": 16, "is_quiet": True, "cpu": "cpu", "cores": 2, "commit": "abc-dirty",
}  # fmt: skip


def figures(*medians: float, **fields: Any) -> list[dict[str, Any]]:
    return [{**FIGURE, **fields, "median": median} for median in medians]


def run_of(date: str, *lines: dict[str, Any]) -> dict[str, Any]:
    return {"machine": "cpu, 2 cores", "commit": "a" * 40, "date": date, "figures": list(lines)}


def test_a_run_has_machine_commit_and_date_once() -> None:
    described = history.describe_run(figures(1.0), "abc")
    assert described["machine"].endswith(" cores")
    assert (described["commit"], len(described["date"])) == ("abc", 10)
    assert not {"cpu", "cores", "commit"} & described["figures"][0].keys()


def test_runs_are_kept_the_newest_last(tmp_path: Path) -> None:
    path = tmp_path / "results" / "lookup.json"
    assert history.read_runs(path) == []
    for date in ("1", "2"):
        history.add_run(path, run_of(date, *figures(1.0, 2.0)))
    assert [kept["date"] for kept in history.read_runs(path)] == ["1", "2"]
    assert history.read_runs(path)[1] == run_of("2", *figures(1.0, 2.0))
    assert len(path.read_text().splitlines()) == 2 + 2 * 4


def test_the_table_has_a_row_for_each_figure_and_a_column_for_each_run() -> None:
    first = run_of("2026-11-15", *figures(1.0), *figures(3.0, dim=64))
    second = run_of("2026-11-18", *figures(2.0), *figures(5.0, 6.0, system="torch"))
    assert history.table("lookup", [first, second]).splitlines() == [
        "1: 2026-11-15, commit aaaaaaa, cpu, 2 cores",
        "2: 2026-11-18, commit aaaaaaa, cpu, 2 cores",
        "lookup                              1          2",
        "monolith dim=16 [M keys/s]          1          2",
        "monolith dim=64 [M keys/s]          3          -",
        "torch dim=16 [M keys/s]             -          5",
        "torch dim=16 #2 [M keys/s]          -          6",
    ]


def test_a_stage_without_runs_says_so() -> None:
    assert history.table("lookup", []) == "lookup: no recorded runs"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the command on a stage that is not measured, in a tree of a commit."""

    def call(*words: str, commit: str | None = "abc", is_good: bool = True) -> int:
        def clean_commit(where: str, advice: str, **_: Any) -> str:
            if commit is None:
                raise TreeError(f"[{where}] got changed files; {advice}")
            return commit

        monkeypatch.setattr(run, "clean_commit", clean_commit)
        monkeypatch.setattr(run, "run_stage", lambda stage, flags: (figures(1.0), is_good))
        monkeypatch.setattr(run, "ROOT", tmp_path)
        monkeypatch.setattr("sys.argv", ["run.py", *words])
        return run.main()

    return call


def results(root: Path) -> list[dict[str, Any]]:
    return history.read_runs(root / "benchmarks" / "results" / "lookup.json")


def test_every_run_is_added_with_its_commit(bench: Any, tmp_path: Path) -> None:
    assert bench("--only", "lookup") == 0
    assert bench("--only", "lookup", commit="def") == 0
    assert [kept["commit"] for kept in results(tmp_path)] == ["abc", "def"]


def test_a_tree_with_changes_is_refused_before_it_is_measured(
    bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("--only", "lookup", commit=None) == 2
    assert capsys.readouterr().err == (
        "[benchmarks] got changed files; commit them, or measure with --no-record\n"
    )
    assert results(tmp_path) == []


@pytest.mark.parametrize("words", [["--no-record"], ["--quick"], ["--out", "lines.json"]])
def test_what_is_not_recorded_can_be_measured_in_any_tree(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert bench("--only", "lookup", *words, commit=None) == 0
    assert results(tmp_path) == []


def test_a_stage_that_failed_is_not_recorded(bench: Any, tmp_path: Path) -> None:
    assert bench("--only", "lookup", is_good=False) == 1
    assert results(tmp_path) == []


def test_the_history_of_a_stage_is_printed(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bench("--only", "lookup")
    assert bench("--history", "lookup", commit=None) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["[M", "keys/s]", "1"]


def test_a_line_is_json(bench: Any, tmp_path: Path) -> None:
    bench("--only", "lookup", "--out", str(tmp_path / "lines.json"))
    assert json.loads((tmp_path / "lines.json").read_text()) == FIGURE | {"median": 1.0}
