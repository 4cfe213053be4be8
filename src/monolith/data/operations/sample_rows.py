"""Columns of a block as numpy arrays, and tests of the ids of each sample."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]
_MAX_TABLE = 4096  # largest range of ids that is searched by a table


def column_of(where: str, block: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column by its name.

    Raises:
        ValueError: there is no such column.
    """
    if name not in block.schema.names:
        raise ValueError(f"{where} expected a column {name!r}, got {block.schema.names}")
    return block.column(name)


def floats_of(where: str, block: pa.RecordBatch, name: str) -> Floats:
    """Return a copy of a column of numbers, (n, width), with width 1 for single numbers.

    Raises:
        ValueError: there is no such column.
        TypeError: the column is not of float32.
    """
    array = column_of(where, block, name)
    values = array.flatten() if isinstance(array, pa.FixedSizeListArray) else array
    if values.type != pa.float32():
        raise TypeError(f"{where} expected column {name!r} of float32, got type {array.type}")
    floats: Floats = values.to_numpy().reshape(len(array), -1).copy()
    return floats


def set_column(block: pa.RecordBatch, name: str, values: pa.Array | Floats) -> pa.RecordBatch:
    """Return the block with a new or replaced column; an array of (n, width) becomes lists."""
    if isinstance(values, np.ndarray):
        flat = pa.array(values.reshape(-1))
        is_wide = values.ndim == 2
        values = pa.FixedSizeListArray.from_arrays(flat, values.shape[1]) if is_wide else flat
    at = block.schema.get_field_index(name)
    return block.append_column(name, values) if at < 0 else block.set_column(at, name, values)


def signed(fids: Sequence[int]) -> list[int]:
    """Return int64 fids for fids that may be written as unsigned numbers.

    Example:
        >>> signed([7, 2**64 - 1])
        [7, -1]
    """
    return [fid - (1 << 64) if fid >= 1 << 63 else fid for fid in fids]


def as_tensor(ids: Ids) -> torch.Tensor:
    """Return a tensor with a copy of ids, because arrays of Arrow must not be written."""
    return torch.from_numpy(ids.copy())


def positions_in(values: Ids, known: Sequence[int], missing: int = -1) -> Ids:
    """Return the position of each value in `known`, or `missing`.

    Example:
        >>> positions_in(np.array([7, 9, 7]), [9, 8])
        array([-1,  0, -1])
    """
    if not known:
        return np.full(len(values), missing)
    low, span = min(known), max(known) - min(known) + 1
    places: Ids
    if span > _MAX_TABLE:
        indices = pc.index_in(pa.array(values), value_set=pa.array(known, pa.int64()))
        places = indices.fill_null(missing).to_numpy().astype(np.int64)
        return places
    table = np.full(span + 1, missing)  # the last entry is for values outside the range
    for place in reversed(range(len(known))):
        table[known[place] - low] = place
    offsets = (values - low).view(np.uint64)  # values below `low` become large
    places = table.take(np.minimum(offsets, np.uint64(span)).view(np.int64), mode="clip")
    return places


@dataclass(frozen=True)
class Rows:
    """Ids of samples as values and lengths.

    actions   [[1, 2], [], [3]]
    values    [1, 2, 3]
    lengths   [2, 0, 1]          # None: one id for each sample
    """

    values: Ids
    lengths: Ids | None

    @classmethod
    def of(cls, where: str, block: pa.RecordBatch, name: str) -> "Rows":
        """Return the ids of a column.

        Raises:
            ValueError: there is no such column.
            TypeError: the column has no ids.
        """
        array = column_of(where, block, name)
        if array.type == pa.int64():
            return cls(array.to_numpy(), None)
        if not pa.types.is_list(array.type) or array.type.value_type != pa.int64():
            raise TypeError(f"{where} expected column {name!r} of ids, got type {array.type}")
        return cls(array.flatten().to_numpy(), array.value_lengths().to_numpy().astype(np.int64))

    def __len__(self) -> int:
        return len(self.values if self.lengths is None else self.lengths)

    def to_arrow(self) -> pa.Array:
        """Return the ids as a column."""
        if self.lengths is None:
            return pa.array(self.values)
        splits = np.concatenate([np.zeros(1, np.int32), np.cumsum(self.lengths, dtype=np.int32)])
        return pa.ListArray.from_arrays(pa.array(splits), pa.array(self.values))

    @cached_property
    def samples(self) -> Ids:
        """Return the sample number of each value."""
        numbers = np.arange(len(self))
        return numbers if self.lengths is None else np.repeat(numbers, self.lengths)

    def is_empty(self) -> Mask:
        """Return whether each sample has no id."""
        return np.zeros(len(self), np.bool_) if self.lengths is None else self.lengths == 0

    def any(self, mask: Mask) -> Mask:
        """Return whether each sample has a value that is set in the mask."""
        if self.lengths is None:
            return mask
        has = np.zeros(len(self), np.bool_)
        has[self.samples[np.flatnonzero(mask)]] = True
        return has

    def reduce(self, operation: np.ufunc, values: Ids, start: int) -> Ids:
        """Apply a ufunc to `start` and the values of each sample."""
        reduced = np.full(len(self), start, np.int64)
        operation.at(reduced, self.samples, values)
        return reduced

    def first(self) -> Ids:
        """Return the first id of each sample, or 0 without ids."""
        if self.lengths is None:
            return self.values
        begins = np.cumsum(self.lengths) - self.lengths
        ids: Ids = np.append(self.values, 0)[begins] * (self.lengths > 0)
        return ids

    def best(self, priority: Sequence[int]) -> Ids:
        """Return the place of each sample's best id in a list, else the length of the list."""
        places = positions_in(self.values, priority, len(priority))
        return places if self.lengths is None else self.reduce(np.minimum, places, len(priority))

    def best_or_first(self, priority: Sequence[int]) -> Ids:
        """Return the best id of each sample, or its first if none is listed, or 0 without ids."""
        best = self.best(priority)
        if not priority:
            return self.first()
        return np.where(best < len(priority), np.array([*priority, 0])[best], self.first())
