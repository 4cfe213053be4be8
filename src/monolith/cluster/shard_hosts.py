"""Hosts of tables: `ShardHost` holds one shard of a table, `GroupHost` shards of several tables."""

import functools
import itertools
import secrets
import threading
from typing import Any

import torch

from monolith.cluster.call_host import Call, CallHost
from monolith.cluster.disk.file_verbs import FILE_VERBS
from monolith.cluster.disk.shard_jobs import JobVerbs, ShardJobs
from monolith.cluster.group_storage import Push
from monolith.cluster.host_verbs import (
    GROUP_VERBS,
    MAX_MESSAGE_BYTES,
    SHARD_VERBS,
    TRANSFERS,
    HostFacts,
)
from monolith.cluster.shard_split import is_finite
from monolith.cluster.table_group import TableGroup
from monolith.errors import AbortedError, FailedPreconditionError, InvalidArgumentError
from monolith.ops import Ragged
from monolith.table.arguments import WAIT_SECONDS
from monolith.table.calls import TableCalls
from monolith.table.routing import Placement
from monolith.table.rows import Entries, Rows
from monolith.table.snapshot import Snapshot

PlainRows = tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]
"""Keys, times, columns."""


class ShardHost(JobVerbs, CallHost):
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
        self._cuts: dict[int, tuple[int, Snapshot]] = {}  # with the client that opened the cut
        # The first number is drawn, so that a number of an earlier life is no cut of this one.
        self._cut_numbers = itertools.count(secrets.randbits(40))
        self._jobs = ShardJobs(table.name)

    def _run(self, call: Call) -> Any:
        if call.verb == "open_cut":
            return self._open_cut(call.client, *call.arguments)
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
        """Stop the jobs and free the table. Closing twice is fine."""
        self._jobs.close()
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

    def release_client(self, client: int, *, is_gone: bool = False) -> None:
        """Close the cuts of a client, and drop the answers kept for it. Thread-safe."""
        super().release_client(client, is_gone=is_gone)
        for number, (owner, snapshot) in list(self._cuts.items()):
            if owner == client:
                self._jobs.forget([snapshot])
                snapshot.close(is_read=False)
                self._cuts.pop(number, None)

    def _open_cut(self, client: int, cursor: str | None) -> tuple[int, int, int, int, int] | None:
        """A number for the cut, and its facts; None where four are open."""
        cut = self.table._open_cut(cursor)
        if cut is None:
            return None
        number = next(self._cut_numbers)
        self._cuts[number] = client, Snapshot(self.table.config, cut, cursor)
        return number, cut.num_rows, cut.num_update_calls, cut.latest_time, cut.num_recorded

    def _do_cut_chunk(self, number: int, first: int, last: int, limit: int) -> PlainRows:
        snapshot = self._cut("cut_chunk", number)
        return plain_rows(snapshot._chunk(None, first, last, self._bounded(limit)))

    def _do_cut_changes(self, number: int) -> tuple[bool, torch.Tensor, torch.Tensor]:
        touched = self._cut("cut_changes", number).changes()
        return touched.full, touched.keys, touched.tombstones

    def _do_cut_entries(self, number: int, keys: torch.Tensor) -> tuple[torch.Tensor, PlainRows]:
        return plain_entries(self._cut("cut_entries", number).lookup_entry(keys))

    def _do_cut_lookup(self, number: int, keys: torch.Tensor, step: int) -> torch.Tensor:
        if number not in self._cuts:
            raise AbortedError(
                f"[ShardHost.cut_lookup] expected the number of an open cut, got {number}: the "
                f"server came back without the cut, or the cut was closed; cut again (table "
                f"{self.name!r})"
            )
        return self._cut("cut_lookup", number).lookup(keys, step=step)

    def _do_cut_candidates(self, number: int, partitions: list[int]) -> dict[str, torch.Tensor]:
        return self._cut("cut_candidates", number).export_candidates(partitions)

    def _do_release_cut(self, number: int, partitions: list[int]) -> None:
        self._cut("release_cut", number).release(partitions)

    def _do_close_cut(self, number: int, is_read: bool) -> None:
        snapshot = self._cut("close_cut", number)
        self._jobs.forget([snapshot])
        snapshot.close(is_read=is_read)
        self._cuts.pop(number, None)

    def _cut(self, verb: str, number: int) -> Snapshot:
        _, snapshot = self._cuts.get(number, (0, None))
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
        self._push_lock = threading.Lock()

    @property
    def is_closed(self) -> bool:
        """Whether a table of the group was closed, so that no call works any more."""
        return self.group.is_closed

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

    def _do_pull(
        self, keys: torch.Tensor, splits: torch.Tensor, initial: bool, transfer: str
    ) -> torch.Tensor:
        rows = self.group._pull(Ragged._unchecked(keys, splits), initial)
        return narrowed("[GroupHost.pull]", "rows", rows, TRANSFERS[transfer])

    def _do_push(
        self,
        keys: torch.Tensor,
        splits: torch.Tensor,
        grads: torch.Tensor,
        counts: torch.Tensor,
        is_stepped: torch.Tensor,
        times: torch.Tensor,
        rates: list[float],
        calls: torch.Tensor,
    ) -> tuple[int, ...]:
        push = Push(
            Ragged._unchecked(keys, splits), grads.float(), counts, is_stepped, times, rates
        )
        with self._push_lock:  # no other push comes between the number and the step
            for table, is_own, number in zip(
                self.group.tables.values(), is_stepped.tolist(), calls.tolist(), strict=True
            ):
                if is_own and number > table._update_calls():
                    table._set_update_calls(number)
            return tuple(self.group._push(push))

    def _do_memory_report(self) -> dict[str, dict[str, int]]:
        return {name: table._memory_report() for name, table in self.group.tables.items()}

    def _do_stats(self) -> dict[str, dict[str, int]]:
        return {name: table._stats() for name, table in self.group.tables.items()}

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


def narrowed(
    where: str, name: str, values: torch.Tensor, dtype: torch.dtype = torch.float16
) -> torch.Tensor:
    """Return the values in a narrower dtype; refuse numbers that the dtype cannot hold."""
    narrow = values.to(dtype)
    if dtype != values.dtype and not is_finite(narrow):
        lost = torch.isfinite(values) & torch.isinf(narrow)
        if bool(lost.any()):
            raise ValueError(
                f"{where} expected {name} in the range of {str(dtype)[6:]}, got "
                f"{values[lost][0].item():g}; transfer float32"
            )
    return narrow
