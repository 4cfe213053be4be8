"""Hold rows of rows of different lengths."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.utils import _pytree as pytree

from monolith.native_training.ops.tensor_checks import host_int64
from monolith.ops.ragged import Ragged, as_index, check_splits


@dataclass(frozen=True, slots=True, eq=False)
class NestedRagged:
    """Ragged data whose values are rows themselves; checked and shared as in `Ragged`.

        rows        [[[7, 8], []], [[9]]]

        values       [7, 8]  [] | [9]      # Ragged of all inner rows
        row_splits  0            2    3    # (num_rows + 1,)

    Args:
        values: the inner rows.
        row_splits: begins with 0, never decreases, ends with the number of inner rows; int64, or
            int32, which is widened; (num_rows + 1,).

    Raises:
        TypeError: `values` are no `Ragged`, or `row_splits` are of another dtype.
        ValueError: the shape, the device or the contents of `row_splits` are wrong.

    Example:
        >>> NestedRagged.from_lists([[[7, 8], []], [[9]]]).to_lists()
        [[[7, 8], []], [[9]]]
    """

    values: Ragged
    row_splits: torch.Tensor

    def __post_init__(self) -> None:
        where, name = "[NestedRagged]", "row_splits"
        if not isinstance(self.values, Ragged):
            raise TypeError(f"{where} expected values as Ragged, got {type(self.values).__name__}")
        splits = as_index(where, name, self.values.values, self.row_splits)
        check_splits(where, name, splits, self.values.num_rows)
        object.__setattr__(self, "row_splits", splits)

    @classmethod
    def from_lists(
        cls, rows: Iterable[Sequence[Sequence[Any]]], *, dtype: torch.dtype = torch.int64
    ) -> "NestedRagged":
        """Copy Python lists, as `Ragged.from_lists` does with the inner ones."""
        inner: list[Sequence[Any]] = []
        splits = [0]
        for row in rows:
            inner.extend(row)
            splits.append(len(inner))
        return cls._unchecked(Ragged.from_lists(inner, dtype=dtype), host_int64(splits))

    @classmethod
    def _unchecked(cls, values: Any, row_splits: Any) -> "NestedRagged":
        ragged = object.__new__(cls)
        object.__setattr__(ragged, "values", values)
        object.__setattr__(ragged, "row_splits", row_splits)
        return ragged

    def __len__(self) -> int:
        return self.num_rows

    def __reduce__(self) -> tuple[Any, ...]:
        return NestedRagged, (self.values, self.row_splits)

    @property
    def num_rows(self) -> int:
        """Number of outer rows, empty ones too."""
        return self.row_splits.shape[0] - 1

    def to_lists(self) -> list[list[list[Any]]]:
        """Copy the rows to Python lists."""
        rows = self.values.to_lists()
        return [rows[begin:end] for begin, end in pairwise(self.row_splits.tolist())]


def maybe_squeeze_3d_tensor(x: Ragged | NestedRagged) -> Ragged:
    """Ragged data of rank 2 as it is; of rank 3, without its axis 1, which has length 1.

    Rank counts every axis: `Ragged` has one more than its values, `NestedRagged` two. Nothing is
    copied, and gradients pass. Under `torch.compile` the lengths in axis 1 are not checked.

    Args:
        x: `Ragged` of values with 1 dimension, or `NestedRagged` of them with one row in each row.

    Raises:
        ValueError: the argument is not ragged, has another rank, or axis 1 is longer or shorter.

    Example:
        >>> maybe_squeeze_3d_tensor(NestedRagged.from_lists([[[0, 1]], [[2]]])).to_lists()
        [[0, 1], [2]]
    """
    if not isinstance(x, Ragged | NestedRagged):
        raise ValueError("input must be RaggedTensor")
    values = x.values.values if isinstance(x, NestedRagged) else x.values
    rank = values.dim() + (2 if isinstance(x, NestedRagged) else 1)
    if rank not in (2, 3):
        raise ValueError("Unknown shape of RaggedTensor. ", x)
    if rank == 2 and isinstance(x, Ragged):
        return x
    if isinstance(x, Ragged):
        raise ValueError(
            f"[maybe_squeeze_3d_tensor] expected axis 1 of length 1, got rows of different lengths "
            f"of values of shape {tuple(values.shape)}; it is the ragged axis"
        )
    if not _has_one_each(x):
        raise ValueError(
            f"[maybe_squeeze_3d_tensor] expected one row in each of the {x.num_rows} rows, "
            f"got {x.values.num_rows} in all, of which some row has another number"
        )
    return x.values


def _has_one_each(x: NestedRagged) -> bool:
    if x.num_rows != x.values.num_rows:
        return False
    if torch.compiler.is_compiling() or x.row_splits.is_meta:
        return True
    return bool((x.row_splits.diff() == 1).all())


pytree.register_pytree_node(
    NestedRagged,
    lambda ragged: ([ragged.values, ragged.row_splits], None),
    lambda leaves, _: NestedRagged._unchecked(*leaves),
    serialized_type_name="monolith.ops.NestedRagged",
)
