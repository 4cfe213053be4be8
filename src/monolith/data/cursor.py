"""`Stage` and `Cursor`: the interfaces of the stages of a pipeline.

A stage describes work and never changes. Opening a stage gives a cursor: one pass over its blocks,
with a state that tells exactly where the next block begins. A stage that is opened at this state
gives the same blocks as the first cursor would have given. So a state is small (numbers and names,
as JSON), and data in memory, such as a window of a shuffle, is re-read.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import pyarrow as pa

State = dict[str, Any]
NO_COLUMNS: frozenset[str] = frozenset()


class Cursor(Protocol):
    """One pass over blocks. Not thread-safe."""

    def next(self) -> pa.RecordBatch | None:
        """Return the next block, which is not empty; None at the end."""

    def state(self) -> State:
        """Return the position of the next block, as JSON."""

    def progress(self) -> tuple[int, int]:
        """Return the bytes or samples read so far and in total; a total of 0 is unknown."""

    def close(self) -> None:
        """Close files and stop threads."""


class Stage(Protocol):
    """Describes work on blocks.

    A stage over another stage has the attribute `reads`: the names of the columns that the stage
    itself reads, or None if it may read every column.
    """

    def open(self, epoch: int, state: State | None = None) -> Cursor:
        """Begin a pass at the start or at a state.

        Args:
            epoch: number of the pass; shuffles depend on it.
            state: state of a cursor of this stage in the same epoch.
        """

    def describe(self) -> list[str]:
        """Return a line for each stage, source first; a state is valid for equal lines only."""


class StageCursor:
    """Cursor over another cursor; the default of each method calls the other cursor."""

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
    """Return the part of a state that belongs to the previous stage."""
    return None if state is None else state["source"]


def sources_of(stage: Any) -> tuple[Any, ...]:
    """Return the stages from which a stage reads; none for a source."""
    if hasattr(stage, "sources"):
        return tuple(stage.sources)
    source = getattr(stage, "source", None)
    return () if source is None else (source,)


def rebuild(stages: Sequence[Any], change: Callable[[Any, Any], Any]) -> list[Any]:
    """Return the stages with each stage replaced by `change(stage, copy)`, sources first.

    `copy` is the stage over its changed sources. A source of several stages stays one object.
    """
    copies: dict[int, Any] = {}

    def copy(stage: Any) -> Any:
        if id(stage) not in copies:
            sources = sources_of(stage)
            changed = tuple(map(copy, sources))
            result = stage
            if any(new is not old for new, old in zip(changed, sources, strict=True)):
                is_several = hasattr(stage, "sources")
                fields = {"sources": changed} if is_several else {"source": changed[0]}
                result = replace(stage, **fields)
            copies[id(stage)] = change(stage, result)
        return copies[id(stage)]

    return [copy(stage) for stage in stages]


def enable_read_ahead(stages: Sequence[Any]) -> list[Any]:
    """Return the stages with sources that decode blocks ahead, if these are sources of files."""

    def change(_: Any, copy: Any) -> Any:
        return replace(copy, reads_ahead=True) if hasattr(copy, "reads_ahead") else copy

    return rebuild(stages, change)
