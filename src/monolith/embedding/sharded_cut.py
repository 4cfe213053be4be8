"""A cut of a sharded table: a cut of every shard, all of one moment."""

from collections.abc import Callable
from typing import Any

import torch

from monolith.embedding.cut import CutStorage
from monolith.embedding.rows import RowMemory, Rows

__all__ = ["ShardedCut"]

Ask = Callable[[str, list[tuple[Any, ...]]], list[Any]]
"""(verb, arguments of each shard) -> answers."""


class ShardedCut(CutStorage):
    """The cuts of the shards as one.

    Args:
        facts: number and facts of each shard's cut, as `ShardHost` gives them.
        ask: calls the shards.
        chunk: rows in order over the shards: (verb, number of each cut, first, last, limit).
        candidates: candidates in order over the shards: (verb, number of each cut, partitions).

    Attributes:
        shards_recorded: events of each shard's record at the cut.
    """

    def __init__(
        self,
        facts: list[tuple[int, int, int, int, int]],
        ask: Ask,
        chunk: Callable[[str, list[int], int, int, int], Rows],
        candidates: Callable[[str, list[int], list[int]], dict[str, torch.Tensor]],
    ) -> None:
        numbers, num_rows, calls, times, recorded = (
            list(fact) for fact in zip(*facts, strict=True)
        )
        self.num_rows, self.num_recorded = sum(num_rows), sum(recorded)
        self.shards_recorded = recorded
        self.num_update_calls, self.latest_time = max(calls), max(times)
        self._numbers = numbers
        self._ask, self._chunk, self._candidates = ask, chunk, candidates

    def export_chunk(
        self, first: int, last: int, limit: int, memory: RowMemory | None = None
    ) -> Rows:
        """Rows of the cut."""
        return self._chunk("cut_chunk", self._numbers, first, last, limit)

    def export_candidates(self, partitions: list[int]) -> dict[str, torch.Tensor]:
        """Candidates of the cut."""
        return self._candidates("cut_candidates", self._numbers, partitions)

    def release(self, partitions: list[int]) -> None:
        """Forget these partitions."""
        self._ask("release_cut", [(number, partitions) for number in self._numbers])

    def close(self) -> None:
        """End the cuts."""
        self._ask("close_cut", [(number,) for number in self._numbers])
