"""`Pages`: the features of open impressions, in memory up to a number of bytes."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from monolith.data.operations.sample_rows import Ids
from monolith.data.stages import concat
from monolith.data.stream.join.journal import Journal, Place

_PLACES = ("page", "log", "offset", "num_open")


@dataclass(slots=True)
class _Page:
    """One block of impressions; `block` is None if only the journal has the block."""

    num_open: int
    block: pa.RecordBatch | None
    place: Place | None


class Pages:
    """Blocks of impressions, each kept until no impression of the block is open.

    Beyond `memory_bytes`, the newest blocks, whose windows close last, stay in the journal only.
    Not thread-safe.

    Args:
        journal: journal with every block; None keeps all blocks in memory.
        memory_bytes: largest size of the blocks in memory.
    """

    def __init__(self, journal: Journal | None, memory_bytes: int) -> None:
        self._journal, self._memory_bytes = journal, memory_bytes
        self._pages: dict[int, _Page] = {}  # by number, the oldest page first
        self._next = 0
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the blocks in memory."""
        return self._num_bytes

    def add(self, block: pa.RecordBatch, place: Place | None) -> int:
        """Add a block of impressions, and return the number of its page."""
        number, self._next = self._next, self._next + 1
        has_room = self._num_bytes + block.nbytes <= self._memory_bytes or self._journal is None
        self._pages[number] = _Page(0, block if has_room else None, place)
        self._num_bytes += block.nbytes if has_room else 0
        return number

    def hold(self, page: int, num_rows: int) -> None:
        """Count impressions of a page as open."""
        self._pages[page].num_open += num_rows

    def release(self, pages: Ids) -> None:
        """Count one impression less for each page that is named, and drop pages without any."""
        for number, count in zip(*np.unique(pages, return_counts=True), strict=True):
            self._pages[number].num_open -= count
            self.drop_unused(int(number))

    def drop_unused(self, page: int) -> None:
        """Drop a page if it is there and has no open impressions."""
        if page in self._pages and self._pages[page].num_open == 0:
            block = self._pages.pop(page).block
            self._num_bytes -= 0 if block is None else block.nbytes

    def gather(self, pages: Ids, rows: Ids) -> pa.RecordBatch:
        """Return the named rows of the named pages, in this order; at least one."""
        order = np.argsort(pages, kind="stable")
        numbers, starts = np.unique(pages[order], return_index=True)
        parts = [
            self._block(int(number)).take(pa.array(rows[places]))
            for number, places in zip(numbers, np.split(order, starts[1:]), strict=True)
        ]
        joined = concat(parts)
        if len(parts) == 1:  # a stable order of equal numbers changes nothing
            return joined
        inverse = np.empty_like(order)
        inverse[order] = np.arange(len(order))
        return joined.take(pa.array(inverse))

    def _block(self, number: int) -> pa.RecordBatch:
        page = self._pages[number]
        if page.block is not None:
            return page.block
        assert page.place is not None
        assert self._journal is not None
        return self._journal.block_at(page.place)

    def first_log(self) -> int | None:
        """Return the number of the oldest log with a page; None without pages."""
        return min((page.place.log for page in self._pages.values() if page.place), default=None)

    def to_arrow(self) -> pa.RecordBatch:
        """Return where the journal has each page."""
        rows = [
            (number, page.place.log, page.place.offset, page.num_open)
            for number, page in self._pages.items()
            if page.place is not None
        ]
        table = np.array(rows, np.int64).reshape(-1, len(_PLACES))
        return pa.record_batch({name: table[:, at] for at, name in enumerate(_PLACES)})

    def restore(self, places: pa.RecordBatch, next_page: int) -> None:
        """Restore the pages of `to_arrow`, none of them in memory."""
        self._next = next_page
        for row in places.to_pylist():
            place = Place(row["log"], row["offset"])
            self._pages[row["page"]] = _Page(row["num_open"], None, place)

    @property
    def next_page(self) -> int:
        """Number of the page that is added next."""
        return self._next
