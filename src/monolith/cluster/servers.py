"""`LocalServers`: parameter servers in this process, and where their parameters live."""

import dataclasses
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from monolith.cluster.host_verbs import MAX_MESSAGE_BYTES
from monolith.cluster.shard_hosts import GroupHost, ShardHost
from monolith.cluster.sharded_table import (
    ShardedTable,
    make_shard,
    shard_config,
    spread_config,
)
from monolith.cluster.table_group import TableGroup
from monolith.cluster.transport import LocalTransport, Transport
from monolith.errors import FailedPreconditionError, NotFoundError
from monolith.table.arguments import as_integer, check_kind
from monolith.table.base import BaseTable
from monolith.table.calls import DEFAULT_CHANGES_BYTES, Clock, wall_clock
from monolith.table.config import TableConfig, segments_of
from monolith.table.routing import PartitionRouting, Placement, Routing
from monolith.table.sweep import TableSweep

if TYPE_CHECKING:
    from typing_extensions import Self


PS_JOB_NAME = "ps"
"""Name of the job of parameter servers in a cluster's description."""


def ps_label(index: int) -> str:
    """Label of a parameter server; formatting only.

    Example:
        >>> ps_label(3)
        '/job:ps/task:3/device:CPU:0'
    """
    return f"/job:{PS_JOB_NAME}/task:{index}/device:CPU:0"


