"""Forks a process of the command line for each line: its file of output, variables and words.

The exit status of a process is in `<file>.status`. The children are killed when stdin ends.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import torch

import monolith.cli.ps
import monolith.cli.worker
import monolith.cluster.zmq.server_process
import monolith.train.roles.server  # noqa: F401
from monolith.cli.main import main
from monolith.cluster.zmq.extra import load_zmq
from tests.forker import ROOT
from tests.suites.discovery import until


class Roles:
    """Starts servers and workers as processes, with their output in a folder."""

    def __init__(self, folder):
        self._folder = Path(folder)
        self._names = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.discovery.role_nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=ROOT,
        )

    def start(self, name, *words, variables=None):
        """Start `monolith WORDS`, and return its process id."""
        self._names.append(name)
        path = str(self._folder / name)
        line = [path, variables or {}, [str(word) for word in words]]
        self._process.stdin.write(json.dumps(line) + "\n")
        return int(self._process.stdout.readline())

    def text(self, name):
        path = self._folder / name
        return path.read_text() if path.exists() else ""

    def wait(self, name, seconds=120):
        """Wait for the end of a process; return its exit status."""
        path = self._folder / f"{name}.status"
        return int(until(lambda: path.exists() and path.read_text(), seconds))

    def close(self):
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def work(path, variables, words):
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(file, number)
    sys.stderr.reconfigure(line_buffering=True)
    os.environ.update(variables)
    sys.argv = ["monolith", *words]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run():
    load_zmq()
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)])  # the first optimizer of a process imports for two seconds
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for children
    children = []
    for line in sys.stdin:
        path, variables, words = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            status = work(path, variables, words)
            sys.stdout.flush()
            Path(f"{path}.part").write_text(str(status))
            os.replace(f"{path}.part", f"{path}.status")
            os._exit(status)
        children.append(child)
        print(child, flush=True)
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    run()
