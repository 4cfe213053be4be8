"""Stages over several passes: a cache, and repetition."""

from contextlib import closing
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from monolith.data.cursor import NO_COLUMNS, Cursor, Stage, StageCursor, State, source_state

_ENDLESS = 1_000_000  # more passes than a repetition without end makes before it ends after all


@dataclass(frozen=True)
class Cache:
    """Keeps the blocks of the first complete pass in memory; later passes read them."""

    source: Stage
    blocks: list[pa.RecordBatch] = field(default_factory=list)
    reads: ClassVar[frozenset[str]] = NO_COLUMNS

    def describe(self) -> list[str]:
        """See `Stage`."""
        return [*self.source.describe(), "cache"]

    def open(self, epoch: int, state: State | None = None) -> Cursor:
        """See `Stage`."""
        if not self.blocks and (state is not None or epoch > 0):
            self._fill()
        number = 0 if state is None else state["number"]
        if self.blocks:
            return _CacheCursor(self.blocks, number)
        return _CacheFillCursor(self.source.open(0), self.blocks)

    def _fill(self) -> None:
        with closing(_CacheFillCursor(self.source.open(0), self.blocks)) as cursor:
            while cursor.next() is not None:
                pass


class _CacheFillCursor(StageCursor):
    def __init__(self, source: Cursor, blocks: list[pa.RecordBatch]) -> None:
        super().__init__(source)
        self._blocks, self._seen = blocks, list[pa.RecordBatch]()

    def next(self) -> pa.RecordBatch | None:
        block = self._source.next()
        if block is not None:
            self._seen.append(block)
        elif not self._blocks:
            self._blocks += self._seen
        return block

    def state(self) -> State:
        return {"number": len(self._seen)}


class _CacheCursor:
    def __init__(self, blocks: list[pa.RecordBatch], number: int) -> None:
        self._blocks, self._number = blocks, number

    def next(self) -> pa.RecordBatch | None:
        if self._number == len(self._blocks):
            return None
        self._number += 1
        return self._blocks[self._number - 1]

    def state(self) -> State:
        return {"number": self._number}

    def progress(self) -> tuple[int, int]:
        return self._number, len(self._blocks)

    def close(self) -> None:
        """Do nothing: no file is open."""


@dataclass(frozen=True)
class Repeat:
    """Repeats the passes of its source; each pass is an epoch.

    Args:
        source: previous stage.
        count: number of passes; None means without end.
        ends_after_pass: whether the pass of a cursor's first block is its last one. A state at the
            end of a pass may be that of a sample of the next pass.
    """

    source: Stage
    count: int | None
    ends_after_pass: bool = False
    reads: ClassVar[frozenset[str]] = NO_COLUMNS

    def describe(self) -> list[str]:
        """See `Stage`."""
        return [*self.source.describe(), f"repeated {self.count or 'without end'}"]

    def first_pass(self, epoch: int) -> int:
        """Return the number of the first pass in an epoch of this stage."""
        return epoch * (self.count or _ENDLESS)

    def open(self, epoch: int, state: State | None = None) -> Cursor:
        """See `Stage`."""
        number = 0 if state is None else state["number"]
        return _RepeatCursor(self, epoch, number, source_state(state))


class _RepeatCursor(StageCursor):
    def __init__(self, stage: Repeat, epoch: int, number: int, state: State | None) -> None:
        self._stage, self._number = stage, number
        self._first = stage.first_pass(epoch)
        self._has_begun = False  # whether a block was returned
        super().__init__(stage.source.open(self._first + number, state))

    def next(self) -> pa.RecordBatch | None:
        is_fruitless = False
        while (block := self._source.next()) is None:
            is_last = self._stage.count is not None and self._number + 1 >= self._stage.count
            is_last = is_last or (self._stage.ends_after_pass and self._has_begun)
            if is_last or is_fruitless:
                return None
            self._source.close()
            self._number += 1
            self._source = self._stage.source.open(self._first + self._number)
            is_fruitless = True
        self._has_begun = True
        return block

    def state(self) -> State:
        return {"source": self._source.state(), "number": self._number}

    def progress(self) -> tuple[int, int]:
        """Return the progress over all passes; the total is 0 if there is no last pass."""
        position, total = self._source.progress()
        return self._number * total + position, total * (self._stage.count or 0)
