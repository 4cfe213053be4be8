"""Hosts answer calls: each once, whatever the transport repeats; `ShardHost` holds a shard."""

import concurrent.futures
import functools
import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch

import monolith._native as _native
from monolith.cluster.disk.file_verbs import FILE_VERBS
from monolith.cluster.disk.shard_saves import SaveVerbs, ShardSaves
from monolith.cluster.group_storage import Push
from monolith.cluster.host_verbs import (
    GROUP_VERBS,
    MAX_MESSAGE_BYTES,
    SHARD_VERBS,
    HostFacts,
    Verb,
    check_arguments,
    short,
)
from monolith.cluster.shard_split import is_finite
from monolith.cluster.table_group import TableGroup
from monolith.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
)
from monolith.ops import Ragged
from monolith.table.arguments import WAIT_SECONDS, check_wait, time_text
from monolith.table.calls import TableCalls
from monolith.table.routing import FloorModRouting, PartitionRouting, Placement
from monolith.table.rows import Entries, Rows
from monolith.table.snapshot import Snapshot

BYE = "bye"
"""Verb of a client's last call: the host forgets the answers it kept for it."""

_MAX_NUMBER = (1 << 63) - 1
_MAX_GONE = 1024  # clients of which late copies of calls are still refused


class Call(NamedTuple):
    """A call as it travels.

    Attributes:
        client: who calls.
        sequence: number of the call among the client's; with `client`, its id.
        done: every call of the client below this number has its answer, so the shard may forget it.
        verb: what to do.
        arguments: plain values, as `host_verbs.py` says.
    """

    client: int
    sequence: int
    done: int
    verb: str
    arguments: tuple[Any, ...]


class _Write:
    """A write that has begun."""

    def __init__(self) -> None:
        self.start = time.time()
        self.answer: Future[Any] = Future()


class _Client:
    """A client's writes whose answers it may ask for again."""

    def __init__(self) -> None:
        self.done = 0
        self.writes: dict[int, _Write] = {}

    def forget(self, done: int) -> None:
        if done > self.done:
            self.done = done
            for number in [number for number in self.writes if number < done]:
                del self.writes[number]


