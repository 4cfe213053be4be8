"""Stages between a source and the batches; `cursor.py` defines stages."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from monolith.data.cursor import (
    NO_COLUMNS,
    Cursor,
    NothingYetError,
    SourceWait,
    Stage,
    StageCursor,
    State,
    source_state,
)
from monolith.data.order import permutation
from monolith.errors import InvalidArgumentError

_T = TypeVar("_T")
Part = tuple[pa.RecordBatch, int, int]
"""A block, the position of the first sample to use, and the number of samples."""


@runtime_checkable
class PartsCursor(Protocol):
    """Cursor that returns the parts of a block without joining them."""

    def next_parts(self) -> list[Part] | None:
        """Return the next block as parts; None at the end."""


def next_parts(cursor: Cursor) -> list[Part] | None:
    """Return the next block as parts, without joining them if the cursor can avoid this."""
    if isinstance(cursor, PartsCursor):
        return cursor.next_parts()
    block = cursor.next()
    return None if block is None else [(block, 0, block.num_rows)]


@dataclass(frozen=True)
class Blocks:
    """Blocks of exactly `size` samples; the last block may be shorter, or is dropped.

    Args:
        source: previous stage.
        size: number of samples of a block.
        drops_rest: whether a shorter last block is dropped.
        seconds: time from the first sample of a block on, after which the block ends with fewer
            samples; None waits for all of them.
        wait: wait of the streams below; needed with `seconds`.
    """

    source: Stage
    size: int
    drops_rest: bool = False
    seconds: float | None = None
    wait: SourceWait | None = field(default=None, repr=False, compare=False)
    reads: ClassVar[frozenset[str]] = NO_COLUMNS

    def describe(self) -> list[str]:
        """See `Stage`."""
        rest = ", the rest dropped" if self.drops_rest else ""
        timed = "" if self.seconds is None else ", or fewer by time"
        return [*self.source.describe(), f"blocks of {self.size}{timed}{rest}"]

    def open(self, epoch: int, state: State | None = None) -> Cursor:
        """See `Stage`."""
        return _BlocksCursor(self, self.source.open(epoch, source_state(state)), state)


class _Waiting(NamedTuple):
    """A waiting block, with state and progress of the source before it, and when it came."""

    block: pa.RecordBatch
    before: State
    position: int
    came: float


class _BlocksCursor(StageCursor):
    def __init__(self, stage: Blocks, source: Cursor, state: State | None) -> None:
        super().__init__(source)
        self._stage = stage
        # Number of used samples of the first waiting block.
        self._skip = 0 if state is None else state["skip"]
        self._waiting: list[_Waiting] = []
        self._count = -self._skip  # number of waiting samples
        self._is_over = False

    def next(self) -> pa.RecordBatch | None:
        parts = self.next_parts()
        return None if parts is None else concat([block.slice(*rows) for block, *rows in parts])

    def next_parts(self) -> list[Part] | None:
        try:
            while self._count < self._stage.size and not self._is_over:
                before, position = self._source.state(), self._source.progress()[0]
                block = self._read()
                if block is None:
                    self._is_over = True
                else:
                    came = 0.0 if self._stage.seconds is None else time.monotonic()
                    self._waiting.append(_Waiting(block, before, position, came))
                    self._count += block.num_rows
        except NothingYetError:
            if self._stage.seconds is None or self._count <= 0:
                raise  # the deadline of a stage above
        is_rest = self._is_over and self._count < self._stage.size
        if self._count <= 0 or (is_rest and self._stage.drops_rest):
            return None
        return self._take(min(self._count, self._stage.size))

    def _read(self) -> pa.RecordBatch | None:
        """Return the next block of the source.

        Raises:
            NothingYetError: the time of the samples that wait is over.
        """
        wait, seconds = self._stage.wait, self._stage.seconds
        if wait is None or seconds is None or self._count <= 0:
            return self._source.next()
        end, above = self._waiting[0].came + seconds, wait.deadline
        if time.monotonic() >= end:
            raise NothingYetError
        wait.deadline = end if above is None else min(end, above)
        try:
            return self._source.next()
        finally:
            wait.deadline = above

    def _take(self, size: int) -> list[Part]:
        self._count -= size
        parts = []
        while size > 0:
            block = self._waiting[0].block
            count = min(size, block.num_rows - self._skip)
            if count > 0:
                parts.append((block, self._skip, count))
            size -= count
            self._skip += count
            if self._skip >= block.num_rows:
                self._skip -= block.num_rows
                del self._waiting[0]
        return parts

    def state(self) -> State:
        before = self._waiting[0].before if self._waiting else self._source.state()
        return {"source": before, "skip": self._skip}

    def progress(self) -> tuple[int, int]:
        """Return the progress without the waiting blocks."""
        position, total = self._source.progress()
        if not self._waiting:
            return position, total
        first = self._waiting[0].position
        return first + (position - first) * self._skip // (self._skip + self._count), total


def concat(blocks: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Join blocks; a column of single ids becomes lists if another block has lists."""
    if len(blocks) == 1:
        return blocks[0]
    if any(block.schema != blocks[0].schema for block in blocks):
        lists = {name for block in blocks for name in block.schema.names if _has_lists(block, name)}
        blocks = [_convert_to_lists(block, lists) for block in blocks]
    return pa.concat_batches(blocks)


