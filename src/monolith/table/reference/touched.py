"""Cuts and the touched log of the reference table, as whole copies and sets of keys."""

from collections.abc import Callable, Iterable

import torch

from monolith.table.rows import RowMemory, Rows
from monolith.table.snapshot import CutStorage

_ENTRY_BYTES = 8


class ReferenceCut(CutStorage):
    """A copy of the table.

    Args:
        facts: rows, update calls and latest time at the cut.
        export_chunk: function that returns rows of the copy.
        export_candidates: function that returns candidates of the copy.
        on_close: function that is called once, at `close`.
    """

    def __init__(
        self,
        facts: tuple[int, int, int],
        export_chunk: Callable[[int, int, int], Rows],
        export_candidates: Callable[[list[int]], dict[str, torch.Tensor]],
        on_close: Callable[[], None],
    ) -> None:
        self.num_rows, self.num_update_calls, self.latest_time = facts
        self.num_recorded = 0
        self._export_chunk = export_chunk
        self._export_candidates = export_candidates
        self._on_close = on_close

    def export_chunk(
        self, first: int, last: int, limit: int, memory: RowMemory | None = None
    ) -> Rows:
        """Return rows of the cut."""
        return self._export_chunk(first, last, limit)

    def export_candidates(self, partitions: list[int]) -> dict[str, torch.Tensor]:
        """Return candidates of the cut."""
        return self._export_candidates(partitions)

    def release(self, partitions: list[int]) -> None:
        """Do nothing: the copy shares unchanged rows with the table."""

    def close(self) -> None:
        """Close the cut."""
        self._on_close()


class ReferenceLog:
    """Changed keys of each cursor; None means that the cursor must re-read the whole table.

    Args:
        max_bytes: bound of 8 bytes per key; a cursor with more keys starts anew.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_keys = max_bytes // _ENTRY_BYTES
        self.cursors: dict[str, set[int] | None] = {}

    def note(self, keys: Iterable[int]) -> None:
        """Log keys that changed or were removed."""
        new_keys = list(keys)
        for cursor, changed in self.cursors.items():
            if changed is not None:
                changed.update(new_keys)
                if len(changed) > self._max_keys:
                    self.cursors[cursor] = None

    def read(self, cursor: str) -> set[int] | None:
        """Return the changes since the cursor's last read; None means the whole table."""
        changed = self.cursors.get(cursor)
        self.cursors[cursor] = set()
        return changed

    def forget(self) -> None:
        """Mark the whole table as changed."""
        for cursor in self.cursors:
            self.cursors[cursor] = None
