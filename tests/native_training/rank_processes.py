"""Processes of several ranks for tests: forks of one process that has imported everything.

`torchrun` gives each process the same variables; here the test has the store, at a port that the
system chooses.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist

from tests.forker import ROOT, limited

SECONDS = 120.0
"""Limit on the life of ranks."""


class Ranks:
    """The processes of some ranks, each of which calls a function and writes its result as JSON."""

    def __init__(self, folder, size):
        self.folder, self.size = Path(folder), size
        self.pids = []

    def file(self, rank):
        return self.folder / f"rank-{rank}.json"

    def kill(self, rank, number=signal.SIGKILL):
        os.kill(self.pids[rank], number)

    def results(self, *ranks, seconds=SECONDS):
        """What the functions returned, or the text of their errors under `error`."""
        ranks = ranks or range(self.size)
        end = time.monotonic() + seconds
        while not all(self.file(rank).exists() for rank in ranks):
            missing = [rank for rank in ranks if not self.file(rank).exists()]
            assert time.monotonic() < end, f"ranks {missing} have not ended"
            time.sleep(0.02)
        return [json.loads(self.file(rank).read_text()) for rank in ranks]


class Nursery:
    """The process that forks ranks, for all tests."""

    def __init__(self, process):
        self._process = process

    @contextlib.contextmanager
    def started(self, folder, size, function, *arguments, **environment):
        """Start ranks that call `function(*arguments)` of a module below `tests`.

        Args:
            folder: for their results.
            size: number of ranks.
            function: "module:name".
            arguments: plain values.
            environment: further variables.
        """
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        variables = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "WORLD_SIZE": str(size),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            **environment,
        }
        ranks = Ranks(folder, size)
        try:
            for rank in range(size):
                own = {**variables, "RANK": str(rank)}
                line = [str(ranks.file(rank)), function, arguments, own]
                self._process.stdin.write(json.dumps(line) + "\n")
                ranks.pids.append(int(self._process.stdout.readline()))
            yield ranks
        finally:
            for rank in range(len(ranks.pids)):
                with contextlib.suppress(ProcessLookupError):
                    ranks.kill(rank)
        del store

    def run(self, folder, size, function, *arguments, **environment):
        """Return the results of all ranks."""
        with self.started(folder, size, function, *arguments, **environment) as ranks:
            results = ranks.results()
        errors = [each for each in results if "error" in each]
        assert not errors, errors[0]["trace"]
        return [each["result"] for each in results]


@contextlib.contextmanager
def rank_nursery():
    """A nursery, which is killed with its ranks at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.native_training.rank_processes"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        cwd=ROOT,
        start_new_session=True,  # a group with the ranks
    ) as process:
        try:
            with limited(process.kill, 3600):
                yield Nursery(process)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _call(file, function, arguments, environment):
    """Call the function in this child, and write its result."""
    os.environ.update(environment)
    module, _, name = function.partition(":")
    try:
        result = {"result": getattr(import_module(module), name)(*arguments)}
    except BaseException as error:
        import traceback

        result = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    Path(f"{file}.part").write_text(json.dumps(result))
    os.replace(f"{file}.part", file)


def main():
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)])  # the first optimizer of a process imports for two seconds
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for children
    for line in sys.stdin:
        arguments = json.loads(line)
        import_module(arguments[1].partition(":")[0])
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _call(*arguments)
            os._exit(0)
        print(child, flush=True)


if __name__ == "__main__":
    main()
