"""Cuts of the native table."""

from collections.abc import Callable

import torch

import monolith._native as _native
from monolith.embedding.cut import CutStorage
from monolith.embedding.rows import RowMemory, Rows

__all__ = ["NativeCut"]

_Chunk = Callable[[int, int, int, _native.Cut, RowMemory | None], Rows]
_Candidates = Callable[[list[int], _native.Cut], dict[str, torch.Tensor]]


class NativeCut(CutStorage):
    """A cut of the core.

    Args:
        core: the table; lives as long as its cuts.
        cut: its cut.
        export_chunk: rows of a cut.
        export_candidates: candidates of a cut.
    """

    def __init__(
        self,
        core: _native.Table,
        cut: _native.Cut,
        export_chunk: _Chunk,
        export_candidates: _Candidates,
    ) -> None:
        self.num_rows = cut.num_rows
        self.num_update_calls = cut.num_update_calls
        self.latest_time = cut.latest_time
        self.num_recorded = cut.num_recorded
        self._core, self._cut = core, cut
        self._export_chunk, self._export_candidates = export_chunk, export_candidates

    def export_chunk(
        self, first: int, last: int, limit: int, memory: RowMemory | None = None
    ) -> Rows:
        """Rows of the cut."""
        return self._export_chunk(first, last, limit, self._cut, memory)

    def export_candidates(self, partitions: list[int]) -> dict[str, torch.Tensor]:
        """Candidates of the cut."""
        return self._export_candidates(partitions, self._cut)

    def release(self, partitions: list[int]) -> None:
        """Forget these partitions."""
        for partition in partitions:
            self._cut.release(partition)

    def close(self) -> None:
        """End the cut."""
        self._core.close_cut(self._cut)
