"""Forks a worker for each line: it waits for the chief, steps until a file is there, and ends."""

import json
import time
from pathlib import Path

from monolith.cluster.job.shared_state import ValuesSharedState
from monolith.cluster.zmq.connect import connect_servers
from monolith.native_training.sync_hooks import TrainingHooksHelper
from monolith.train.driver import Hook, drive
from tests.forker import fork_for_lines


class Noting(Hook):
    """Touches a file at each session and each end of a role, after its other hooks."""

    def __init__(self, folder, name):
        self._folder, self._name = Path(folder), name

    def after_create_session(self, run, coordinator):
        (self._folder / f"{self._name}-session").touch()

    def end(self, run):
        (self._folder / f"{self._name}-end").touch()


def work(line):
    facts = json.loads(line)
    finish = Path(facts["folder"], "finish")

    def step():
        while not finish.exists():
            time.sleep(0.01)
        raise StopIteration

    with connect_servers(facts["addresses"]) as servers:
        shared = ValuesSharedState(servers)
        hooks = TrainingHooksHelper(True, 2, 1, 60, shared=shared).training_hooks
        drive(step, [*hooks, Noting(facts["folder"], "worker")])


if __name__ == "__main__":
    fork_for_lines(work)
