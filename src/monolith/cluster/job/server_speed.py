"""`measure_servers`: measure how much table work each server does in a second."""

import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch

from monolith.cluster.servers import Servers
from monolith.cluster.transport import ShardClient, Transport
from monolith.errors import InvalidArgumentError
from monolith.table.calls import wall_clock
from monolith.table.config import Segment, TableConfig
from monolith.table.initializers import Zeros
from monolith.table.optimizers import Adagrad
from monolith.table.routing import PartitionRouting

_NUM_KEYS = 1 << 14  # of a call: a server works on it far longer than the client encodes it
_DIM = 4
_IN_FLIGHT = 2  # calls to each server, so that it never waits for the client
_SPARE = 1.25  # keys are drawn for all servers, and fall to them almost evenly


class _Work(NamedTuple):
    """The arguments of a pull and of a push for one server."""

    pull: tuple[Any, ...]
    push: tuple[Any, ...]


def measure_servers(servers: Servers, seconds: float) -> list[float]:
    """Return how many iterations of table work each server does in a second.

    An iteration pulls and pushes 16,384 rows of a table that the call makes for itself and closes
    at its end. Each server has its own keys and its own calls, two at a time, so that a slow server
    does not slow the count of another one. Several clients may measure at the same time.

    Args:
        servers: Servers to measure.
        seconds: Seconds of the measurement; each server finishes at least one iteration.

    Raises:
        InvalidArgumentError: `seconds` is not above 0.

    Example:
        >>> from monolith.cluster import LocalServers
        >>> with LocalServers(2) as servers:
        ...     [speed > 0 for speed in measure_servers(servers, 0.01)]
        [True, True]
    """
    if not seconds > 0:
        raise InvalidArgumentError(f"[measure_servers] expected seconds > 0, got {seconds}")
    segment = Segment(_DIM, optimizer=Adagrad(0.1), initializer=Zeros())
    config = TableConfig(f"server_speed_{secrets.token_hex(8)}", segments=[segment])
    routing = PartitionRouting(len(servers))
    with servers.table(config, routing, wall_clock):
        transports = servers.connect([config.name])
        works = _works(routing)
        with ThreadPoolExecutor(_IN_FLIGHT * len(transports)) as threads:
            speeds = [
                [threads.submit(_speed, transport, work, seconds) for _ in range(_IN_FLIGHT)]
                for transport, work in zip(transports, works, strict=True)
            ]
            return [sum(speed.result() for speed in of_server) for of_server in speeds]


def _works(routing: PartitionRouting) -> list[_Work]:
    num_servers = routing.num_shards
    keys = torch.arange(int(_NUM_KEYS * num_servers * _SPARE), device="cpu")
    owners = routing.shard_of(keys)
    return [_work(keys[owners == server][:_NUM_KEYS].clone()) for server in range(num_servers)]


def _work(keys: torch.Tensor) -> _Work:
    splits = torch.tensor([0, len(keys)], device="cpu")
    grads = torch.ones(len(keys) * _DIM, device="cpu")
    counts = torch.ones(len(keys), dtype=torch.int32, device="cpu")
    is_stepped = torch.tensor([True], device="cpu")
    zero = torch.tensor([0], device="cpu")
    push = (keys, splits, grads, counts, is_stepped, zero, [0.1], zero)
    return _Work((keys, splits, False, "float32"), push)


def _speed(transport: Transport, work: _Work, seconds: float) -> float:
    """Return the iterations per second of one call after the other, counted by the answers."""
    client = ShardClient("server_speed", [transport], owner="measure_servers")
    try:
        client.call("push", [work.push])  # inserts the rows
        start, num_iterations = time.monotonic(), 0
        while True:
            client.call("pull", [work.pull])
            client.call("push", [work.push])
            num_iterations += 1
            if (passed := time.monotonic() - start) >= seconds:
                return num_iterations / passed
    finally:
        client.close()
