"""Parameter servers in processes of their own, and what a client of them asks."""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import workload as work
from benchmarks.harness import ROOT, BenchmarkError, Sample, Window, timed
from benchmarks.ours import table_config
from monolith.cluster import RemoteServers
from monolith.cluster.sharded_table import ShardedTable
from monolith.cluster.transport import ShardClient
from monolith.cluster.zmq.connect import connect_servers
from monolith.cluster.zmq.curve_keys import CurveKeys
from monolith.table.routing import PartitionRouting

DIM = 16
TABLE = "bench"
_NUM_BATCHES = 16
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_TIME = 1_700_000_000


class ServerCommand:
    """A running `monolith ps`, until `close` or `kill`.

    Args:
        bind: Address to listen at.
        index: Number of the server.
        num_servers: Number of servers.
        keys: File of keys; None talks in the clear.
        task: Task and settings of a job, as arguments of the command.
    """

    def __init__(
        self,
        bind: str = "127.0.0.1:0",
        index: int = 0,
        num_servers: int = 1,
        keys: str = "",
        *,
        task: Sequence[str] = (),
    ) -> None:
        numbers = ["--index", str(index), "--num-servers", str(num_servers)]
        command = [sys.executable, "-m", "monolith.cli.main", "ps", *task, "--json", *numbers]
        self._process = subprocess.Popen(
            [*command, "--bind", bind, *(["--keys", keys] if keys else [])],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.pid, self.address = self._process.pid, bind

    def wait(self) -> "ServerCommand":
        """Wait until the server listens."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchmarkError(f"[wire] expected a server at {self.address}, got its end")
        self.address = json.loads(line)["address"]
        return self

    def cpu_seconds(self) -> float:
        """Return the processor time of the server so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        self._process.kill()
        self._process.wait(60)

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextlib.contextmanager
def running(
    num_servers: int = 1, *, keys: str = "", is_ipc: bool = False, task: Sequence[str] = ()
) -> Iterator[list[ServerCommand]]:
    """Run servers, which end with the block."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        commands = []
        for index in range(num_servers):
            bind = f"ipc://{folder}/{index}" if is_ipc else "127.0.0.1:0"
            commands.append(ServerCommand(bind, index, num_servers, keys, task=task))
            stack.callback(commands[-1].close)
        yield [command.wait() for command in commands]


@contextlib.contextmanager
def timed_with(servers: Sequence[ServerCommand]) -> Iterator[Window]:
    """Time a block as `timed` does; the work of the servers is not that of others."""
    before = sum(server.cpu_seconds() for server in servers)
    with timed() as window:
        yield window
    seconds = sum(server.cpu_seconds() for server in servers) - before
    window.others_cores = max(0.0, window.others_cores - seconds / window.seconds)


@dataclass(frozen=True)
class Requests:
    """What a client sends.

    Args:
        address: Of the server.
        rows: Keys of the table.
        num_keys: Distinct keys of a request.
        keys: Keys of the job; None talks in the clear.
        seed: Of the drawn keys.
    """

    address: str
    rows: int
    num_keys: int
    keys: CurveKeys | None = None
    seed: int = 0

    def batches(self) -> list[torch.Tensor]:
        """Draw the keys of some requests."""
        draw = np.random.default_rng(self.seed)
        size = self.num_keys
        drawn = [np.unique(draw.integers(0, self.rows, 2 * size)) for _ in range(_NUM_BATCHES)]
        return [torch.from_numpy(work.keys_of(draw.permutation(keys)[:size])) for keys in drawn]


def open_table(servers: RemoteServers) -> ShardedTable:
    """Return the table on the servers."""
    routing = PartitionRouting(len(servers))
    return servers.table(table_config(DIM, with_state=True, name=TABLE), routing, lambda: _TIME)


class Client:
    """Pulls and pushes as the engine of a trainer does, one message for each call. Close it."""

    def __init__(self, requests: Requests) -> None:
        self._servers = connect_servers([requests.address], keys=requests.keys)
        self.table = open_table(self._servers)
        self._client = ShardClient(TABLE, self._servers.connect([TABLE]), owner="Client")
        self._keys = itertools.cycle(requests.batches())
        self._splits = torch.tensor([0, requests.num_keys])
        self._grads = torch.full((requests.num_keys * DIM,), 1e-3)
        self._counts = torch.ones(requests.num_keys, dtype=torch.int32)

    def fill(self, rows: int) -> None:
        """Insert all rows."""
        for indices in work.index_ranges(rows, 1 << 16):
            self.table.lookup_or_insert(torch.from_numpy(work.keys_of(indices)))

    def pull(self) -> None:
        """Read the rows of a request."""
        (rows,) = self._client.call("pull", [(next(self._keys), self._splits, True, "float32")])
        if rows.numel() != self._grads.numel():
            raise BenchmarkError(f"[wire] expected {self._grads.numel()} numbers, got {rows.shape}")

    def push(self) -> None:
        """Step the rows of a request."""
        number = self.table.next_call((0, 1))
        times, calls = torch.tensor([_TIME]), torch.tensor([number])
        step = torch.tensor([True]), times, [work.LEARNING_RATE], calls
        rows = next(self._keys), self._splits, self._grads, self._counts
        self._client.call("push", [(*rows, *step)])
        self.table.note_push(number)

    def close(self) -> None:
        """End the connection."""
        self._client.close()
        self._servers.close()


_starts: dict[int, Any] = {}


def prepare(starts: dict[int, Any]) -> None:
    """Prepare a process of clients.

    Args:
        starts: Number of processes -> the barrier at which so many begin together.
    """
    _starts.update(starts)


def pull_for(requests: Requests, num_together: int, seconds: float, every: float = 0.0) -> int:
    """Pull in a process of its own, begun together with others; return the number of requests.

    Args:
        requests: What to pull.
        num_together: Number of processes that begin together.
        seconds: Seconds until the last request.
        every: Seconds from one request to the next; 0 waits for the answer alone.
    """
    with contextlib.closing(Client(requests)) as client:
        client.pull()
        _starts[num_together].wait(120)
        number, end = 0, time.perf_counter() + seconds
        while (now := time.perf_counter()) < end:
            client.pull()
            number += 1
            time.sleep(max(0.0, now + every - time.perf_counter()))
        return number


def rate_of(run: Callable[[], None], servers: Sequence[ServerCommand], seconds: float) -> Sample:
    """Call `run` until the seconds are over; calls per second."""
    number = 0
    with timed_with(servers) as window:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            run()
            number += 1
    return Sample(number / window.seconds, window.others_cores)
