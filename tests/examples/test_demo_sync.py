import contextlib
import re
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from examples import clicks, demo_sync
from tests.meta.tree import ROOT


def test_the_halves_of_the_ranks_are_the_whole_batches(tmp_path):
    demo_sync.write_clicks(tmp_path / "clicks", 1)
    whole = pq.read_table(tmp_path / "clicks" / "whole" / "all.parquet")
    halves = [
        pq.read_table(tmp_path / "clicks" / "divided" / f"rank_{rank}.parquet") for rank in (0, 1)
    ]
    size = clicks.BATCH // 2
    assert len(whole) == clicks.STEPS_PER_DAY * clicks.BATCH
    for step in range(clicks.STEPS_PER_DAY):
        for rank, half in enumerate(halves):
            theirs = whole.slice(step * clicks.BATCH + rank * size, size)
            assert half.slice(step * size, size).equals(theirs)


def test_files_that_are_there_are_kept(tmp_path, capsys):
    demo_sync.write_clicks(tmp_path, 3)
    assert "already" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_are_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        demo_sync.parse(["--days", "1"])
    assert "error: expected --days of at least 2, got 1" in capsys.readouterr().err


def a_run(name, *, late=0.7, early=0.6, num_rows=9):
    aucs = {demo_sync.EQUAL_STEPS: early, demo_sync.EQUAL_STEPS + 1: late}
    return demo_sync.Run(name, aucs, num_rows, 5.0)


@pytest.mark.parametrize(
    ("other", "is_equal"),
    [
        ({}, True),
        ({"early": 0.6 + 0.9e-6}, True),
        ({"early": 0.6 + 1.1e-6}, False),
        ({"late": 0.7019}, True),
        ({"late": 0.7021}, False),
        ({"num_rows": 8}, False),
    ],
)
def test_runs_are_compared_and_a_difference_ends_with_status_1(
    monkeypatch, tmp_path, capsys, other, is_equal
):
    runs = iter([a_run("one process"), a_run("2 ranks", **other)])
    monkeypatch.setattr(demo_sync, "write_clicks", lambda *arguments: None)
    monkeypatch.setattr(demo_sync, "run", lambda *arguments: next(runs))
    monkeypatch.setattr(sys, "argv", ["demo_sync.py", "--folder", str(tmp_path)])
    with contextlib.nullcontext() if is_equal else pytest.raises(SystemExit) as ended:
        demo_sync.main()
    assert is_equal or ended.value.code == 1
    word = "train" if is_equal else "do NOT train"
    assert f"2 ranks {word} what one process trains." in capsys.readouterr().out


def test_a_run_that_fails_ends_the_demo(tmp_path):
    with pytest.raises(SystemExit, match="The run failed"):
        demo_sync.run("one process", ["no-such-command"], tmp_path, "whole")


@pytest.mark.dist
@pytest.mark.slow
def test_two_ranks_train_what_one_process_trains(tmp_path):
    program = [sys.executable, str(ROOT / "examples" / "demo_sync.py")]
    ran = subprocess.run(
        [*program, "--folder", str(tmp_path), "--days", "6"],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 ranks train what one process trains." in ran.stdout
    assert len(re.findall(r"^ +\d+ +0\.\d{7} +0\.\d{7} ", ran.stdout, re.M)) == 3, ran.stdout
