"""Workers in processes of their own: replies, errors, missing peers."""

import contextlib
from pathlib import Path

import pytest

from benchmarks import processes
from benchmarks.harness import BenchmarkError
from benchmarks.processes import WorkerProcess, interpreter


def test_a_missing_peer_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("benchmarks.processes.ROOT", tmp_path)
    with pytest.raises(BenchmarkError, match=r"'tfra'.*benchmarks/peers/install\.sh"):
        interpreter("tfra")


@pytest.mark.dist
def test_a_worker_measures_and_reports_its_errors() -> None:
    sizes = {"rows": 1_000, "dim": 4, "batch": 100, "threads": 1}
    with contextlib.closing(WorkerProcess("torch")) as worker:
        assert "torch" in worker.call("build", stage="update", **sizes)["versions"]
        worker.call("warm_up", distribution="zipf", sample_seconds=0.0)
        assert worker.sample("zipf").value > 0
        with pytest.raises(BenchmarkError, match=r"\[torch\] sample: KeyError"):
            worker.sample("uniform")


@pytest.mark.dist
def test_a_worker_that_died_is_an_error_and_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(processes.MODULES, "torch", "keyword")
    with (
        contextlib.closing(WorkerProcess("torch")) as worker,
        pytest.raises(BenchmarkError, match=r"\[torch\] build: the process ended with status 0"),
    ):
        worker.call("build")
