"""What a task's `loss` gets of a batch: embeddings and dense columns."""

from collections.abc import Iterable, Mapping

import torch

from monolith.data import Batch
from monolith.nn import Embedded

__all__ = ["Inputs", "dense_matrix"]


class Inputs:
    """Embeddings and dense columns of a batch.

    Attributes:
        pooled: feature -> float32 (batch, dim); (batch, max_length, dim) with combiner "first".
            `pooled.joined` has all features side by side, (batch, width), without a copy.
        dense: float32 (batch, num_columns), the task's dense columns side by side; without any,
            of width 0.
    """

    def __init__(self, pooled: Embedded, dense: torch.Tensor) -> None:
        self.pooled = pooled
        self.dense = dense


def dense_matrix(batch: Batch, names: Iterable[str]) -> torch.Tensor:
    """The columns side by side, float32 (batch, num_columns).

    Raises:
        ValueError: the batch has no such column.
    """
    columns = [_column(batch.dense, name) for name in names]
    if not columns:
        return torch.empty(len(batch), 0)
    return columns[0] if len(columns) == 1 else torch.cat(columns, 1)


def _column(dense: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    if name not in dense:
        raise ValueError(
            f"[Task.dense] expected column {name!r} in the batch, got {', '.join(dense) or 'none'}"
        )
    column = dense[name]
    return column.unsqueeze(1) if column.dim() == 1 else column
