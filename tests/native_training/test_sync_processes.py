"""The chief and a worker, two processes, wait for each other by flags on a server process."""

import json
import os
import signal
import threading

import pytest

from monolith.cluster.job.shared_state import ValuesSharedState
from monolith.native_training.sync_hooks import SyncHelper, TrainingHooksHelper
from monolith.train.driver import drive
from tests.cluster.server_processes import Nursery, connect
from tests.cluster.zmq.sockets import until
from tests.forker import started
from tests.native_training.sync_program import Noting

pytestmark = pytest.mark.dist

WAIT = 60.0


@pytest.fixture(scope="module")
def nursery():
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def program():
    with started("tests.native_training.sync_program") as program:
        yield program


class Chief:
    """The chief of a job of two, with a worker that the program forks.

    Attributes:
        helper: Flags of the job.
        pid: Process of the worker.
    """

    def __init__(self, servers, program, folder, addresses, *, timeout_seconds=int(WAIT)):
        shared, self._folder = ValuesSharedState(servers), folder
        self._hooks = TrainingHooksHelper(True, 2, 0, timeout_seconds, shared=shared)
        self.helper = SyncHelper(2, False, shared=shared)
        line = {"folder": str(folder), "addresses": addresses}
        program.stdin.write(json.dumps(line) + "\n")
        self.pid = int(program.stdout.readline().split()[1])
        assert until(lambda: self.helper.get_alive_workers() == [1], WAIT)

    def has(self, name):
        return (self._folder / name).exists()

    def run(self):
        """A thread that runs the chief, which has no step."""
        hooks = [*self._hooks.training_chief_hooks, Noting(self._folder, "chief")]
        thread = threading.Thread(target=drive, args=(iter(()).__next__, hooks), daemon=True)
        thread.start()
        return thread


@pytest.fixture
def start(nursery, program, tmp_path):
    """(options) -> the chief of a new server process."""
    server = nursery.start()
    with connect([server]) as servers:
        yield lambda **more: Chief(servers, program, tmp_path, [server.address], **more)


@pytest.mark.req("TS-SYNCH-T1")
@pytest.mark.req("TS-SYNCH-T2")
@pytest.mark.req("NT-SYNCH-T2")
def test_the_worker_waits_for_the_restore_and_the_chief_for_the_end_of_the_worker(start, program):
    chief = start()
    for index in (0, 2):
        with pytest.raises(AssertionError, match=f"^Index {index} is out range $"):
            chief.helper.start_worker(index)
    assert not chief.has("worker-session")
    running = chief.run()
    assert until(lambda: chief.has("worker-session"), WAIT)
    assert chief.has("chief-session")
    running.join(1.5)  # more than a poll
    assert running.is_alive()
    assert not chief.has("chief-end")
    (chief._folder / "finish").touch()
    running.join(WAIT)
    assert chief.has("chief-end")
    assert program.stdout.readline() == "ended\n"
    assert chief.has("worker-end")


@pytest.mark.req("NT-SYNCH-T1")
def test_the_chief_leaves_a_worker_that_was_killed_and_logs_its_number(start, program, caplog):
    caplog.set_level("INFO", "monolith")
    chief = start(timeout_seconds=2)
    running = chief.run()
    assert until(lambda: chief.has("worker-session"), WAIT)
    os.kill(chief.pid, signal.SIGKILL)
    running.join(WAIT)
    assert chief.has("chief-end")
    assert not chief.has("worker-end")
    assert program.stdout.readline() == "ended\n"
    assert any("[1]" in record.getMessage() for record in caplog.records)