class CallHost(ABC):
    """Base of hosts: does each call once, checked. Any thread may call at any time.

    Args:
        facts: Facts about the tables of the host.
        verbs: by name.
        timeout_seconds: how long a write that comes again waits for the first one at most.
        placement: which keys the host holds; None: not known yet.

    Attributes:
        device: label of the server that this is on; empty: none.
    """

    device = ""

    def __init__(
        self,
        facts: HostFacts,
        verbs: Mapping[str, Verb],
        timeout_seconds: float = WAIT_SECONDS,
        placement: Placement | None = None,
    ) -> None:
        self.name, self._placement = facts.name, placement
        self._timeout_seconds = check_wait(type(self).__name__, timeout_seconds, facts.name)
        self._facts, self._verbs = facts, verbs
        self._clients: dict[int, _Client] = {}
        self._gone: dict[int, None] = {}  # in order
        # Entered again by a cut that is collected, and so closed, inside a call.
        self._lock = threading.RLock()

    def do(self, call: Call) -> Any:
        """Do the call; a write that came before is not done again, and has the same answer.

        Raises:
            InvalidArgumentError: the call is not one of `host_verbs.py`; nothing was done.
        """
        is_write = self._check(call)
        if call.verb == BYE:
            return self._forget(call.client)
        if not is_write:
            return self._run(call)
        with self._lock:
            if call.client in self._gone:
                raise AbortedError(
                    f"[{type(self).__name__}.do] expected calls of a client that is there, got "
                    f"number {call.sequence} of one that is gone (table {self.name!r})"
                )
            client = self._clients.setdefault(call.client, _Client())
            if call.sequence < client.done:
                raise AbortedError(
                    f"[{type(self).__name__}.do] expected calls from number {client.done} on, got "
                    f"{call.sequence}, which has its answer (table {self.name!r})"
                )
            client.forget(call.done)
            write = client.writes.get(call.sequence)
            is_new = write is None
            if write is None:
                write = client.writes[call.sequence] = _Write()
        if is_new:
            try:
                write.answer.set_result(self._run(call))
            except BaseException as error:
                write.answer.set_exception(error)
        return write.answer.result() if is_new else self._answer(call, write)

    def _check(self, call: Call) -> bool:
        """Refuse what is no call of a verb; whether it is a write."""
        client, sequence, done, name, arguments = call
        if not (
            type(client) is type(sequence) is type(done) is int
            and 0 <= client <= _MAX_NUMBER
            and 0 <= done <= sequence <= _MAX_NUMBER
        ):
            raise self._error(
                "a client, a sequence number and answers below it as ints in [0, 2**63)",
                f"({short(client)}, {short(sequence)}, {short(done)})",
            )
        verb = self._verbs.get(name) if type(name) is str else None
        if verb is not None:
            check_arguments(self._facts, type(self).__name__, name, verb, arguments)
            if verb.is_write and verb.keys_at is not None:
                keys = arguments[verb.keys_at]
                self._check_placement(name, keys[0] if isinstance(keys, tuple) else keys)
            return verb.is_write
        if name != BYE or arguments != ():
            raise self._error("a verb of a shard", short(name))
        return False

    def _check_placement(self, verb: str, keys: torch.Tensor) -> None:
        """Refuse to write keys that another shard holds: no lookup would find their rows here."""
        place = self._placement
        if place is None or place.num_shards == 1:
            return
        by_partition = place.kind == PartitionRouting.__name__
        if not by_partition and place.kind != FloorModRouting.__name__:
            return  # a routing of the caller's own
        number = _native.find_foreign(
            keys.data_ptr(), keys.numel(), by_partition, place.num_shards, place.shard
        )
        if number < keys.numel():
            raise InvalidArgumentError(
                f"[{type(self).__name__}.{verb}] expected keys of {place}, got key "
                f"{int(keys[number])} at place {number} {self._facts.end}"
            )

    def _error(self, expected: str, got: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"[{type(self).__name__}.do] expected {expected}, got {got} (table {self.name!r})"
        )

    def _answer(self, call: Call, write: _Write) -> Any:
        """Wait for the answer of a write that another thread may be doing."""
        concurrent.futures.wait([write.answer], self._timeout_seconds)
        if not write.answer.done():
            raise DeadlineExceededError(
                f"[{type(self).__name__}.do] expected the end of {call.verb!r}, number "
                f"{call.sequence} of client {call.client}, within {self._timeout_seconds} seconds, "
                f"got a call that runs since {time_text(write.start)} (table {self.name!r}); it "
                "goes on: send it again for its answer, or make the host with a larger "
                "timeout_seconds"
            )
        return write.answer.result()

    def _forget(self, client: int) -> None:
        with self._lock:
            self._clients.pop(client, None)
            self._gone[client] = None
            while len(self._gone) > _MAX_GONE:
                del self._gone[next(iter(self._gone))]

    @abstractmethod
    def _run(self, call: Call) -> Any:
        """Do a call that was checked."""


PlainRows = tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]
"""Keys, times, columns."""