class LocalServer:
    """One server. Any thread may use it at any time.

    Args:
        index: number of the server.
        label: Name of the server in messages; empty takes `ps_label(index)`.
        max_message_bytes: Most bytes of the keys and rows of one call, or of its answer.

    Attributes:
        marks: words that live as long as the server does.
    """

    def __init__(
        self, index: int, label: str = "", max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        self.index = index
        self.label = label or ps_label(index)
        self._max_message_bytes = max_message_bytes
        self.marks: set[str] = set()
        self._lock = threading.Lock()
        self._shards: dict[str, ShardHost] = {}
        self._sweeps: dict[str, TableSweep] = {}
        self._parameters: dict[str, torch.nn.Parameter] = {}
        self._states: dict[str, dict[str, Any]] = {}
        self._is_closed = False

    def shard(
        self,
        config: TableConfig,
        routing: Routing | None = None,
        changes_bytes: int = DEFAULT_CHANGES_BYTES,
    ) -> ShardHost:
        """The shard of a table; made if the server has none of that name.

        Learning rates belong to a run: they may differ from those of the run that made the shard.

        Args:
            config: of the whole table.
            routing: of the whole table, whose shard of this server's number it is; None for a table
                of this server alone.
            changes_bytes: Bound of the touched log of the whole table, if the shard is made.

        Raises:
            InvalidArgumentError: the table was made with another routing.
        """
        placement = self._placement(config, routing)
        config = config if routing is None else spread_config(config, routing)
        with self._lock:
            self._check_open("shard")
            shard = self._found(config, placement)
            if shard is None:
                limit = self._max_message_bytes
                shard = make_shard(config, placement, changes_bytes, self.label, limit)
                self._shards[config.name] = shard
            return shard

    def check_shard(self, config: TableConfig, routing: Routing) -> None:
        """Refuse what `shard` would, and make nothing."""
        placement = self._placement(config, routing)
        with self._lock:
            self._check_open("shard")
            self._found(config, placement)

    def _placement(self, config: TableConfig, routing: Routing | None) -> Placement:
        if routing is None:
            return PartitionRouting(1).placement_of(0)
        which = f" (table {config.name!r} on {self.label})"
        check_kind("[LocalServer.shard]", "routing", routing, Routing, which=which)
        return routing.placement_of(self.index)

    def _found(self, config: TableConfig, placement: Placement) -> ShardHost | None:
        """The table's shard, if it is open and is what is asked for. Locked."""
        shard = self._shards.get(config.name)
        if shard is None or shard.table._is_closed:
            return None
        shard.open_as(placement)
        expected, got = shard.table.config, shard_config(config, placement.num_shards)
        if _without_rates(expected) != _without_rates(got):
            raise ValueError(
                f"[LocalServer.shard] expected the config that the table has, {expected}, "
                f"got {got} (table {config.name!r} on {self.label})"
            )
        return shard

    def table(self, config: TableConfig) -> BaseTable:
        """The table of this server alone; made if the server has none of that name.

        It belongs to the server and is closed with it. Its learning rates are those of the run that
        made it; calls take others as `learning_rates`.
        """
        found = self.shard(config).table
        assert isinstance(found, BaseTable)
        return found

    def sweep(self, name: str, every_seconds: float, clock: Clock = wall_clock) -> TableSweep:
        """Evict expired rows of this server's shard of a table at intervals, until it is closed.

        Args:
            name: of a table that the server has.
            every_seconds: seconds of the clock between two sweeps; a sweep with another interval
                is replaced.
            clock: gives seconds.
        """
        with self._lock:
            self._check_open("sweep")
            if name not in self._shards:
                raise NotFoundError(
                    f"[LocalServer.sweep] expected a shard of the table, got none of {name!r} "
                    f"({self.label})"
                )
            table, sweep = self._shards[name].table, self._sweeps.get(name)
            if sweep is not None and sweep.is_running and sweep.every_seconds == every_seconds:
                return sweep
            if sweep is not None:
                sweep.close()
            assert isinstance(table, BaseTable)
            self._sweeps[name] = TableSweep(table, every_seconds, clock)
            return self._sweeps[name]

    @property
    def sweeps(self) -> Mapping[str, TableSweep]:
        """The sweeps that were started, by table."""
        return MappingProxyType(self._sweeps)

    def group(self, names: Sequence[str]) -> GroupHost:
        """Return a host of this server's shards of some tables, which are there."""
        with self._lock:
            self._check_open("group")
            missing = [name for name in names if name not in self._shards]
            if missing:
                raise NotFoundError(
                    f"[LocalServer.group] expected shards of the tables, got none of "
                    f"{', '.join(missing)} ({self.label})"
                )
            shards = [self._shards[name] for name in names]
        placements = {shard.placement for shard in shards}
        placement = placements.pop() if len(placements) == 1 else None
        tables = [shard.table for shard in shards if isinstance(shard.table, BaseTable)]
        return GroupHost(
            TableGroup(tables),
            device=self.label,
            placement=placement,
            max_message_bytes=self._max_message_bytes,
        )

    def parameter(self, name: str, initial: torch.Tensor) -> torch.nn.Parameter:
        """The dense parameter of that name; made with a copy of `initial` if there is none."""
        with self._lock:
            self._check_open("parameter")
            if name not in self._parameters:
                self._parameters[name] = torch.nn.Parameter(initial.detach().clone())
            found = self._parameters[name]
        expected, got = (tuple(found.shape), found.dtype), (tuple(initial.shape), initial.dtype)
        if expected != got:
            raise ValueError(
                f"[LocalServer.parameter] expected the shape and dtype that the parameter has, "
                f"{expected}, got {got} (parameter {name!r} on {self.label})"
            )
        return found

    def state(self, name: str) -> dict[str, Any]:
        """What an optimizer keeps for the parameter of that name; empty at first.

        It is the dictionary itself: an optimizer that has it as its state goes on where the one of
        an earlier run ended.
        """
        with self._lock:
            self._check_open("state")
            return self._states.setdefault(name, {})

    @property
    def table_names(self) -> list[str]:
        """Names of the tables that are not closed, sorted."""
        return sorted(self._open_shards())

    def parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """The dense parameters by name, sorted."""
        with self._lock:
            return sorted(self._parameters.items(), key=lambda pair: pair[0])

    def own_tables(self) -> list[BaseTable]:
        """The tables of this server alone that are not closed, by name, sorted."""
        pairs = sorted(self._open_shards().items(), key=lambda pair: pair[0])
        tables = [shard.table for _, shard in pairs if not _is_shared(shard)]
        return [table for table in tables if isinstance(table, BaseTable)]

    @property
    def shared_table_names(self) -> list[str]:
        """Names of the open tables of which this server holds one of several shards, sorted."""
        return sorted(name for name, shard in self._open_shards().items() if _is_shared(shard))

    def _open_shards(self) -> dict[str, ShardHost]:
        with self._lock:
            return {n: shard for n, shard in self._shards.items() if not shard.table._is_closed}

    @property
    def parameter_names(self) -> list[str]:
        """Names of the parameters, sorted."""
        return sorted(self._parameters)

    def close(self) -> None:
        """Free the tables and forget the parameters. Closing twice is fine."""
        with self._lock:
            self._is_closed = True
            for shard in self._shards.values():
                shard.close()
            self._shards.clear()
            self._sweeps.clear()
            self._parameters.clear()
            self._states.clear()

    def _check_open(self, verb: str) -> None:
        if self._is_closed:
            raise FailedPreconditionError(
                f"[LocalServer.{verb}] expected an open server, got a closed one ({self.label})"
            )


class Servers(ABC):
    """Parameter servers that hold a shard of each table.

    Attributes:
        worker: Number of this client, and the number of clients that push to the tables.
        transfer: Dtype of rows and gradients in messages.
    """

    worker = (0, 1)
    transfer = "float32"

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def table(self, config: TableConfig, routing: Routing, clock: Clock) -> ShardedTable:
        """Return a table with a shard on each server, made where it is missing.

        Args:
            config: Config of the whole table.
            routing: Routing with a shard for each server.
            clock: Clock that gives the time of a call that has no `now`.
        """

    @abstractmethod
    def sweep(self, name: str, every_seconds: float, clock: Clock = wall_clock) -> None:
        """Evict expired rows of a table on each server at intervals.

        Args:
            name: Name of a table that was made.
            every_seconds: Seconds of the clock between two sweeps.
            clock: Clock that gives seconds.
        """

    @abstractmethod
    def connect(self, names: Sequence[str]) -> list[Transport]:
        """Return the way to a host on each server, of its shards of some tables."""


class LocalServers(Servers):
    """Parameter servers as objects of this process. Close them: they hold their tables.

    Args:
        num_servers: at least 1.

    Example:
        >>> from monolith.table import Segment
        >>> with LocalServers(2) as servers, servers.run():
        ...     with ps_device(1) as server:
        ...         bias = current_server().parameter("bias", torch.zeros(1))
        ...     print(server.label, servers[1].parameter_names)
        /job:ps/task:1/device:CPU:0 ['bias']
    """

    def __init__(self, num_servers: int) -> None:
        number = as_integer("[LocalServers]", "num_servers", num_servers)
        if number < 1:
            raise ValueError(f"[LocalServers] expected num_servers >= 1, got {number}")
        self._servers = [LocalServer(index) for index in range(number)]
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._servers)

    def __getitem__(self, index: int) -> LocalServer:
        if not 0 <= index < len(self):
            raise IndexError(
                f"[LocalServers] expected a server in [0, {len(self)}), got number {index}"
            )
        return self._servers[index]

    def shards(self, config: TableConfig, routing: Routing) -> list[ShardHost]:
        """A table's shard on each server, made where it is missing.

        A routing that a server refuses makes no shard on another one.

        Args:
            config: of the whole table.
            routing: with a shard for each server.
        """
        if routing.num_shards != len(self):
            raise ValueError(
                f"[LocalServers.shards] expected a routing over {len(self)} shards, one per "
                f"server, got {routing.num_shards} (table {config.name!r})"
            )
        config = spread_config(config, routing)
        with self._lock:
            for server in self._servers:
                server.check_shard(config, routing)
            return [server.shard(config, routing) for server in self._servers]

    def table(
        self, config: TableConfig, routing: Routing, clock: Clock = wall_clock
    ) -> ShardedTable:
        """Return a table over its shards, which outlive it."""
        return ShardedTable.over(config, self.shards(config, routing), routing=routing, clock=clock)

    def connect(self, names: Sequence[str]) -> list[Transport]:
        """Return the way to `groups`."""
        return [LocalTransport(host) for host in self.groups(names)]

    def sweep(self, name: str, every_seconds: float, clock: Clock = wall_clock) -> None:
        """Evict expired rows of a table's shard on each server; see `LocalServer.sweep`."""
        for server in self._servers:
            server.sweep(name, every_seconds, clock)

    def groups(self, names: Sequence[str]) -> list[GroupHost]:
        """Return a host on each server, of its shards of some tables."""
        return [server.group(names) for server in self._servers]

    def cluster(self) -> dict[str, list[str]]:
        """The description of the cluster: one job, with an address per server."""
        return {PS_JOB_NAME: [f"local:{server.index}" for server in self._servers]}

    @contextmanager
    def run(self) -> Iterator[None]:
        """A run on these servers: inside, `ps_device` means them. What was made stays after it."""
        token = _PLACE.set(_Place(self, None))
        try:
            yield
        finally:
            _PLACE.reset(token)

    @contextmanager
    def ps_device(self, index: int) -> Iterator[LocalServer]:
        """Select a server: inside, it is `current_server()`, whatever was selected outside.

        What is made through it belongs to it: `server.parameter`, `server.table`. A `Table` or a
        parameter of torch that is made without it belongs to its maker, inside too. The selection
        belongs to the thread, or to the asynchronous task.
        """
        server = self[index]
        token = _PLACE.set(_Place(self, server))
        try:
            yield server
        finally:
            _PLACE.reset(token)

    def restart(self, index: int) -> LocalServer:
        """What a crash of a server comes to: it is closed, and an empty one takes its place.

        Tables and parameters that were made through it are gone; make them again, also tables with
        shards on other servers, which keep theirs.
        """
        self[index].close()
        self._servers[index] = LocalServer(index)
        return self._servers[index]

    def close(self) -> None:
        """Close every server. Closing twice is fine."""
        for server in self._servers:
            server.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclasses.dataclass(frozen=True)
