"""`RemoteServers`: parameter servers in other processes, as a client sees them."""

import contextlib
import functools
import json
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from monolith.checkpoint import Checkpoint
from monolith.cluster.connection import Connection, HostHandle, RemoteTransport, Session
from monolith.cluster.host_verbs import TRANSFERS
from monolith.cluster.server_host import config_text
from monolith.cluster.servers import Servers
from monolith.cluster.sharded_table import ShardedTable
from monolith.cluster.transport import ShardClient, Transport
from monolith.errors import AbortedError, InvalidArgumentError, NotFoundError
from monolith.observe.metrics import MetricsSink, NullSink
from monolith.table.arguments import WAIT_SECONDS, check_wait
from monolith.table.calls import DEFAULT_CHANGES_BYTES, Clock, check_options, wall_clock
from monolith.table.config import TableConfig
from monolith.table.routing import Routing
from monolith.table.sweep import TableSweep

if TYPE_CHECKING:
    from typing_extensions import Self

LOST_PUSHES = "lost_pushes"
"""Counter of pushes that a server had done after the checkpoint from which it came back; tag ps."""

CLIENTS = "clients"
"""Name of `RemoteServers.clients_state` in the document of a checkpoint's trainer."""

_log = logging.getLogger(__name__)


class Renewal(Protocol):
    """What a job does when a server came back empty. Called on a thread of the connection."""

    def wait_restored(self, server: int, client: ShardClient) -> bool:
        """Whether another process restores the server, and has done so now.

        Raises:
            UnavailableError: It does not come to its end.
        """

    def renewed(self, server: int, transport: Transport, checkpoint: Checkpoint | None) -> None:
        """Go on with a server whose tables are there again.

        Args:
            server: Number of the server.
            transport: Way to the server's host of the job, while other calls wait.
            checkpoint: Checkpoint from which this process has restored the tables; None if another
                process did.
        """


