"""Pool of the items of recent samples, from which negatives are drawn."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import compress, count, repeat
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from monolith.data.operations.sample_rows import Ids, Mask
from monolith.data.stages import concat
from monolith.errors import DataLossError, NotFoundError

_NEVER = -(1 << 62)  # number of an item that was never stored
_MIN_SPARE = 1 << 14  # number of unused rows before the store is packed
_COLUMNS = MappingProxyType(
    {
        "__channel__": "channel",
        "__item__": "item",
        "__origin_cnt__": "num_seen",
        "__sample_cnt__": "num_drawn",
    }
)
_ROW = np.dtype([(name, np.int64) for name in (*_COLUMNS.values(), "number")])
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Moment:
    """States of the pool after each of some samples.

    Args:
        channel: place of the channel of each sample; -1 for a channel without items.
        num_stored: number of items that the channel had ever stored.
        stored: whether each sample stored an item.
        before: number of items that every channel had stored before the first sample.
    """

    channel: Ids
    num_stored: Ids
    stored: Mask
    before: Ids

    def of_all_channels(self, samples: Ids) -> Ids:
        """Return the items that every channel had stored after samples, (samples, channels)."""
        is_of = self.channel[:, None] == np.arange(len(self.before))
        sums: Ids = np.cumsum(is_of & self.stored[:, None], axis=0)
        return self.before + sums[samples]


@dataclass(frozen=True, slots=True)
class Draw:
    """Result of a draw of items.

    Args:
        rows: rows of the items, for `ItemPool.features`.
        time_factor: (place + 1) / size of the pool: close to 1 for new items.
        freq_factor: 1 / number of draws of the item, with this draw.
    """

    rows: Ids
    time_factor: _Floats
    freq_factor: _Floats


class _Channel:
    """Rows of the items of a channel, in order; the last `max_items` of them are alive."""

    def __init__(self, channel: int) -> None:
        self.id = channel
        self.rows = np.zeros(0, np.int64)
        self.first = 0  # number of the item of rows[0]

    @property
    def num_stored(self) -> int:
        return self.first + len(self.rows)

    def drop_old(self, max_items: int) -> None:
        num_old = max(0, len(self.rows) - max_items)
        self.rows, self.first = self.rows[num_old:], self.first + num_old


class ItemPool:
    """Pool of the last `max_items` different items of each channel, with their features.

    A repeated item keeps its place and its first features. If there are too many items, the oldest
    is removed, with its counts. Not thread-safe.

    Args:
        max_items: largest number of items of a channel, at least 1.
        start_items: number of items that a channel must exceed before a draw.

    Example:
        >>> pool = ItemPool(start_items=0)
        >>> items = np.array([7, 8, 7])
        >>> block = pa.record_batch({"item": pa.array(items)})
        >>> moment = pool.take_in(np.full(3, 3), items, np.ones(3, np.bool_), block)
        >>> moment.num_stored.tolist(), len(pool)
        ([1, 2, 2], 2)
    """

    def __init__(self, max_items: int = 100_000, start_items: int = 500) -> None:
        if max_items < 1:
            raise ValueError(f"[ItemPool] expected max_items of at least 1, got {max_items}")
        self.max_items, self.start_items = max_items, start_items
        self._channels: list[_Channel] = []
        self._place: dict[int, int] = {}  # place of each channel
        self._latest: dict[tuple[int, int], int] = {}  # (channel, item) -> newest row of the item
        self._rows = np.zeros(0, _ROW)  # with spare capacity
        self._num_rows = 0
        self._features: list[pa.RecordBatch] = []  # features of the rows

    def __len__(self) -> int:
        return sum(min(len(channel.rows), self.max_items) for channel in self._channels)

    def take_in(
        self, channels: Ids, items: Ids, is_stored: Mask, features: pa.RecordBatch
    ) -> Moment:
        """Store the items of samples in order.

        Args:
            channels: channel of each sample.
            items: item of each sample.
            is_stored: whether the item of each sample is stored.
            features: columns that a negative takes from the item, for each sample.

        Raises:
            ValueError: there are more samples than `max_items`.
        """
        if len(items) > self.max_items:
            raise ValueError(
                f"[ItemPool.take_in] expected at most {self.max_items} samples, got {len(items)}"
            )
        self._pack()
        place = self._places(channels, is_stored)
        before = np.array([channel.num_stored for channel in self._channels], np.int64)
        at = np.flatnonzero(is_stored)
        keys = list(zip(channels[at].tolist(), items[at].tolist(), strict=True))
        old_row = np.fromiter(map(self._latest.get, keys, repeat(-1)), np.int64, len(keys))
        old_number = np.full(len(keys), _NEVER)
        old_number[old_row >= 0] = self._rows["number"][old_row[old_row >= 0]]
        first_samples: dict[tuple[int, int], int] = {}
        same = np.fromiter(map(first_samples.setdefault, keys, count()), np.int64, len(keys))
        is_new = self._find_new(place[at], np.append(before, 0)[place[at]], old_number, same)
        rows = self._append(channels[at[is_new]], items[at[is_new]], features, at[is_new])
        self._latest.update(zip(compress(keys, is_new.tolist()), rows.tolist(), strict=True))
        self._count(old_row, same, is_new, rows)
        for where in np.unique(place[at[is_new]]):
            channel, is_channel = self._channels[where], place[at[is_new]] == where
            numbers = channel.num_stored + np.arange(is_channel.sum())
            self._rows["number"][rows[is_channel]] = numbers
            channel.rows = np.concatenate([channel.rows, rows[is_channel]])
        stored = np.zeros(len(items), np.bool_)
        stored[at[is_new]] = True
        num_stored = np.append(before, 0)[place] + _sums_before(place, stored) + stored
        return Moment(place, num_stored, stored, before)

    def _places(self, channels: Ids, is_stored: Mask) -> Ids:
        known, inverse = np.unique(channels, return_inverse=True)
        for channel in dict.fromkeys(channels[is_stored].tolist()):
            if channel not in self._place:
                self._place[channel] = len(self._channels)
                self._channels.append(_Channel(channel))
        places = np.array([self._place.get(number, -1) for number in known.tolist()], np.int64)
        return places[inverse]

    def _find_new(self, place: Ids, before: Ids, old_number: Ids, same: Ids) -> Mask:
        """Return which samples store an item because it was never stored, or is removed by then.

        Removals depend on earlier stores, so the rule is repeated until the result is stable: each
        round fixes at least one more sample, from the first on.
        """
        is_new = np.zeros(len(place), np.bool_)
        while True:
            is_gone = old_number < before + _sums_before(place, is_new) - self.max_items
            gone = np.flatnonzero(is_gone)
            _, first = np.unique(same[gone], return_index=True)
            again = np.zeros(len(place), np.bool_)
            again[gone[first]] = True
            if (again == is_new).all():
                return is_new
            is_new = again

    def _append(self, channels: Ids, items: Ids, features: pa.RecordBatch, at: Ids) -> Ids:
        rows = np.arange(self._num_rows, self._num_rows + len(at))
        if len(at) == 0:
            return rows
        self._num_rows += len(at)
        if self._num_rows > len(self._rows):
            room = np.zeros(2 * self._num_rows - len(self._rows), _ROW)
            self._rows = np.concatenate([self._rows, room])
        self._rows[rows] = 0
        self._rows["channel"][rows], self._rows["item"][rows] = channels, items
        self._features.append(features.take(pa.array(at)))
        sizes = [block.num_rows for block in self._features]
        if sum(sizes[1:]) > max(_MIN_SPARE, sizes[0] // 4) or len(sizes) > 64:
            self._features = [concat(self._features)]
        return rows

    def _count(self, old_row: Ids, same: Ids, is_new: Mask, rows: Ids) -> None:
        """Count how often each item was seen."""
        row = old_row.copy()
        new_row = np.full(len(same), -1)
        new_row[same[is_new]] = rows
        began = np.full(len(same), len(same))
        began[same[is_new]] = np.flatnonzero(is_new)
        is_later = np.arange(len(same)) >= began[same]
        row[is_later] = new_row[same[is_later]]
        np.add.at(self._rows["num_seen"], row, 1)

    def sizes(self, num_stored: Ids) -> Ids:
        """Return the number of items in channels that had stored `num_stored` items."""
        return np.minimum(num_stored, self.max_items)

    def is_ready(self, num_stored: Ids) -> Mask:
        """Whether an item can be drawn from channels that had stored `num_stored` items."""
        ready: Mask = self.sizes(num_stored) > self.start_items
        return ready

    def draw(self, channel: Ids, num_stored: Ids, chance: _Floats) -> Draw:
        """Draw an item from each channel, one after another.

        Args:
            channel: place of the channel of each draw.
            num_stored: number of items that the channel had stored, from the last `take_in`.
            chance: random numbers in [0, 1).
        """
        size = self.sizes(num_stored)
        place = np.minimum((chance * size).astype(np.int64), size - 1)
        number, rows = num_stored - size + place, np.zeros(len(place), np.int64)
        for channel_place in np.unique(channel):
            is_channel, items = channel == channel_place, self._channels[channel_place]
            rows[is_channel] = items.rows[number[is_channel] - items.first]
        times = self._rows["num_drawn"][rows] + _ranks(rows) + 1
        np.add.at(self._rows["num_drawn"], rows, 1)
        return Draw(rows, (place + 1) / size, 1.0 / times)

    def features(self, rows: Ids) -> pa.RecordBatch:
        """Return the features of drawn items."""
        first, *later = self._features
        num_first = first.num_rows
        if not later:
            return first.take(pa.array(rows))
        is_first = rows < num_first
        parts = [first.take(pa.array(rows[is_first]))]
        parts.append(concat(later).take(pa.array(rows[~is_first] - num_first)))
        order = np.argsort(np.argsort(~is_first, kind="stable"), kind="stable")
        return concat(parts).take(pa.array(order))

    def counts(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield channel, item, sightings and draws of each item; the oldest first."""
        live = self._live()
        yield from zip(
            *(self._rows[name][live].tolist() for name in _COLUMNS.values()), strict=True
        )

    def _live(self) -> Ids:
        for channel in self._channels:
            channel.drop_old(self.max_items)
        return np.concatenate(
            [np.zeros(0, np.int64), *(channel.rows for channel in self._channels)]
        )

    def _pack(self) -> None:
        """Drop the rows of removed items if there are many."""
        for channel in self._channels:
            channel.drop_old(self.max_items)
        if self._num_rows - len(self) <= max(_MIN_SPARE, len(self)):
            return
        live = self._live()
        self._features = [concat(self._features).take(pa.array(live))]
        self._rows = self._rows[live]
        self._num_rows = len(live)
        begin = 0
        for channel in self._channels:
            channel.rows = np.arange(begin, begin + len(channel.rows))
            begin += len(channel.rows)
        self._latest = self._index()

    def _index(self) -> dict[tuple[int, int], int]:
        live = self._live()
        channels, items = (self._rows[name][live].tolist() for name in ("channel", "item"))
        return dict(zip(zip(channels, items, strict=True), live.tolist(), strict=True))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the items to an Arrow file that appears when it is complete.

        The columns are the features of the items, and `__channel__`, `__item__`, `__origin_cnt__`
        (number of sightings) and `__sample_cnt__` (number of draws); channel after channel, the
        oldest item first.
        """
        live = self._live()
        columns = {name: pa.array(self._rows[of][live]) for name, of in _COLUMNS.items()}
        if self._features:
            items = self.features(live)
            columns |= {name: items.column(name) for name in items.schema.names}
        block = pa.record_batch(columns)
        partial = Path(f"{os.fspath(path)}.partial")
        with partial.open("wb") as file:
            with pa.ipc.new_file(file, block.schema) as writer:
                writer.write_batch(block)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], max_items: int = 100_000, start_items: int = 500
    ) -> "ItemPool":
        """Return a pool that continues from a saved pool.

        Raises:
            NotFoundError: the file does not exist.
            DataLossError: the file has no pool.
        """
        try:
            with pa.OSFile(os.fspath(path)) as file:
                table = pa.ipc.open_file(file).read_all()
        except FileNotFoundError as error:
            raise NotFoundError(
                f"[ItemPool.load] expected a pool at {os.fspath(path)!r}"
            ) from error
        except (pa.ArrowException, OSError) as error:
            raise DataLossError(
                f"[ItemPool.load] {os.fspath(path)!r} is no pool: {error}"
            ) from error
        if not set(_COLUMNS) <= set(table.schema.names):
            raise DataLossError(
                f"[ItemPool.load] expected columns {sorted(_COLUMNS)} in {os.fspath(path)!r}, got "
                f"{table.schema.names}"
            )
        pool = cls(max_items, start_items)
        if table.num_rows:
            pool._fill(table.combine_chunks().to_batches()[0])
        return pool

    def _fill(self, block: pa.RecordBatch) -> None:
        self._num_rows = block.num_rows
        self._rows = np.zeros(block.num_rows, _ROW)
        for name, of in _COLUMNS.items():
            self._rows[of] = block.column(name).to_numpy()
        self._features = [block.drop_columns(list(_COLUMNS))]
        channels = self._rows["channel"]
        self._places(channels, np.ones(len(channels), np.bool_))
        for channel in self._channels:
            channel.rows = np.flatnonzero(channels == channel.id)
            self._rows["number"][channel.rows] = np.arange(len(channel.rows))
        self._latest = self._index()


def _groups(values: Ids) -> tuple[Ids, Ids, Ids]:
    """Return an order that joins equal values, and the begin and length of each group."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(order) else order
    return order, begins, np.diff(np.append(begins, len(order)))


def _sums_before(groups: Ids, flags: Mask) -> Ids:
    """Return for each flag the number of set flags before it in the same group."""
    order, begins, lengths = _groups(groups)
    sums: Ids = np.cumsum(flags[order]) - flags[order]
    result = np.empty(len(groups), np.int64)
    result[order] = sums - np.repeat(sums[begins], lengths)
    return result


def _ranks(values: Ids) -> Ids:
    """Return for each value the number of its earlier occurrences."""
    order, begins, lengths = _groups(values)
    ranks = np.empty(len(values), np.int64)
    ranks[order] = np.arange(len(values)) - np.repeat(begins, lengths)
    return ranks