def _has_lists(block: pa.RecordBatch, name: str) -> bool:
    return bool(pa.types.is_list(block.schema.field(name).type))


def _convert_to_lists(block: pa.RecordBatch, names: set[str]) -> pa.RecordBatch:
    arrays = {name: block.column(name) for name in block.schema.names}
    for name in names:
        if not _has_lists(block, name):
            splits = pa.array(np.arange(block.num_rows + 1, dtype=np.int32))
            arrays[name] = pa.ListArray.from_arrays(splits, arrays[name])
    return pa.record_batch(arrays)


@dataclass(frozen=True)
class Shuffle:
    """Shuffles the samples of each block."""

    source: Blocks
    seed: int
    reads: ClassVar[frozenset[str]] = NO_COLUMNS

    def describe(self) -> list[str]:
        """See `Stage`."""
        return [*self.source.describe(), f"shuffled by {self.seed}"]

    def open(self, epoch: int, state: State | None = None) -> Cursor:
        """See `Stage`."""
        number = 0 if state is None else state["number"]
        return _ShuffleCursor(
            self.source.open(epoch, source_state(state)), self.seed, epoch, number
        )


class _ShuffleCursor(StageCursor):
    def __init__(self, source: Cursor, seed: int, epoch: int, number: int) -> None:
        super().__init__(source)
        self._seed, self._epoch, self._number = seed, epoch, number

    def next(self) -> pa.RecordBatch | None:
        block = self._source.next()
        if block is None:
            return None
        order = permutation(block.num_rows, self._seed, self._epoch, self._number)
        self._number += 1
        return block.take(pa.array(order))

    def state(self) -> State:
        return {"source": self._source.state(), "number": self._number}


def call(stage: Any, function: Callable[..., _T], *arguments: Any) -> _T:
    """Call the function of a stage, and name a column that the function does not declare to read.

    Raises:
        InvalidArgumentError: the function declares what it reads, and asked for another column.
    """
    try:
        return function(*arguments)
    except KeyError as error:
        if stage.reads is None:
            raise
        raise InvalidArgumentError(
            f"[Pipeline] expected {stage.name} to read {sorted(stage.reads)} alone, as declared by "
            f"reads, got {error}; add the column to reads"
        ) from error


@dataclass(frozen=True)
class Map:
    """Applies a function to each block; the result must depend on the block alone."""

    source: Stage
    function: Callable[[pa.RecordBatch], pa.RecordBatch]
    name: str
    reads: frozenset[str] | None = None

    def describe(self) -> list[str]:
        """See `Stage`."""
        return [*self.source.describe(), f"map {self.name}"]

    def open(self, epoch: int, state: State | None = None) -> Cursor:
        """See `Stage`."""
        return _MapCursor(self, self.source.open(epoch, source_state(state)))


