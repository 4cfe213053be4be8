"""Stages on top of those of a pipeline: one pass over a share."""

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from monolith.data.cursor import NO_COLUMNS, Cursor, Stage, StageCursor, State, source_state
from monolith.data.stages import Part, concat, next_parts


@dataclass(frozen=True)
class SharePass:
    """Opens its source in one pass, whichever epoch is asked for.

    The random orders and draws of a share depend on the epoch of the job and on the share, so that
    two files of one epoch are not shuffled in the same order. States are those of the source.

    Args:
        source: previous stage.
        epoch: epoch of the job.
        share: name of a share with random numbers of its own; empty for parts of one stream.
    """

    source: Stage
    epoch: int
    share: str = ""
    reads: ClassVar[frozenset[str]] = NO_COLUMNS

    def describe(self) -> list[str]:
        """See `Stage`."""
        share = f" of share {self.share}" if self.share else ""
        return [*self.source.describe(), f"epoch {self.epoch}{share}"]

    def open(self, epoch: int, state: State | None = None) -> Cursor:
        """See `Stage`."""
        return self.source.open(self.pass_number(), state)

    def pass_number(self) -> int:
        """Return the number of the pass, on which the random numbers of the stages depend."""
        if not self.share:
            return self.epoch
        digest = hashlib.sha256(f"{self.epoch} {self.share}".encode()).digest()
        return int.from_bytes(digest[:7], "big")


@dataclass(frozen=True)
class Stride:
    """Keeps blocks index, index + count, ...; the others are read but not copied."""

    source: Stage
    index: int
    count: int
    reads: ClassVar[frozenset[str]] = NO_COLUMNS

    def describe(self) -> list[str]:
        """See `Stage`."""
        return [*self.source.describe(), f"blocks {self.index} of {self.count}"]

    def open(self, epoch: int, state: State | None = None) -> Cursor:
        """See `Stage`."""
        number = 0 if state is None else state["number"]
        return _StrideCursor(self, self.source.open(epoch, source_state(state)), number)


class _StrideCursor(StageCursor):
    def __init__(self, stage: Stride, source: Cursor, number: int) -> None:
        super().__init__(source)
        self._stage, self._number = stage, number

    def next(self) -> pa.RecordBatch | None:
        parts = self.next_parts()
        return None if parts is None else concat([block.slice(*rows) for block, *rows in parts])

    def next_parts(self) -> list[Part] | None:
        while (parts := next_parts(self._source)) is not None:
            self._number += 1
            if (self._number - 1) % self._stage.count == self._stage.index:
                return parts
        return None

    def state(self) -> State:
        return {"source": self._source.state(), "number": self._number}
