"""Parameter servers in processes of their own, on sockets of this machine."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from monolith.cluster.zmq.connect import connect_servers

ROOT = Path(__file__).parents[2]
WAIT_SECONDS = 60.0


class ServerCommand:
    """A running `monolith ps`.

    Attributes:
        pid: its process.
        address: where it listens.
        facts: what it said when it was ready.
    """

    def __init__(self, pid, facts):
        self.pid, self.facts, self.address = pid, facts, facts["address"]

    def signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.wait()

    def is_alive(self):
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def wait(self, seconds=WAIT_SECONDS):
        pause = threading.Event()
        for _ in range(int(seconds / 0.01)):
            if not self.is_alive():
                return
            pause.wait(0.01)
        raise AssertionError(f"server {self.pid} is alive after {seconds} seconds")


class Nursery:
    """Starts servers; all are killed at its end."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.server_nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=ROOT,
        )
        self._folder = tempfile.mkdtemp(prefix="ps")
        self._num_paths = 0
        self._lock = threading.Lock()

    def ipc_address(self):
        """An address that no server has had."""
        self._num_paths += 1
        return f"ipc://{self._folder}/{self._num_paths}"

    def start(self, index=0, num_servers=1, *, bind="127.0.0.1:0", options=(), **more):
        """Start a server, and wait until it is ready.

        Args:
            index: number of the server.
            num_servers: number of servers of the job.
            bind: where it listens.
            options: further options of the command.
            more: `records` is a folder for what SIGTERM leaves of the server's tables, as
                `server_records.py` reads them; `limits` has fields of `Limits`.
        """
        arguments = ["--index", str(index), "--num-servers", str(num_servers), "--bind", bind]
        return self.run([*arguments, *options], **more)

    def run(self, arguments, **more):
        """Start a command, `command` or a server, and wait until it is ready."""
        with self._lock:
            line = {"arguments": list(map(str, arguments)), **more}
            self._process.stdin.write(json.dumps(line) + "\n")
            answer = json.loads(self._process.stdout.readline())
        assert answer["said"] is not None, f"the process of {arguments} did not start"
        return ServerCommand(answer["pid"], answer["said"])

    def start_all(self, num_servers, **options):
        return [self.start(index, num_servers, **options) for index in range(num_servers)]

    def close(self):
        self._process.stdin.close()
        self._process.wait(WAIT_SECONDS)
        self._process.stdout.close()
        shutil.rmtree(self._folder)


def connect(servers, **options):
    """Connect to running servers."""
    return connect_servers([server.address for server in servers], **options)


@contextlib.contextmanager
def running(num_servers, **options):
    """(servers, connected) of a nursery of their own."""
    nursery = Nursery()
    try:
        servers = nursery.start_all(num_servers)
        with connect(servers, **options) as connected:
            yield nursery, servers, connected
    finally:
        nursery.close()
