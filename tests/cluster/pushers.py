"""A client that pushes ones, so that each row tells how often it was updated."""

import math
import threading

import torch

from monolith.checkpoint import Chain, Contents, WriteOptions
from monolith.cluster.remote_servers import CLIENTS
from monolith.cluster.servers_engine import servers_engine
from monolith.features import BagFeature, PendingGradients
from monolith.ops import Ragged
from monolith.table import Segment, TableConfig, Zeros
from monolith.table.optimizers import SGD
from monolith.table.routing import PartitionRouting
from tests.cluster.zmq.sockets import until
from tests.suites.engine import read

KEYS = torch.arange(60)
CONFIG = TableConfig("ones", Segment(1, SGD(1.0), Zeros()))
IDS = {"x": Ragged.from_lists([KEYS.tolist()])}
NOW = 1_700_000_000


class Pusher:
    """A client of servers.

    Attributes:
        servers: the servers.
        table: the table on them.
        num_pushes: pushes that have their answers.
        most: `push` waits before it makes more pushes than this.
    """

    def __init__(self, servers):
        self.servers, self.num_pushes, self.most = servers, 0, math.inf
        self.table = servers.table(CONFIG, PartitionRouting(len(servers)), lambda: NOW)
        engine = servers_engine(servers)([self.table], [BagFeature("x", CONFIG.name)])
        self._pending = PendingGradients(engine)

    def pull(self):
        """Read the rows, and keep gradients of ones for `apply`."""
        read(self._pending, IDS)[0].sum().backward()

    def apply(self):
        self._pending.apply()
        self.num_pushes += 1

    def push(self, number=1):
        for _ in range(number):
            assert until(lambda: self.num_pushes < self.most, 120)
            self.pull()
            self.apply()

    def counts(self):
        """Of each server, the numbers of updates that its rows have had."""
        rows = -self.table.lookup(KEYS, missing="zeros").flatten()
        owners = PartitionRouting(len(self.servers)).shard_of(KEYS)
        return [set(rows[owners == i].tolist()) for i in range(len(self.servers))]

    def waits_for(self, server):
        """Whether a call to a server has no answer yet."""
        return bool(self.servers._connections[server]._calls)

    def save(self, chain):
        """Save a full checkpoint or a link, from which servers come back from now on."""
        contents = Contents(
            tables=[self.table],
            trainer={CLIENTS: self.servers.clients_state()},
            step=self.num_pushes,
            with_expired=True,
        )
        with chain.cut(contents) as snapshot:
            saved = chain.save(snapshot, WriteOptions(num_threads=1))
        self.servers.recovery = lambda: saved.prefix
        return saved

    def save_twice(self, folder):
        """A full checkpoint after ten pushes, and a link after twenty."""
        chain, saves = Chain(folder), []
        others = torch.arange(1000, 2000)  # so that a link has few of the rows
        self.table.assign(others, torch.ones(1000, 1))
        for _ in range(2):
            self.push(10)
            saves.append(self.save(chain))
        return saves


class Pushing:
    """Does a job of a pusher on a thread of its own, inside a `with`; `join` waits for its end.

    Args:
        pusher: The pusher.
        job: Function without arguments.
        most: Number of pushes that the thread makes before `go_on`: however slow the test is, the
            job has not ended when the test does something to a server.
    """

    def __init__(self, pusher, job, most=math.inf):
        self._pusher, self._error = pusher, None
        pusher.most = most
        self._thread = threading.Thread(target=self._run, args=(job,), daemon=True)

    def _run(self, job):
        try:
            job()
        except BaseException as error:
            self._error = error

    def wait_for(self, number):
        """Wait until this many pushes are done in all."""
        assert until(lambda: self._pusher.num_pushes >= number or self._error is not None)

    def go_on(self, most=math.inf):
        """Let the thread make more pushes."""
        self._pusher.most = most

    def join(self, seconds=60):
        """Wait for the end, and raise the thread's error."""
        self._thread.join(seconds)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._thread.join(60)
