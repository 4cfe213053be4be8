"""Columns of a block as numpy arrays, with what operations ask of the ids of each sample."""

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
_MAX_TABLE = 4096  # ids that are close together are looked up in a table


def column_of(where: str, block: pa.RecordBatch, name: str) -> pa.Array:
    """A column by its name.

    Raises:
        ValueError: there is none.
    """
    if name not in block.schema.names:
        raise ValueError(f"{where} expected a column {name!r}, got {block.schema.names}")
    return block.column(name)


def floats_of(where: str, block: pa.RecordBatch, name: str) -> Floats:
    """A copy of a column of numbers, (n, width); width 1 where it holds single numbers.

    Raises:
        ValueError: there is no such column.
        TypeError: it does not hold float32.
    """
    array = column_of(where, block, name)
    values = array.flatten() if isinstance(array, pa.FixedSizeListArray) else array
    if values.type != pa.float32():
        raise TypeError(f"{where} expected column {name!r} of float32, got type {array.type}")
    floats: Floats = values.to_numpy().reshape(len(array), -1).copy()
    return floats


def set_column(block: pa.RecordBatch, name: str, values: pa.Array | Floats) -> pa.RecordBatch:
    """The block with a column replaced, or appended; numpy of (n, width) becomes lists."""
    if isinstance(values, np.ndarray):
        flat = pa.array(values.reshape(-1))
        is_wide = values.ndim == 2
        values = pa.FixedSizeListArray.from_arrays(flat, values.shape[1]) if is_wide else flat
    at = block.schema.get_field_index(name)
    return block.append_column(name, values) if at < 0 else block.set_column(at, name, values)


def signed(fids: Sequence[int]) -> list[int]:
    """Fids are unsigned where people write them, and int64 with the same bits in blocks.

    Example:
        >>> signed([7, 2**64 - 1])
        [7, -1]
    """
    return [fid - (1 << 64) if fid >= 1 << 63 else fid for fid in fids]


def as_tensor(ids: Ids) -> torch.Tensor:
    """A tensor of ids; a copy, as arrays of Arrow must not be written to."""
    return torch.from_numpy(ids.copy())


def positions_in(values: Ids, known: Sequence[int], missing: int = -1) -> Ids:
    """Where each value stands in `known`; `missing` for those that are not there.

    Example:
        >>> positions_in(np.array([7, 9, 7]), [9, 8])
        array([-1,  0, -1])
    """
    if not known:
        return np.full(len(values), missing)
    low, span = min(known), max(known) - min(known) + 1
    places: Ids
    if span > _MAX_TABLE:
        found = pc.index_in(pa.array(values), value_set=pa.array(known, pa.int64()))
        places = found.fill_null(missing).to_numpy().astype(np.int64)
        return places
    table = np.full(span + 1, missing)  # one more for all that is outside
    for place in reversed(range(len(known))):
        table[known[place] - low] = place
    offsets = (values - low).view(np.uint64)  # what is below is large
    places = table.take(np.minimum(offsets, np.uint64(span)).view(np.int64), mode="clip")
    return places


@dataclass(frozen=True)
class Rows:
    """Ids of samples, side by side.

    actions   [[1, 2], [], [3]]
    values    [1, 2, 3]
    lengths   [2, 0, 1]          # None: one id for each sample
    """

    values: Ids
    lengths: Ids | None

    @classmethod
    def of(cls, where: str, block: pa.RecordBatch, name: str) -> "Rows":
        """The ids of a column.

        Raises:
            ValueError: there is no such column.
            TypeError: it does not hold ids.
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
        """A column again."""
        if self.lengths is None:
            return pa.array(self.values)
        splits = np.concatenate([np.zeros(1, np.int32), np.cumsum(self.lengths, dtype=np.int32)])
        return pa.ListArray.from_arrays(pa.array(splits), pa.array(self.values))

    @cached_property
    def samples(self) -> Ids:
        """The number of the sample of each value."""
        numbers = np.arange(len(self))
        return numbers if self.lengths is None else np.repeat(numbers, self.lengths)

    def is_empty(self) -> Mask:
        """Which samples have no id."""
        return np.zeros(len(self), np.bool_) if self.lengths is None else self.lengths == 0

    def any(self, mask: Mask) -> Mask:
        """Which samples have a value of the mask."""
        if self.lengths is None:
            return mask
        has = np.zeros(len(self), np.bool_)
        has[self.samples[np.flatnonzero(mask)]] = True
        return has

    def reduce(self, operation: np.ufunc, values: Ids, start: int) -> Ids:
        """A ufunc over `start` and the values of each sample."""
        reduced = np.full(len(self), start, np.int64)
        operation.at(reduced, self.samples, values)
        return reduced

    def first(self) -> Ids:
        """The first id of each sample; 0 for those without."""
        if self.lengths is None:
            return self.values
        begins = np.cumsum(self.lengths) - self.lengths
        found: Ids = np.append(self.values, 0)[begins] * (self.lengths > 0)
        return found

    def best(self, priority: Sequence[int]) -> Ids:
        """Where the best id of each sample stands in a list, the best first; else its length."""
        places = positions_in(self.values, priority, len(priority))
        return places if self.lengths is None else self.reduce(np.minimum, places, len(priority))

    def best_or_first(self, priority: Sequence[int]) -> Ids:
        """The best id of each sample, or its first where none is listed; 0 of no ids."""
        best = self.best(priority)
        if not priority:
            return self.first()
        return np.where(best < len(priority), np.array([*priority, 0])[best], self.first())
