"""Cuts and the touched log of the reference table, as whole copies and sets of keys."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch

from monolith.table.rows import Entries, RowMemory, Rows
from monolith.table.snapshot import CutStorage

_ENTRY_BYTES = 8


class CutReads(NamedTuple):
    """Functions that read the copy of a cut.

    Attributes:
        export_chunk: returns rows in order: (first hash, last hash, limit).
        changes: returns the changes up to the cut.
        lookup_entry: returns the rows of keys.
        lookup: returns the weights of keys at a step.
        export_candidates: returns the candidates of partitions.
    """

    export_chunk: Callable[[int, int, int], Rows]
    changes: Callable[[], tuple[bool, torch.Tensor, torch.Tensor]]
    lookup_entry: Callable[[torch.Tensor], Entries]
    lookup: Callable[[torch.Tensor, int], torch.Tensor]
    export_candidates: Callable[[list[int]], dict[str, torch.Tensor]]


class ReferenceCut(CutStorage):
    """A copy of the table.

    Args:
        facts: rows, update calls and latest time at the cut.
        reads: functions that read the copy.
        on_close: function that is called once, at `close`, with its argument.
    """

    def __init__(
        self, facts: tuple[int, int, int], reads: CutReads, on_close: Callable[[bool], None]
    ) -> None:
        self.num_rows, self.num_update_calls, self.latest_time = facts
        self.num_recorded = 0
        self._reads = reads
        self._on_close = on_close

    def export_chunk(
        self, first: int, last: int, limit: int, memory: RowMemory | None = None
    ) -> Rows:
        """Return rows of the cut."""
        return self._reads.export_chunk(first, last, limit)

    def changes(self) -> tuple[bool, torch.Tensor, torch.Tensor]:
        """Return the changes up to the cut."""
        return self._reads.changes()

    def lookup_entry(self, keys: torch.Tensor, memory: RowMemory | None = None) -> Entries:
        """Return rows of the cut."""
        return self._reads.lookup_entry(keys)

    def lookup(self, keys: torch.Tensor, step: int) -> torch.Tensor:
        """Return weights of the cut."""
        return self._reads.lookup(keys, step)

    def export_candidates(self, partitions: list[int]) -> dict[str, torch.Tensor]:
        """Return candidates of the cut."""
        return self._reads.export_candidates(partitions)

    def release(self, partitions: list[int]) -> None:
        """Do nothing: the copy shares unchanged rows with the table."""

    def close(self, is_read: bool) -> None:
        """Close the cut."""
        self._on_close(is_read)


class ReferenceCursor:
    """Keys that changed since the last read of a cursor.

    Attributes:
        changed: changed keys; None means that the cursor must re-read the whole table.
        unread: an entry for each closed cut whose changes were not read, so that the next read is
            full. Threads append without the lock of the table.
    """

    def __init__(self) -> None:
        self.changed: set[int] | None = None
        self.unread: list[None] = []


class ReferenceRead:
    """Keys of one read of a cursor, which the log keeps for a cut.

    Attributes:
        cursor: the cursor.
        changed: changed keys; None means that the cursor must re-read the whole table.
        later: keys that changed since; these count for the bound of the log.
    """

    def __init__(self, cursor: ReferenceCursor, changed: set[int] | None) -> None:
        self.cursor = cursor
        self.changed = changed
        self.later: set[int] = set()


class ReferenceLog:
    """Changed keys of each cursor.

    Args:
        max_bytes: bound of 8 bytes per key; a cursor or a read with more keys is full.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_keys = max_bytes // _ENTRY_BYTES
        self.cursors: dict[str, ReferenceCursor] = {}
        self._kept: set[ReferenceRead] = set()  # of open cuts

    def note(self, keys: Iterable[int]) -> None:
        """Log keys that changed or were removed."""
        new_keys = list(keys)
        for cursor in self.cursors.values():
            if cursor.changed is not None:
                cursor.changed.update(new_keys)
                if len(cursor.changed) > self._max_keys:
                    cursor.changed = None
        for read in list(self._kept):
            read.later.update(new_keys)
            if read.changed and len(read.changed) + len(read.later) > self._max_keys:
                read.changed = None

    def read(self, cursor: str) -> set[int] | None:
        """Return the changes since the cursor's last read; None means the whole table."""
        reader = self.cursors.setdefault(cursor, ReferenceCursor())
        changed, reader.changed = reader.changed, set()
        while reader.unread:
            reader.unread.pop()
            changed = None
        return changed

    def keep_read(self, cursor: str) -> ReferenceRead:
        """Read the cursor for a cut; the log keeps the changes until `end_read`."""
        changed = self.read(cursor)
        read = ReferenceRead(self.cursors[cursor], changed)
        self._kept.add(read)
        return read

    def end_read(self, read: ReferenceRead, is_read: bool) -> None:
        """End a read; unless `is_read`, the next read of its cursor is full."""
        self._kept.discard(read)
        if not is_read:
            read.cursor.unread.append(None)

    def forget(self) -> None:
        """Mark the whole table as changed."""
        for cursor in self.cursors.values():
            cursor.changed = None
