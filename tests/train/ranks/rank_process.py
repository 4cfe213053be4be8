"""A rank in a process of its own, forked from one that has imported everything.

It sends an event for each step, and one at its end: "ended" with digests, or "error".
"""

import hashlib
import multiprocessing
import os
import sys
import time

import torch

from monolith.cluster.ranks.rank_group import RankOptions, group_of_file, group_of_torchrun
from monolith.train import Hook, TrainSettings
from tests.train.ranks.rank_tasks import fit_rank, one_batch, task_of

torch.optim.SGD([torch.zeros(1)])  # the first optimizer of a process imports for two seconds


class Tell(Hook):
    """Tells each step, and takes its time."""

    def __init__(self, events, seconds):
        self._events, self._seconds = events, seconds

    def after_run(self, ctx, results):
        self._events.send({"event": "step", "step": ctx.run.global_step})
        time.sleep(self._seconds)


def digest(values):
    parts = [values[name].contiguous().numpy().tobytes() for name in sorted(values, key=str)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def train(events, path, rank, size, facts):
    """Train as a rank."""
    options = RankOptions(facts.get("start_seconds", 60), facts.get("wait_seconds", 60))
    batches = [one_batch(seed) for seed in range(facts["num_batches"])]
    settings = TrainSettings(**facts.get("settings", {}))
    with group_of_file(path, rank, size, options) as group:
        hooks = [Tell(events, facts.get("seconds", 0))]
        result, parameters, rows = fit_rank(group, task_of(batches), settings, hooks)
        return {
            "ended": result.ended,
            "steps": result.num_steps,
            "samples": result.num_samples,
            "parameters": digest(parameters),
            "rows": digest(rows),
        }


def join_torchrun(events, port):
    """Join as the first of two ranks whose store is at a port."""
    os.environ |= {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    group_of_torchrun(RankOptions(5, 5))


def run(events, function, arguments):
    torch.set_num_threads(1)
    try:
        events.send({"event": "ended", **function(events, *arguments)})
    except Exception as error:
        events.send({"event": "error", "kind": type(error).__name__, "text": str(error)})
        sys.exit(1)


class RankProcess:
    """A process that calls a function, and its events. Close it.

    Attributes:
        pid: number of the process.
    """

    def __init__(self, function, *arguments):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._events, events = context.Pipe(duplex=False)
        self._process = context.Process(target=run, args=(events, function, arguments), daemon=True)
        self._process.start()
        events.close()  # so that the end of the process ends the events
        self.pid = self._process.pid

    def read(self, seconds=60):
        """The next event; None after the last one."""
        assert self._events.poll(seconds), "the process has sent nothing"
        try:
            return self._events.recv()
        except EOFError:
            return None

    def last(self):
        """The last event, and the status of the process."""
        event = None
        while (following := self.read()) is not None:
            event = following
        self._process.join(60)
        return event, self._process.exitcode

    def close(self):
        if self._process.is_alive():
            self._process.kill()
        self._process.join(60)
        self._events.close()
