"""`ServerHost`: all that one server process holds, behind calls."""

import concurrent.futures
import itertools
import json
import secrets
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from monolith.cluster.call_host import Call, CallHost
from monolith.cluster.host_verbs import MAX_MESSAGE_BYTES, HostFacts, short
from monolith.cluster.job.dense_shard import DenseShard
from monolith.cluster.job.job_host import JobHost
from monolith.cluster.server_verbs import ROUTINGS, SERVER_VERBS
from monolith.cluster.servers import LocalServer, ps_label
from monolith.cluster.shard_hosts import GroupHost, ShardHost
from monolith.errors import (
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from monolith.table.config import TableConfig
from monolith.table.disk.config_json import config_from_json, config_to_json
from monolith.table.routing import Placement

QUICK_VERBS = frozenset(
    {
        *("contains", "describe", "has_cut", "lookup", "num_rows", "pull", "seen_time"),
        *("describe_job", "job_number", "read_flags", "read_text", "table_names", "take_share"),
        *("update_calls", "value_names", "wait_held", "watch_job"),
    }
)
"""Verbs that take microseconds if their message is small."""

WRITE_SECONDS = 20.0
"""Seconds that a fence waits for writes that have begun, less than a client waits for an answer."""

MAX_VALUES = 1 << 16
"""Most named dense values of a server."""

MAX_VALUE_BYTES = 4 << 30
"""Most bytes of the named dense values of a server."""

SERVER = 0
"""Number of the host that is the server itself."""


class ServerHost:
    """The tables and dense values of one server, for clients that send calls to numbered hosts.

    Host 0 is the server itself; its verbs open further hosts. Any thread may call at any time.

    Args:
        index: Number of the server.
        num_servers: Number of servers, of which each holds a shard of every table.
        label: Name of the server in messages; empty takes the label of a parameter server.
        max_message_bytes: Most bytes of the keys and rows of one call, or of its answer.
        dense: Dense parameters of the server; None for tables and named values alone.

    Attributes:
        job: What the workers of a job share here; None before the first worker.
        life: Random number of this start: a client that knows another one has lost its tables here.

    Example:
        >>> host = ServerHost(0, 1)
        >>> host.do(0, Call(client=1, sequence=0, done=0, verb="describe", arguments=()))["index"]
        0
    """

    def __init__(
        self,
        index: int,
        num_servers: int,
        *,
        label: str = "",
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        dense: DenseShard | None = None,
    ) -> None:
        if not 0 <= index < num_servers:
            raise ValueError(
                f"[ServerHost] expected 0 <= index < num_servers, got server {index} of "
                f"{num_servers}"
            )
        self.index, self.num_servers = index, num_servers
        self._first_place = index, num_servers
        self.label = label or ps_label(index)
        self.life = secrets.randbits(63)
        self.values: dict[str, torch.Tensor] = {}
        self.job: JobHost | None = None
        self._dense = dense
        self._max_message_bytes = max_message_bytes
        self._server = LocalServer(index, self.label, max_message_bytes)
        self._lock = threading.RLock()
        self._hosts: dict[int, CallHost] = {SERVER: _ServerCalls(self, max_message_bytes)}
        # What a host serves -> its number. The first number is drawn, so that a number of an
        # earlier life is no host of this one.
        self._numbers: dict[tuple[str, ...], int] = {}
        self._next_number = itertools.count(secrets.randbits(30) + 1)
        self._restored: dict[tuple[str, ...], Any] = {}  # clients of hosts that are not open yet
        self._fenced: set[int] = set()

    def do(self, host: int, call: Call) -> Any:
        """Do a call to a host.

        Raises:
            NotFoundError: The server has no host of this number.
            InvalidArgumentError: The call is not one of the host's verbs; nothing was done.
        """
        return self._host(host).do(call)

    def _host(self, number: int) -> CallHost:
        host = self._hosts.get(number)
        if host is None:
            raise NotFoundError(
                f"[ServerHost.do] expected a host that was opened, one of {len(self._hosts)}, got "
                f"number {short(number)} ({self.label})"
            )
        return host

    def is_quick(self, host: int, verb: str) -> bool:
        """Whether a small call of the verb may run where others wait for it."""
        return verb in QUICK_VERBS

    def open_table(self, config: TableConfig, placement: Placement, changes_bytes: int) -> int:
        """Return the number of the host of a table's shard; made if there is none.

        Args:
            config: Config of the whole table.
            placement: Routing of the table and number of the shard, which is that of the server.
            changes_bytes: Bound of the touched log of the whole table, if the shard is made.

        Raises:
            InvalidArgumentError: The client takes this server for another one, or the table was
                made with another routing or config.
        """
        if (placement.shard, placement.num_shards) != (self.index, self.num_servers):
            raise InvalidArgumentError(
                f"[ServerHost.open_table] expected shard {self.index} of {self.num_servers}, got "
                f"{placement} (table {config.name!r} on {self.label}); compare the order and the "
                "number of the addresses with the servers"
            )
        routing = ROUTINGS[placement.kind](placement.num_shards)
        with self._lock:
            shard = self._server.shard(config, routing, changes_bytes)
            return self._number_of(("table", config.name), shard)

    def open_group(self, names: list[str]) -> int:
        """Return the number of a host of the shards of some tables."""
        key = ("group", *names)
        with self._lock:
            number = self._numbers.get(key)
            host = None if number is None else self._hosts[number]
            if isinstance(host, GroupHost) and not host.is_closed:
                assert number is not None
                return number
            return self._number_of(key, self._server.group(names))

    def open_job(self, num_workers: int) -> int:
        """Return the number of the host of the job; made if there is none.

        Raises:
            InvalidArgumentError: The job has another number of workers.
        """
        with self._lock:
            if self.job is None:
                self.job = JobHost(
                    self.index,
                    num_workers,
                    self._dense,
                    device=self.label,
                    max_message_bytes=self._max_message_bytes,
                    fence=self.fence,
                    await_writes=self.await_writes,
                )
            if self.job.num_workers != num_workers:
                raise InvalidArgumentError(
                    f"[ServerHost.open_job] expected a job of {self.job.num_workers} workers, got "
                    f"one of {num_workers} ({self.label}); give all processes the same number"
                )
            return self._number_of(("job",), self.job)

    def is_called(self, index: int, num_servers: int) -> bool:
        """Whether a client that looks for a server means this one, also by its first number."""
        places = (self.index, self.num_servers), self._first_place
        return (index, num_servers) in places

    def renumber(self, index: int, num_servers: int) -> None:
        """Become another server of another number of servers; the present place is fine.

        A server that was started with others that are not needed gets its place in this way.

        Raises:
            FailedPreconditionError: The server has a table or a job.
            InvalidArgumentError: There is no such place.
        """
        if not index < num_servers:
            raise InvalidArgumentError(
                f"[ServerHost.renumber] expected index < num_servers, got server {index} of "
                f"{num_servers} ({self.label})"
            )
        with self._lock:
            if (index, num_servers) == (self.index, self.num_servers):
                return
            if self.job is not None or self.table_names:
                has = "a job" if self.job is not None else f"tables {', '.join(self.table_names)}"
                raise FailedPreconditionError(
                    f"[ServerHost.renumber] expected a server without tables and job to become "
                    f"server {index} of {num_servers}, got one with {has} ({self.label}); start "
                    "the servers of the job anew"
                )
            if self._dense is not None:
                self._dense.place(index, num_servers)
            self._server.close()
            self.index, self.num_servers, self.label = index, num_servers, ps_label(index)
            self._hosts[SERVER].device = self.label
            self._server = LocalServer(index, self.label, self._max_message_bytes)

    def write_values(self, values: Mapping[str, torch.Tensor]) -> None:
        """Keep named values, in the place of those with the same names.

        Raises:
            FailedPreconditionError: The server would have too many, or too large ones; none is
                kept.
        """
        with self._lock:
            together = {**self.values, **values}
            num_bytes = sum(value.numel() * value.element_size() for value in together.values())
            if len(together) > MAX_VALUES or num_bytes > MAX_VALUE_BYTES:
                raise FailedPreconditionError(
                    f"[ServerHost.write_values] expected at most {MAX_VALUES} values of "
                    f"{MAX_VALUE_BYTES} bytes together, got {len(together)} of {num_bytes} with "
                    f"{short(next(iter(values)))} ({self.label}); keep large values in tables"
                )
            self.values = together

    @property
    def is_job_ended(self) -> bool:
        """Whether the chief of a job has ended it."""
        return self.job is not None and self.job.is_ended

    def fence(self, clients: Sequence[int]) -> None:
        """Refuse all later writes of some clients, on every host, also on those made later."""
        self._fenced.update(clients)
        for host in list(self._hosts.values()):
            host.fence(clients)

    def await_writes(self, clients: Sequence[int]) -> None:
        """Wait for the end of the writes of some clients that have begun, on every host.

        Raises:
            DeadlineExceededError: A write runs on.
        """
        hosts = list(self._hosts.values())
        running = [write for host in hosts for write in host.running_writes(clients)]
        late = concurrent.futures.wait(running, WRITE_SECONDS).not_done
        if late:
            raise DeadlineExceededError(
                f"[ServerHost.await_writes] expected the end of all writes of refused clients "
                f"within {WRITE_SECONDS:g} seconds, got {len(late)} of {len(running)} that run on "
                f"({self.label}); later ones are refused: try again"
            )

    def tick(self) -> None:
        """Answer calls that have waited long enough; called several times a second."""
        if self.job is not None:
            self.job.tick()

    def end_waits(self) -> None:
        """Answer all calls that wait: the server ends."""
        if self.job is not None:
            self.job.end_waits()

    def _number_of(self, key: tuple[str, ...], host: CallHost) -> int:
        """Return the number of a host, a new one if what it serves was made anew. Locked."""
        number = self._numbers.get(key)
        if number is not None and self._hosts[number] is host:
            return number
        if number is not None:
            del self._hosts[number]
        number = self._numbers[key] = next(self._next_number)
        if (clients := self._restored.pop(key, None)) is not None:
            host.restore_clients(clients)
        self._hosts[number] = host
        host.fence(list(self._fenced))
        return number

    @property
    def table_names(self) -> list[str]:
        """Names of the tables, sorted."""
        return self._server.table_names

    def release_client(self, client: int) -> None:
        """Close the cuts of a client and drop the answers kept for it; the client may come back."""
        for host in list(self._hosts.values()):
            host.release_client(client)

    def clients_state(self) -> list[Any]:
        """Return what every host knows of its clients' writes, as JSON accepts it."""
        with self._lock:
            numbers = list(self._numbers.items())
            return [[list(key), self._hosts[number].clients_state()] for key, number in numbers]

    def restore_clients(self, state: list[Any]) -> None:
        """Set what the hosts know of their clients' writes, also of hosts that are opened later.

        Raises:
            DataLossError: The state is not that of `clients_state`.
        """
        try:
            by_key = {tuple(map(str, key)): clients for key, clients in state}
        except (TypeError, ValueError) as error:
            raise DataLossError(
                f"[ServerHost.restore_clients] expected the clients of a save, got {short(state)} "
                f"({self.label})"
            ) from error
        with self._lock:
            for key, clients in by_key.items():
                if key in self._numbers:
                    self._hosts[self._numbers[key]].restore_clients(clients)
                else:
                    self._restored[key] = clients

    def status(self) -> dict[str, Any]:
        """Return what a page about the server shows."""
        hosts = list(self._hosts.values())
        shards = [h for h in hosts if isinstance(h, ShardHost) and not h.table._is_closed]
        tables = {
            shard.name: {
                "rows": shard.table._num_rows(),
                "update_calls": shard.table._update_calls(),
                "bytes": sum(shard.table._memory_report().values()),
            }
            for shard in shards
        }
        return {
            "index": self.index,
            "num_servers": self.num_servers,
            "label": self.label,
            "life": self.life,
            "tables": tables,
            "clients": len(set().union(*(host.clients for host in hosts))),
            "values": len(self.values),
        }

    def close(self) -> None:
        """Free the tables. Closing twice is fine."""
        self._server.close()


class _ServerCalls(CallHost):
    """The verbs of a server itself."""

    def __init__(self, server: ServerHost, max_message_bytes: int) -> None:
        super().__init__(HostFacts(server.label, [], max_message_bytes), SERVER_VERBS)
        self._server, self.device = server, server.label

    def _run(self, call: Call) -> Any:
        return getattr(self, f"_do_{call.verb}")(*call.arguments)

    def _do_describe(self) -> dict[str, Any]:
        server = self._server
        return {
            "index": server.index,
            "num_servers": server.num_servers,
            "life": server.life,
            "tables": server.table_names,
            "is_ready": server.job is not None and server.job.is_ready,
        }

    def _do_table_names(self) -> list[str]:
        return self._server.table_names

    def _do_open_table(
        self, config: str, placement: tuple[str, int, int], changes_bytes: int
    ) -> int:
        return self._server.open_table(_config_of(config), Placement(*placement), changes_bytes)

    def _do_open_group(self, names: list[str]) -> int:
        return self._server.open_group(names)

    def _do_open_job(self, num_workers: int) -> int:
        return self._server.open_job(num_workers)

    def _do_renumber(self, index: int, num_servers: int) -> None:
        self._server.renumber(index, num_servers)

    def _do_fence(self, clients: list[int]) -> None:
        self._server.fence(clients)
        self._server.await_writes(clients)

    def _do_clients_state(self) -> str:
        return json.dumps(self._server.clients_state())

    def _do_restore_clients(self, state: str) -> None:
        self._server.restore_clients(_parsed(state, "restore_clients"))

    def _do_value_names(self) -> list[str]:
        return sorted(self._server.values)

    def _do_read_values(self, names: list[str]) -> list[torch.Tensor]:
        values = self._server.values
        missing = next((name for name in names if name not in values), None)
        if missing is not None:
            raise NotFoundError(
                f"[ServerHost.read_values] expected names of dense values, got {missing!r}, of "
                f"which there is none ({self._server.label})"
            )
        return [values[name] for name in names]

    def _do_write_values(self, values: list[tuple[str, torch.Tensor]]) -> None:
        # A new tensor each time, so that an answer that is on its way does not change.
        self._server.write_values({name: value.clone() for name, value in values})


def config_text(config: TableConfig) -> str:
    """Return a table's config as a client sends it.

    A learning rate that is a function becomes 0: every call brings its rates.
    """
    return json.dumps(_without_functions(config_to_json(config)))


def _without_functions(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_functions(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("class") == "schedule":
        return 0.0
    return {name: _without_functions(item) for name, item in value.items()}


def _config_of(text: str) -> TableConfig:
    value = _parsed(text, "open_table")
    try:
        config = config_from_json(value, "open_table")
    except DataLossError as error:
        raise InvalidArgumentError(
            f"[ServerHost.open_table] expected the config of a table, got {error.__cause__}"
        ) from error
    return config


def _parsed(text: str, verb: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            f"[ServerHost.{verb}] expected JSON, got {short(text)}: {error}"
        ) from error
