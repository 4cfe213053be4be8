"""Combine the rows of one feature in one example."""

from dataclasses import dataclass

import torch

from monolith.native_training.ops.layout_config import PoolingType
from monolith.native_training.ops.segment import (
    first_n,
    fused_value_rowids,
    reduce_mean,
    reduce_sum,
)
from monolith.ops import Ragged


class Combiner:
    """One of the classes below; `max_seq_length` is 0 unless rows are kept apart."""

    max_seq_length: int = 0

    def combine(self, ids: Ragged, rows: torch.Tensor) -> torch.Tensor:
        """Combine the rows of the ids of each example; differentiable.

        Args:
            ids: of each example.
            rows: of each id, (num_ids, dim).
        """
        raise NotImplementedError


@dataclass(frozen=True)
class ReduceSum(Combiner):
    """The sum of the rows.

    Example:
        >>> ids = Ragged.from_lists([[1], [2, 3]])
        >>> ReduceSum().combine(ids, torch.tensor([[1.0], [2.0], [3.0]])).tolist()
        [[1.0], [5.0]]
    """

    def combine(self, ids: Ragged, rows: torch.Tensor) -> torch.Tensor:
        """(batch, dim)."""
        return reduce_sum(fused_value_rowids(ids), rows, ids.num_rows)


@dataclass(frozen=True)
class ReduceMean(Combiner):
    """The mean of the rows; zeros where there are none."""

    def combine(self, ids: Ragged, rows: torch.Tensor) -> torch.Tensor:
        """(batch, dim)."""
        return reduce_mean(fused_value_rowids(ids), rows, ids.num_rows)


@dataclass(frozen=True)
class FirstN(Combiner):
    """The first rows, padded with zeros.

    Args:
        seq_length: how many.
    """

    seq_length: int

    def __post_init__(self) -> None:
        if self.seq_length <= 0:
            raise ValueError("seq_length must be greater than 0")

    @property
    def max_seq_length(self) -> int:  # type: ignore[override]
        """Return the number of rows that are kept."""
        return self.seq_length

    def combine(self, ids: Ragged, rows: torch.Tensor) -> torch.Tensor:
        """(batch, seq_length, dim)."""
        return first_n(ids.row_splits, rows, self.seq_length)


def pooling_of(combiner: Combiner) -> PoolingType:
    """The pooling of a layout; refuses combiners that a layout does not have."""
    kinds = {ReduceSum: PoolingType.SUM, ReduceMean: PoolingType.MEAN, FirstN: PoolingType.FIRSTN}
    for kind, pooling in kinds.items():
        if isinstance(combiner, kind):
            return pooling
    raise Exception("pooling_type error!")
