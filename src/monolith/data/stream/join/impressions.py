"""`Impressions`: the impressions whose keys are remembered, column by column."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from monolith.data.operations.sample_rows import Ids, Mask
from monolith.data.stream.join.key_index import KeyIndex

_TYPES = (
    ("key", np.int64),
    ("time", np.int64),
    ("kinds", np.int64),
    ("is_open", np.bool_),
    ("page", np.int64),
    ("row", np.int64),
)
_LEAST_FORGOTTEN = 65_536  # impressions that are forgotten together


class Impressions:
    """Open impressions, and keys of impressions whose samples left. Not thread-safe.

    An impression is named by its position in the columns until `forget`.

    Attributes:
        key: key of each impression.
        time: event time of each impression.
        kinds: bits of the kinds of its actions.
        is_open: whether its sample has not left.
        page: number of the page with its features.
        row: row in the page.
    """

    key: Ids
    time: Ids
    kinds: Ids
    is_open: Mask
    page: Ids
    row: Ids

    def __init__(self) -> None:
        self._count = 0
        self._columns: dict[str, npt.NDArray[np.generic]] = {
            name: np.empty(0, kind) for name, kind in _TYPES
        }
        self._index = KeyIndex()
        self._checked = 0  # number of impressions when those to forget were counted
        self._show(0)

    def __len__(self) -> int:
        return self._count

    def _show(self, count: int) -> None:
        self._count = count
        for name, column in self._columns.items():
            setattr(self, name, column[:count])

    def find(self, keys: Ids) -> Ids:
        """Return the newest impression of each key, or -1."""
        return self._index.find(keys)

    def add(self, keys: Ids, times: Ids, page: int, rows: Ids) -> Ids:
        """Add open impressions without actions, and return their positions."""
        first, count = self._count, self._count + len(keys)
        if count > len(self._columns["key"]):
            capacity = max(1024, count + count // 2)
            for name, column in self._columns.items():
                larger = np.empty(capacity, column.dtype)
                larger[:first] = column[:first]
                self._columns[name] = larger
        self._show(count)
        self.key[first:], self.time[first:], self.row[first:] = keys, times, rows
        self.kinds[first:], self.is_open[first:], self.page[first:] = 0, True, page
        positions = np.arange(first, count)
        self._index.add(keys, positions)
        return positions

    def closing(self, before: int) -> Ids:
        """Return the open impressions with a time less than `before`."""
        positions: Ids = np.flatnonzero((self.time < before) & self.is_open)
        return positions

    def forget(self, before: int) -> None:
        """Forget impressions with a time less than `before`, if they are many; positions change."""
        if self._count - self._checked < _LEAST_FORGOTTEN // 4:
            return  # few were added since the last count, which is slow
        self._checked = self._count
        num_old = int(np.count_nonzero(self.time < before))
        if num_old < max(_LEAST_FORGOTTEN, self._count // 3):
            return
        keep = self.time >= before
        self._restore({name: column[: self._count][keep] for name, column in self._columns.items()})

    def _restore(self, columns: dict[str, npt.NDArray[np.generic]]) -> None:
        self._columns = columns
        self._index = KeyIndex()
        self._checked = len(columns["key"])
        self._show(self._checked)
        self._index.add(self.key, np.arange(self._count))

    def to_arrow(self) -> pa.RecordBatch:
        """Return all columns."""
        return pa.record_batch({name: pa.array(getattr(self, name)) for name, _ in _TYPES})

    @classmethod
    def from_arrow(cls, block: pa.RecordBatch) -> "Impressions":
        """Return impressions with the columns of `to_arrow`."""
        impressions = cls()
        impressions._restore(
            {name: block.column(name).to_numpy(zero_copy_only=False).copy() for name, _ in _TYPES}
        )
        return impressions