class _Place:
    servers: LocalServers
    server: LocalServer | None


_PLACE: ContextVar[_Place | None] = ContextVar("monolith_place", default=None)


def current_servers() -> LocalServers:
    """The servers of the run around the caller."""
    place = _PLACE.get()
    if place is None:
        raise FailedPreconditionError(
            "[current_servers] expected a run on servers, got none; use `with servers.run():`"
        )
    return place.servers


def current_server() -> LocalServer:
    """The server that `ps_device` selected around the caller."""
    place = _PLACE.get()
    if place is None or place.server is None:
        raise FailedPreconditionError(
            "[current_server] expected a selected server, got none; use `with ps_device(i):`"
        )
    return place.server


@contextmanager
def ps_device(index: int) -> Iterator[LocalServer]:
    """`LocalServers.ps_device` of the servers of the run around the caller."""
    with current_servers().ps_device(index) as server:
        yield server


def _is_shared(shard: ShardHost) -> bool:
    """Whether other servers hold other shards of the table."""
    return shard.placement is not None and shard.placement.num_shards > 1


def _without_rates(config: TableConfig) -> TableConfig:
    segments = [
        dataclasses.replace(
            segment, optimizer=dataclasses.replace(segment.optimizer, learning_rate=0.0)
        )
        for segment in segments_of(config)
    ]
    return dataclasses.replace(config, segments=segments)