class ShardHost(SaveVerbs, CallHost):
    """Serves one shard of a table by calls. Any thread may call at any time.

    Args:
        table: the rows of the shard; the host closes it.
        timeout_seconds: how long a write that comes again waits for the first one at most.
        device: label of the server that has the shard.
        placement: which keys of the table the shard holds; that of its first opening if None.
        max_message_bytes: most bytes of the keys and whole rows of one call, or of its answer.
    """

    def __init__(
        self,
        table: TableCalls,
        *,
        timeout_seconds: float = WAIT_SECONDS,
        device: str = "",
        placement: Placement | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        facts = HostFacts(table.name, [table.config], max_message_bytes)
        super().__init__(facts, {**SHARD_VERBS, **FILE_VERBS}, timeout_seconds, placement)
        self.table, self.device = table, device
        self._cuts: dict[int, Snapshot] = {}
        self._cut_numbers = itertools.count()
        self._saves = ShardSaves(table.name)

    def _run(self, call: Call) -> Any:
        own = getattr(self, f"_do_{call.verb}", None)
        run = own or getattr(self.table, f"_{call.verb}")
        return run(*call.arguments)

    @property
    def placement(self) -> Placement | None:
        """Which keys of the table the shard holds; None before its first opening."""
        return self._placement

    def open_as(self, placement: Placement) -> None:
        """Refuse a routing that would look elsewhere for this shard's rows. Thread-safe."""
        with self._lock:
            if self._placement is None:
                self._placement = placement
            stored = self._placement
        if not stored.has_keys_of(placement):
            which = f"table {self.name!r}" + (f" on {self.device}" if self.device else "")
            raise InvalidArgumentError(
                f"[ShardHost.open_as] expected {stored}, as which the shard was made, got "
                f"{placement} ({which}); open it with the routing that it has, or restore a save "
                "of it into a new table of the other routing"
            )

    def close(self) -> None:
        """Stop the saves and free the table. Closing twice is fine."""
        self._saves.forget(self._cuts.values())
        self.table.close()

    # Verbs whose arguments or results are not plain on a table.

    def _do_close(self) -> None:
        self.close()

    def _do_lookup_entry(self, keys: torch.Tensor) -> tuple[torch.Tensor, PlainRows]:
        return plain_entries(self.table._lookup_entry(keys))

    def _do_export_chunk(self, first: int, last: int, limit: int) -> PlainRows:
        return plain_rows(self.table._export_chunk(first, last, self._bounded(limit)))

    def _bounded(self, limit: int) -> int:
        """Rows of a chunk: the answer is a message, too, and may be shorter than what is asked."""
        return min(limit, self._facts.max_keys)

    def _do_import_rows(self, rows: PlainRows, absent: torch.Tensor | None, threads: int) -> None:
        self.table._import_rows(Rows(*rows), absent, threads)

    def _do_open_cut(self, cursor: str | None) -> tuple[int, int, int, int, int] | None:
        """A number for the cut, and its facts; None where four are open."""
        cut = self.table._open_cut(cursor)
        if cut is None:
            return None
        number = next(self._cut_numbers)
        self._cuts[number] = Snapshot(self.table.config, cut, cursor)
        return number, cut.num_rows, cut.num_update_calls, cut.latest_time, cut.num_recorded

    def _do_cut_chunk(self, number: int, first: int, last: int, limit: int) -> PlainRows:
        snapshot = self._cut("cut_chunk", number)
        return plain_rows(snapshot._chunk(None, first, last, self._bounded(limit)))

    def _do_cut_changes(self, number: int) -> tuple[bool, torch.Tensor, torch.Tensor]:
        touched = self._cut("cut_changes", number).changes()
        return touched.full, touched.keys, touched.tombstones

    def _do_cut_entries(self, number: int, keys: torch.Tensor) -> tuple[torch.Tensor, PlainRows]:
        return plain_entries(self._cut("cut_entries", number).lookup_entry(keys))

    def _do_cut_candidates(self, number: int, partitions: list[int]) -> dict[str, torch.Tensor]:
        return self._cut("cut_candidates", number).export_candidates(partitions)

    def _do_release_cut(self, number: int, partitions: list[int]) -> None:
        self._cut("release_cut", number).release(partitions)

    def _do_close_cut(self, number: int, is_read: bool) -> None:
        snapshot = self._cut("close_cut", number)
        self._saves.forget([snapshot])
        snapshot.close(is_read=is_read)
        self._cuts.pop(number, None)

    def _cut(self, verb: str, number: int) -> Snapshot:
        snapshot = self._cuts.get(number)
        if snapshot is None:
            raise FailedPreconditionError(
                f"[ShardHost.{verb}] expected the number of an open cut, got {number} "
                f"(table {self.name!r})"
            )
        return snapshot


def plain_rows(rows: Rows) -> PlainRows:
    """Rows as they travel."""
    return rows.keys, rows.times, rows.columns


def plain_entries(entries: Entries) -> tuple[torch.Tensor, PlainRows]:
    """Entries as they travel."""
    return entries.present, plain_rows(entries.rows)


class GroupHost(CallHost):
    """Serves the shards of several tables by calls, all in one. Any thread may call at any time.

    Keys arrive as the values and row splits of a `Ragged` with a row per table. A writing call also
    names its idle tables: those without keys here that have some on other shards. Times are taken
    as they are: the caller's clock has clamped them.

    Args:
        group: the tables; whoever made them closes them.
        timeout_seconds: how long a write that comes again waits for the first one at most.
        device: label of the server that has the tables.
        placement: which keys of each table the shards hold; of any keys if None.
        max_message_bytes: most bytes of the keys and rows of one call.
    """

    def __init__(
        self,
        group: TableGroup,
        *,
        timeout_seconds: float = WAIT_SECONDS,
        device: str = "",
        placement: Placement | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        configs = [table.config for table in group.tables.values()]
        facts = HostFacts(short_name(list(group.tables)), configs, max_message_bytes)
        super().__init__(facts, GROUP_VERBS, timeout_seconds, placement)
        self.group, self.device = group, device

    def _run(self, call: Call) -> Any:
        return getattr(self, f"_do_{call.verb}")(*call.arguments)

    def _do_lookup(
        self, keys: torch.Tensor, splits: torch.Tensor, step: int, as_float16: bool
    ) -> torch.Tensor:
        rows = self.group.lookup(Ragged._unchecked(keys, splits), step=step)
        return narrowed("[GroupHost.lookup]", "rows", rows) if as_float16 else rows

    def _do_write(
        self,
        verb: str,
        keys: torch.Tensor,
        splits: torch.Tensor,
        values: torch.Tensor,
        idle: list[str],
        now: int,
    ) -> None:
        self.group._write_at(verb, Ragged._unchecked(keys, splits), values, now)
        self._count_call(idle, now)

    _do_assign = functools.partialmethod(_do_write, "assign")
    _do_assign_add = functools.partialmethod(_do_write, "assign_add")

    def _do_apply_gradients(
        self,
        keys: torch.Tensor,
        splits: torch.Tensor,
        grads: torch.Tensor,
        counts: torch.Tensor | None,
        idle: list[str],
        rates: list[float],
        step: int,
        now: int,
    ) -> tuple[int, ...]:
        ragged = Ragged._unchecked(keys, splits)
        applied = self.group._apply_at(ragged, grads.float(), rates, step, now, counts=counts)
        self._count_call(idle, now)
        return tuple(applied)

    def _do_pull(self, keys: torch.Tensor, splits: torch.Tensor, initial: bool) -> torch.Tensor:
        return self.group._pull(Ragged._unchecked(keys, splits), initial)

    def _do_push(
        self,
        keys: torch.Tensor,
        splits: torch.Tensor,
        grads: torch.Tensor,
        counts: torch.Tensor,
        is_stepped: torch.Tensor,
        times: torch.Tensor,
        rates: list[float],
    ) -> tuple[int, ...]:
        push = Push(Ragged._unchecked(keys, splits), grads, counts, is_stepped, times, rates)
        return tuple(self.group._push(push))

    def _do_reinitialize(self, name: str, keys: torch.Tensor, now: int) -> torch.Tensor:
        return self.group._reinitialize_at(name, keys, now)

    def _do_count_clamped(self, names: list[str]) -> None:
        for name in names:
            self.group.tables[name]._count_clamped()

    def _count_call(self, idle: list[str], now: int) -> None:
        """Let a table count a call of which it has no part, so that all shards count alike."""
        for name in idle:
            table = self.group.tables[name]
            nothing = torch.empty(0, dtype=torch.int64, device="cpu")
            table._assign_add(nothing, torch.empty(0, table.dim, device="cpu"), now, 1)


def short_name(names: list[str]) -> str:
    """Some tables, for messages: the first, and how many more there are."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def narrowed(where: str, name: str, values: torch.Tensor) -> torch.Tensor:
    """The values as float16; refuses numbers that float16 cannot hold."""
    narrow = values.half()
    if not is_finite(narrow):
        lost = torch.isfinite(values) & torch.isinf(narrow)
        if bool(lost.any()):
            raise ValueError(
                f"{where} expected {name} in the range of float16, got {values[lost][0].item():g}; "
                "transfer float32"
            )
    return narrow
