"""Ranks as processes: equal parameters, and what a rank that is gone, stopped or late does."""

import contextlib
import os
import signal
import socket
import time

import pytest

from monolith.train import TrainSettings
from tests.cluster.ranks.rank_threads import run_ranks
from tests.train.ranks.rank_process import RankProcess, digest, join_torchrun, train
from tests.train.ranks.rank_tasks import fit_rank, one_batch, task_of

pytestmark = pytest.mark.dist


class Processes:
    """Ranks of one job. Close it."""

    def __init__(self, folder, size, **facts):
        self._path, self._size, self._facts = str(folder / "port"), size, facts
        self._running = {}

    def start(self, *ranks):
        for rank in ranks or range(self._size):
            arguments = self._path, rank, self._size, self._facts
            self._running[rank] = RankProcess(train, *arguments)
        return self

    def send_signal(self, rank, number):
        os.kill(self._running[rank].pid, number)

    def read_until(self, rank, step):
        """Read the events of a rank until it has made a step."""
        while (event := self._running[rank].read()) is not None:
            if event.get("step") == step:
                return
        raise AssertionError(f"rank {rank} ended before step {step}")

    def last(self, rank):
        """The last event of a rank, and its status."""
        return self._running[rank].last()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self._running.values():
            process.close()


@pytest.mark.req("TS-CPUSYNC-T5")
def test_two_processes_end_with_equal_parameters_and_the_rows_of_threads(tmp_path):
    settings = {"prefetch": 1, "push": 1}
    with Processes(tmp_path, 2, num_batches=24, settings=settings).start() as ranks:
        (first, _), (second, _) = ranks.last(0), ranks.last(1)
    assert (first["ended"], first["steps"], first["samples"]) == ("end of data", 12, 192)
    assert first["parameters"] == second["parameters"]
    assert first["rows"] == second["rows"]


@pytest.mark.req("TS-CPUSYNC-T6")
@pytest.mark.slow
def test_processes_have_the_bits_of_threads(tmp_path):
    with Processes(tmp_path, 2, num_batches=16).start() as ranks:
        found, _ = ranks.last(0)
    task = task_of([one_batch(seed) for seed in range(16)])
    _, parameters, rows = run_ranks(2, lambda group: fit_rank(group, task, TrainSettings()))[0]
    assert (found["parameters"], found["rows"]) == (digest(parameters), digest(rows))


def test_a_rank_that_is_killed_ends_the_others_and_is_named(tmp_path):
    facts = {"num_batches": 3000, "seconds": 0.01, "wait_seconds": 600}
    with Processes(tmp_path, 3, **facts).start() as ranks:
        ranks.read_until(0, 3)
        ranks.send_signal(1, signal.SIGKILL)
        for rank in (0, 2):
            line, status = ranks.last(rank)
            assert (line["kind"], status) == ("UnavailableError", 1)
            assert "rank 1 gave no sign of life" in line["text"]


@pytest.mark.slow
def test_a_rank_that_hangs_longer_than_the_limit_is_named(tmp_path):
    facts = {"num_batches": 2000, "seconds": 0.01, "wait_seconds": 3}
    with Processes(tmp_path, 2, **facts).start() as ranks:
        ranks.read_until(0, 3)
        ranks.send_signal(1, signal.SIGSTOP)
        line, status = ranks.last(0)
        ranks.send_signal(1, signal.SIGKILL)
        assert status == 1
        assert "rank 1 gave no sign of life" in line["text"]


@pytest.mark.slow
def test_a_rank_0_that_hangs_longer_than_the_limit_ends_the_others(tmp_path):
    """It has the store of the ranks, which gives no answer then."""
    facts = {"num_batches": 2000, "seconds": 0.01, "wait_seconds": 3}
    with Processes(tmp_path, 2, **facts).start() as ranks:
        ranks.read_until(1, 3)
        ranks.running[0].send_signal(signal.SIGSTOP)
        line, status = ranks.last(1)
        ranks.running[0].send_signal(signal.SIGKILL)
        assert status == 1
        assert "rank 0 is gone or stands still" in line["text"]


@pytest.mark.slow
def test_a_second_ctrl_c_ends_a_rank_that_waits(tmp_path):
    with Processes(tmp_path, 2, num_batches=2000, seconds=0.01).start() as ranks:
        ranks.read_until(0, 3)
        ranks.running[1].send_signal(signal.SIGSTOP)
        for _ in range(2):
            time.sleep(1)
            ranks.running[0].send_signal(signal.SIGINT)
        assert ranks.running[0].wait(60) == -signal.SIGINT


@pytest.mark.slow
def test_a_rank_that_stops_for_ten_seconds_goes_on(tmp_path):
    with Processes(tmp_path, 2, num_batches=60, seconds=0.01).start() as ranks:
        ranks.read_until(0, 3)
        ranks.send_signal(1, signal.SIGSTOP)
        time.sleep(10)
        ranks.send_signal(1, signal.SIGCONT)
        assert ranks.last(0)[0]["steps"] == ranks.last(1)[0]["steps"] == 30


def test_sigterm_of_one_rank_ends_all_after_the_same_step(tmp_path):
    with Processes(tmp_path, 2, num_batches=4000, seconds=0.01).start() as ranks:
        ranks.read_until(1, 3)
        ranks.send_signal(1, signal.SIGTERM)
        (first, _), (second, _) = ranks.last(0), ranks.last(1)
        assert first["ended"] == second["ended"] == "terminated"
        assert first["steps"] == second["steps"]


@pytest.mark.slow
def test_a_rank_that_comes_late_is_waited_for(tmp_path):
    with Processes(tmp_path, 2, num_batches=4).start(0) as ranks:
        time.sleep(3)
        ranks.start(1)
        assert ranks.last(0)[0]["steps"] == 2


def test_a_rank_that_does_not_come_is_named(tmp_path):
    with Processes(tmp_path, 2, num_batches=4, start_seconds=1).start(0) as ranks:
        line, status = ranks.last(0)
    assert (line["kind"], status) == ("UnavailableError", 1)
    assert "expected 2 ranks within 1 s, got none of 1" in line["text"]


@pytest.mark.slow
def test_a_rank_that_is_killed_while_it_saves_leaves_the_checkpoint_before(tmp_path):
    saves = tmp_path / "saves"
    settings = {"checkpoint_dir": str(saves), "save_every": 2, "save_rate": 0.001, "full_every": 1}
    with Processes(tmp_path, 2, num_batches=3000, seconds=0.05, settings=settings).start() as ranks:
        ranks.read_until(0, 3)  # the save of step 2 is slow, and runs
        ranks.send_signal(1, signal.SIGKILL)
        line, _ = ranks.last(0)
    assert "rank 1" in line["text"]
    assert not list(saves.glob("*.manifest.json"))


def test_a_port_that_is_taken_is_told(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with contextlib.closing(RankProcess(join_torchrun, port)) as process:
            event, status = process.last()
    assert status == 1
    assert f"expected the store of the ranks at 127.0.0.1:{port}, got" in event["text"]