class RemoteServers(Servers):
    """Parameter servers in other processes. Any thread may use them at any time.

    A server that was killed and comes back empty gets its tables again, and its shards from the
    checkpoint that `recovery` names, while the other servers keep theirs and calls wait.

    Args:
        connections: One to each server, in the order of the servers' numbers; `close` closes them.
        worker: Number of this client, and the number of clients that push to the tables.
        timeout_seconds: Maximum seconds that a call waits for its answer, reconnections included.
        transfer: Dtype of rows and gradients in messages: "float32", or "float16" with a relative
            error of 2**-11, or "bfloat16" with one of 2**-9. Both sides compute in float32.

    Attributes:
        recovery: Returns the prefix of the newest complete checkpoint of the run, or None. A server
            that comes back empty is an `AbortedError` without one.
        renewal: Part of a job in the restore of a server; None for a trainer alone.
        sink: Takes the number of lost pushes.
        lost_pushes: Number of pushes that servers had done and lost.

    Raises:
        InvalidArgumentError: A connection leads to another server than its place says.
        UnavailableError: A server does not answer.
    """

    def __init__(
        self,
        connections: Sequence[Connection],
        *,
        worker: tuple[int, int] = (0, 1),
        timeout_seconds: float = WAIT_SECONDS,
        transfer: str = "float32",
    ) -> None:
        index, num_workers = worker
        if not 0 <= index < num_workers:
            raise ValueError(
                f"[RemoteServers] expected worker (index, number of workers), got {worker}"
            )
        if transfer not in TRANSFERS:
            raise ValueError(
                f"[RemoteServers] expected transfer as one of {', '.join(TRANSFERS)}, got "
                f"{transfer!r}"
            )
        self.worker, self.transfer = (index, num_workers), transfer
        self.recovery: Callable[[], str | None] | None = None
        self.renewal: Renewal | None = None
        self.sink: MetricsSink = NullSink()
        self.lost_pushes = 0
        self._connections = list(connections)
        self._timeout_seconds = check_wait("RemoteServers", timeout_seconds, "")
        self._tables: dict[str, _OpenTable] = {}
        self._groups: dict[tuple[str, ...], list[HostHandle]] = {}
        self._job: list[HostHandle] | None = None
        self._sweeps: dict[str, TableSweep] = {}
        self._client = self._client_of(self._connections)
        self._check_order(self.describe())
        for number, connection in enumerate(self._connections):
            connection.on_new_life = functools.partial(self._renew, number)

    def __len__(self) -> int:
        return len(self._connections)

    def _client_of(self, sessions: Sequence[Session]) -> ShardClient:
        """Return the client of servers themselves."""
        transports = [RemoteTransport(s, HostHandle(), self._timeout_seconds) for s in sessions]
        return ShardClient("all tables", transports, owner="RemoteServers")

    def _check_order(self, facts: Sequence[dict[str, Any]], first: int = 0) -> None:
        """Refuse servers that are not at their place."""
        for number, fact in enumerate(facts, first):
            got = fact["index"], fact["num_servers"]
            if got != (number, len(self)):
                raise InvalidArgumentError(
                    f"[RemoteServers] expected server {number} of {len(self)}, got server "
                    f"{got[0]} of {got[1]} ({self._connections[number].label}); give the "
                    "addresses of all servers in the order of their numbers"
                )

    def table(
        self,
        config: TableConfig,
        routing: Routing,
        clock: Clock = wall_clock,
        *,
        changes_bytes: int = DEFAULT_CHANGES_BYTES,
    ) -> ShardedTable:
        """Return a table with a shard on each server, made where it is missing.

        Args:
            config: Config of the whole table.
            routing: Routing with a shard for each server.
            clock: Clock that gives the time of a call that has no `now`.
            changes_bytes: Bound of the touched log, divided among the shards that are made.
        """
        changes_bytes = check_options(config, clock, changes_bytes)
        old = self._tables.get(config.name)
        handles = [HostHandle() for _ in self._connections] if old is None else old.handles
        transports = self._transports(handles)
        table = ShardedTable(config, transports, routing=routing, clock=clock)
        opened = _OpenTable(table, handles, changes_bytes)
        calls = [opened.arguments(server) for server in range(len(self))]
        _renumber(handles, self._client.call("open_table", calls))
        self._tables[config.name] = opened
        return table

    def sweep(self, name: str, every_seconds: float, clock: Clock = wall_clock) -> None:
        """Evict expired rows of a table on all servers at intervals, until the connection ends.

        A thread of this client asks the servers; an earlier sweep of the table is replaced.

        Args:
            name: Name of a table that was made through this object.
            every_seconds: Seconds of the clock between two sweeps.
            clock: Clock that gives seconds.
        """
        if name not in self._tables:
            raise NotFoundError(
                f"[RemoteServers.sweep] expected a table that was made here, got {name!r}"
            )
        if (sweep := self._sweeps.pop(name, None)) is not None:
            sweep.close()
        self._sweeps[name] = TableSweep(self._tables[name].table, every_seconds, clock)

    def connect(self, names: Sequence[str]) -> list[Transport]:
        """Return the way to a host on each server, of its shards of some tables."""
        handles = self._groups.get(tuple(names)) or [HostHandle() for _ in self._connections]
        _renumber(handles, self._client.call("open_group", [(list(names),)] * len(self)))
        self._groups[tuple(names)] = handles
        return self._transports(handles)

    def open_job(self) -> list[Transport]:
        """Return the way to the host of the job on each server."""
        handles = self._job or [HostHandle() for _ in self._connections]
        _renumber(handles, self._client.call("open_job", [(self.worker[1],)] * len(self)))
        self._job = handles
        return self._transports(handles)

    def watch(self) -> None:
        """Go on with servers that come back empty also while this client makes no calls."""
        for connection in self._connections:
            connection.is_watching = True

    def fence(self, clients: Sequence[int]) -> None:
        """Let all servers refuse later writes of some callers."""
        self._client.call("fence", [(list(clients),)] * len(self))

    def _transports(self, handles: Sequence[HostHandle]) -> list[Transport]:
        return [
            RemoteTransport(connection, handle, self._timeout_seconds)
            for connection, handle in zip(self._connections, handles, strict=True)
        ]

    def describe(self) -> list[dict[str, Any]]:
        """Return facts about each server: its number, tables, and whether a job has begun on it."""
        return self._client.call("describe", [()] * len(self))

    def ask(self, server: int, verb: str, *arguments: Any) -> Any:
        """Return the answer of one server itself to a call of `SERVER_VERBS`."""
        calls: list[tuple[Any, ...] | None] = [None] * len(self)
        calls[server] = arguments
        return self._client.call(verb, calls)[0]

    def clients_state(self) -> list[Any]:
        """Return the last writes of each server's clients as JSON accepts them, for a checkpoint.

        A server that comes back from the checkpoint does none of these writes again.
        """
        return [json.loads(state) for state in self._client.call("clients_state", [()] * len(self))]

    def close(self) -> None:
        """Close the connections; the servers keep the tables. Closing twice is fine."""
        for sweep in self._sweeps.values():
            sweep.close()
        self._client.close()
        for connection in self._connections:
            connection.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # A server that came back empty

    def _renew(self, server: int, session: Session) -> None:
        """Open the tables that are not closed on a server that came back empty; restore them."""
        with contextlib.closing(self._client_of([session])) as client:
            self._renew_by(client, server, session)

    def _renew_by(self, client: ShardClient, server: int, session: Session) -> None:
        self._check_order(client.call("describe", [()]), server)
        tables = self._open_tables()
        closed = self._tables.keys() - tables.keys()
        has_others = self.renewal is not None and self.renewal.wait_restored(server, client)
        prefix = None if has_others or self.recovery is None else self.recovery()
        if tables and prefix is None and not has_others:
            raise AbortedError(
                f"[RemoteServers] expected server {server} with its tables, got a new process "
                f"without them, and no checkpoint of this run ({session.label}); save checkpoints, "
                "or restore all tables from a save in a new run"
            )
        for opened in tables.values():
            (number,) = client.call("open_table", [opened.arguments(server)])
            opened.handles[server].number = number
        for names, handles in list(self._groups.items()):
            if closed.intersection(names):
                continue  # their calls fail all the same
            (handles[server].number,) = client.call("open_group", [(list(names),)])
        if self._job is not None:
            (self._job[server].number,) = client.call("open_job", [(self.worker[1],)])
        checkpoint = None if prefix is None else Checkpoint(prefix)
        if checkpoint is not None:
            self._restore_clients(checkpoint, server, client)
            self._restore(checkpoint, server, session)
        if self.renewal is not None and self._job is not None:
            transport = RemoteTransport(session, self._job[server], self._timeout_seconds)
            self.renewal.renewed(server, transport, checkpoint)

    def _open_tables(self) -> "dict[str, _OpenTable]":
        return {n: opened for n, opened in self._tables.items() if not opened.table._is_closed}

    def restore_server(self, server: int, checkpoint: Checkpoint) -> None:
        """Restore the shards of one server, whose tables are open, while others keep theirs."""
        session = self._connections[server]
        with contextlib.closing(self._client_of([session])) as client:
            self._restore_clients(checkpoint, server, client)
        self._restore(checkpoint, server, session)

    def _restore_clients(self, checkpoint: Checkpoint, server: int, client: ShardClient) -> None:
        clients = (checkpoint.read_trainer() or {}).get(CLIENTS)
        if clients is not None and len(clients) == len(self):
            client.call("restore_clients", [(json.dumps(clients[server]),)])

    def _restore(self, checkpoint: Checkpoint, server: int, session: Session) -> None:
        """Restore the shards of one server, and count the pushes that it has lost."""
        tables, prefix = self._open_tables(), checkpoint.prefix
        shards = [
            _OneShard(
                opened.table,
                server,
                RemoteTransport(session, opened.handles[server], self._timeout_seconds),
            )
            for opened in tables.values()
        ]
        if shards:
            checkpoint.restore_tables(shards, shards=[server])
        gaps = [
            shard.catch_up(tables[shard.name].table.acknowledged_by(server)) for shard in shards
        ]
        if self.renewal is not None:  # the job knows the pushes of each worker
            _log.warning("%s came back empty; its shards are those of %s", session.label, prefix)
            return
        lost = -(-max(gaps, default=0) // self.worker[1])
        self.note_lost(server, lost)
        _log.warning(
            "server %d (%s) came back empty; its shards are those of %s, and %d pushes are lost",
            server,
            session.label,
            prefix,
            lost,
        )

    def note_lost(self, server: int, num_pushes: int) -> None:
        """Count pushes of this client that a server had done and lost."""
        self.lost_pushes += num_pushes
        self.sink.count(LOST_PUSHES, num_pushes, {"ps": str(server)})


def _renumber(handles: Sequence[HostHandle], numbers: Sequence[int]) -> None:
    for handle, number in zip(handles, numbers, strict=True):
        handle.number = number


class _OpenTable(NamedTuple):
    """A table, and the hosts of its shards."""

    table: ShardedTable
    handles: list[HostHandle]
    changes_bytes: int

    def arguments(self, server: int) -> tuple[str, tuple[str, int, int], int]:
        """Return the arguments of `open_table` for a server."""
        place = self.table.routing.placement_of(server)
        fields = place.kind, place.num_shards, place.shard
        return config_text(self.table.config), fields, self.changes_bytes


class _OneShard(ShardedTable):
    """A table of which one shard came back empty, and is restored: the others are not asked."""

    def __init__(self, table: ShardedTable, shard: int, transport: Transport) -> None:
        transports = [transport] * table.routing.num_shards
        super().__init__(table.config, transports, routing=table.routing, clock=table._clock)
        self.restore_names = table.restore_names
        self._number = shard

    def _ask_all(self, verb: str, *arguments: Any) -> list[Any]:
        return [self._ask_one(self._number, verb, *arguments)]

    def catch_up(self, number: int) -> int:
        """Set the number of update calls that was acknowledged; return how many are lost."""
        lost = max(0, number - self._update_calls())
        if lost:
            self._set_update_calls(number)
        return lost
