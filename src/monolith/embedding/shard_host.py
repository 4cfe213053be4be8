"""The side of a shard: checks the calls that arrive and does them, each write once."""

import itertools
from typing import Any

import torch

from monolith.embedding.call_host import Call, CallHost
from monolith.embedding.calls import TableCalls
from monolith.embedding.cut import Snapshot
from monolith.embedding.host_arguments import MAX_MESSAGE_BYTES, HostFacts
from monolith.embedding.host_verbs import SHARD_VERBS
from monolith.embedding.routing import Placement
from monolith.embedding.rows import Rows
from monolith.embedding.waits import WAIT_SECONDS
from monolith.errors import FailedPreconditionError, InvalidArgumentError

__all__ = ["Call", "PlainRows", "ShardHost", "plain_rows"]

PlainRows = tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]
"""Keys, times, columns."""


class ShardHost(CallHost):
    """A table that is a shard, behind calls. Any thread may call at any time.

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
        super().__init__(facts, SHARD_VERBS, timeout_seconds)
        self.table, self.device, self._placement = table, device, placement
        self._cuts: dict[int, Snapshot] = {}
        self._cut_numbers = itertools.count()

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
        """Free the table. Closing twice is fine."""
        self.table.close()

    # Verbs whose arguments or results are not plain on a table.

    def _do_close(self) -> None:
        self.close()

    def _do_lookup_entry(self, keys: torch.Tensor) -> tuple[torch.Tensor, PlainRows]:
        entries = self.table._lookup_entry(keys)
        return entries.present, plain_rows(entries.rows)

    def _do_export_chunk(self, first: int, last: int, limit: int) -> PlainRows:
        return plain_rows(self.table._export_chunk(first, last, self._bounded(limit)))

    def _bounded(self, limit: int) -> int:
        """Rows of a chunk: the answer is a message, too, and may be shorter than what is asked."""
        return min(limit, self._facts.max_keys)

    def _do_import_rows(self, rows: PlainRows, absent: torch.Tensor | None, threads: int) -> None:
        self.table._import_rows(Rows(*rows), absent, threads)

    def _do_open_cut(self) -> tuple[int, int, int, int, int] | None:
        """A number for the cut, and its facts; None where four are open."""
        cut = self.table._open_cut()
        if cut is None:
            return None
        number = next(self._cut_numbers)
        self._cuts[number] = Snapshot(self.table.config, cut)
        return number, cut.num_rows, cut.num_update_calls, cut.latest_time, cut.num_recorded

    def _do_cut_chunk(self, number: int, first: int, last: int, limit: int) -> PlainRows:
        snapshot = self._cut("cut_chunk", number)
        return plain_rows(snapshot._chunk(None, first, last, self._bounded(limit)))

    def _do_cut_candidates(self, number: int, partitions: list[int]) -> dict[str, torch.Tensor]:
        return self._cut("cut_candidates", number).export_candidates(partitions)

    def _do_release_cut(self, number: int, partitions: list[int]) -> None:
        self._cut("release_cut", number).release(partitions)

    def _do_close_cut(self, number: int) -> None:
        self._cut("close_cut", number).close()
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
