"""Ring of counting filters of one partition, in plain Python (native/table/filter_ring.h)."""

from collections.abc import Iterator

from monolith.table.rules import RING_SLACK, ring_shape

_PROBES = 16
_COUNT_BITS = 20
_MAX_COUNT = (1 << _COUNT_BITS) - 1
_CELL_BYTES = 4


class FilterRing:
    """Counts keys and forgets old ones: a ring of filters, written at `head`.

    A cell holds a 12-bit signature and a 20-bit count; 0 is empty. Keys with equal signatures
    within a window of 16 cells share a count.

    Args:
        capacity: number of keys in the ring, at least 300.
        split_num: number of filters of the ring, at least 5.

    Example:
        >>> ring = FilterRing(300, 7)
        >>> [ring.add(hash(1), 1) for _ in range(3)]
        [0, 1, 2]
    """

    def __init__(self, capacity: int, split_num: int) -> None:
        self._size, self._split_capacity, self._num_cells = ring_shape(capacity, split_num)
        self._splits: list[dict[int, int]] = [{} for _ in range(self._size)]  # cell -> value
        self.head = 0
        self.head_increment = 0
        self.num_dropped = 0
        self.num_overflows = 0

    @property
    def num_elements(self) -> list[int]:
        """Number of used cells in each split."""
        return [len(split) for split in self._splits]

    @property
    def num_bytes(self) -> int:
        """Number of bytes of all cells."""
        return self._size * self._num_cells * _CELL_BYTES

    def _probe(self, split: int, key_hash: int) -> int | None:
        """Return the cell of the key, or an empty cell; None if other keys fill the window."""
        cells = self._splits[split]
        start = ((key_hash & 0xFFFFFFFF) * (self._num_cells - RING_SLACK)) >> 32
        for cell in range(start, start + _PROBES):
            if cell not in cells or cells[cell] >> _COUNT_BITS == _signature(key_hash):
                return cell
        return None

    def add(self, key_hash: int, count: int) -> int | None:
        """Count a key; return its count before, or None if the key has no cell."""
        for split in (self.head, (self.head + 1) % self._size):
            cell = self._probe(split, key_hash)
            if cell is not None:
                break
        else:
            self.num_overflows += 1
            return None
        cells = self._splits[split]
        is_new = cell not in cells
        before = self._before(key_hash) if is_new else cells[cell] & _MAX_COUNT
        after = min(before + count, _MAX_COUNT)
        cells[cell] = _signature(key_hash) << _COUNT_BITS | after
        if is_new and len(self._splits[self.head]) >= self._split_capacity - 1:
            self._advance()
        return before

    def _before(self, key_hash: int) -> int:
        """Return the count in the nearest earlier filter that contains the key."""
        for back in range(1, min(self.head_increment, self._size - 2) + 1):
            split = (self.head - back) % self._size
            cell = self._probe(split, key_hash)
            if cell is not None and cell in self._splits[split]:
                return self._splits[split][cell] & _MAX_COUNT
        return 0

    def _advance(self) -> None:
        self.head = (self.head + 1) % self._size
        self.head_increment += 1
        oldest = self._splits[(self.head + 1) % self._size]
        self.num_dropped += len(oldest)
        oldest.clear()

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Yield (-1, head, head_increment), then (split, cell, value) of the used cells.

        Yields no rows if no key was counted.
        """
        if not self.head_increment and not any(self._splits):
            return
        yield -1, self.head, self.head_increment
        for split, cells in enumerate(self._splits):
            for cell in sorted(cells):
                yield split, cell, cells[cell]

    def load(self, split: int, cell: int, value: int) -> None:
        """Import one of `rows`."""
        if split < 0:
            self.head, self.head_increment = cell, value
        else:
            self._splits[split][cell] = value


def _signature(key_hash: int) -> int:
    return (key_hash >> 32) & 0xFFF
