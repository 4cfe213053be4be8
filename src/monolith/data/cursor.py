"""What the stages of a pipeline are to each other.

A stage describes work and never changes. Opening it gives a cursor: one pass over its blocks, with
a state that says exactly where the next block begins. Opening the stage again at that state gives
the same blocks as going on. So a state is small (numbers and names, JSON), and what a stage holds
in memory, such as a window of a shuffle, is read again.
"""

from dataclasses import replace
from typing import Any, Protocol

import pyarrow as pa

State = dict[str, Any]


class Cursor(Protocol):
    """A pass over blocks. Used by one thread."""

    def next(self) -> pa.RecordBatch | None:
        """The next block, which is not empty; None at the end."""

    def state(self) -> State:
        """Where the next block begins; JSON."""

    def progress(self) -> tuple[int, int]:
        """Bytes or samples read so far, and in all; 0 in all where nobody knows."""

    def close(self) -> None:
        """Close files and stop threads."""


class Stage(Protocol):
    """A description of work on blocks."""

    def open(self, epoch: int, state: State | None = None) -> Cursor:
        """Begin a pass, from the start or at a state.

        Args:
            epoch: number of the pass: shuffles differ.
            state: of a cursor of this stage, in the same epoch.
        """

    def describe(self) -> list[str]:
        """A line for each stage, the source first: a state fits only the pipeline it is of."""


class WrappingCursor:
    """A cursor over another one."""

    def __init__(self, source: Cursor) -> None:
        self._source = source

    def progress(self) -> tuple[int, int]:
        """See `Cursor`."""
        return self._source.progress()

    def state(self) -> State:
        """See `Cursor`."""
        return {"source": self._source.state()}

    def close(self) -> None:
        """See `Cursor`."""
        self._source.close()


def source_state(state: State | None) -> State | None:
    """The state of the stage before."""
    return None if state is None else state["source"]


def reading_ahead(stage: Any) -> Any:
    """The same stages, over a source of files that decodes blocks ahead; others stay."""
    if hasattr(stage, "reads_ahead"):
        return replace(stage, reads_ahead=True)
    source = getattr(stage, "source", None)
    return stage if source is None else replace(stage, source=reading_ahead(source))