class _MapCursor(StageCursor):
    def __init__(self, stage: Map, source: Cursor) -> None:
        super().__init__(source)
        self._stage = stage

    def next(self) -> pa.RecordBatch | None:
        while (block := self._source.next()) is not None:
            block = call(self._stage, self._stage.function, block)
            if block.num_rows:
                return block
        return None


@dataclass(frozen=True)
class Filter:
    """Keeps the samples that a function selects.

    Args:
        source: previous stage.
        keeps: function of a block and the number of its first sample in the epoch; returns a mask.
        name: name of the function, for descriptions.
        reads: columns that the function reads; None if it may read every column.
        is_numbered: whether the mask may depend on the number.
        counts: numbers of kept and dropped samples over all passes in this process.
    """

    source: Stage
    keeps: Callable[[pa.RecordBatch, int], npt.NDArray[np.bool_]]
    name: str
    reads: frozenset[str] | None = None
    is_numbered: bool = False
    counts: dict[str, int] = field(default_factory=lambda: {"kept": 0, "left_out": 0})

    def describe(self) -> list[str]:
        """See `Stage`."""
        return [*self.source.describe(), f"filter {self.name}"]

    def open(self, epoch: int, state: State | None = None) -> Cursor:
        """See `Stage`."""
        first = 0 if state is None else state["first"]
        return _FilterCursor(self, self.source.open(epoch, source_state(state)), first)


class _FilterCursor(StageCursor):
    def __init__(self, stage: Filter, source: Cursor, first: int) -> None:
        super().__init__(source)
        self._stage, self._first = stage, first

    def next(self) -> pa.RecordBatch | None:
        while (block := self._source.next()) is not None:
            keep = call(self._stage, self._stage.keeps, block, self._first)
            self._first += block.num_rows
            rows = block if keep.all() else block.filter(pa.array(keep))
            self._stage.counts["kept"] += rows.num_rows
            self._stage.counts["left_out"] += block.num_rows - rows.num_rows
            if rows.num_rows:
                return rows
        return None

    def state(self) -> State:
        return {"source": self._source.state(), "first": self._first}


@dataclass(frozen=True)
class ShardSamples:
    """Keeps every count-th sample."""

    source: Stage
    index: int
    count: int
    reads: ClassVar[frozenset[str]] = NO_COLUMNS

    def describe(self) -> list[str]:
        """See `Stage`."""
        return [*self.source.describe(), f"samples {self.index} of {self.count}"]

    def open(self, epoch: int, state: State | None = None) -> Cursor:
        """See `Stage`."""
        return Filter(self.source, self._keeps, "shard").open(epoch, state)

    def _keeps(self, block: pa.RecordBatch, first: int) -> npt.NDArray[np.bool_]:
        numbers = np.arange(first, first + block.num_rows)
        is_ours: npt.NDArray[np.bool_] = numbers % self.count == self.index
        return is_ours


@dataclass(frozen=True)
class Take:
    """Keeps the first samples of an epoch."""

    source: Stage
    count: int
    reads: ClassVar[frozenset[str]] = NO_COLUMNS

    def describe(self) -> list[str]:
        """See `Stage`."""
        return [*self.source.describe(), f"the first {self.count}"]

    def open(self, epoch: int, state: State | None = None) -> Cursor:
        """See `Stage`."""
        left = self.count if state is None else state["left"]
        return _TakeCursor(self.source.open(epoch, source_state(state)), left)


class _TakeCursor(StageCursor):
    def __init__(self, source: Cursor, left: int) -> None:
        super().__init__(source)
        self._left = left

    def next(self) -> pa.RecordBatch | None:
        block = self._source.next() if self._left > 0 else None
        if block is None:
            return None
        block = block.slice(0, self._left)
        self._left -= block.num_rows
        return block

    def state(self) -> State:
        return {"source": self._source.state(), "left": self._left}
