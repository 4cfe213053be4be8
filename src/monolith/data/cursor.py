"""`Stage` and `Cursor`: the interfaces of the stages of a pipeline.

A stage describes work and never changes. Opening a stage gives a cursor: one pass over its blocks,
with a state that tells exactly where the next block begins. A stage that is opened at this state
gives the same blocks as the first cursor would have given. So a state is small (numbers and names,
as JSON), and data in memory, such as a window of a shuffle, is re-read.

A stream has no end, so its cursor may have to wait for the next block. It waits in a `SourceWait`,
which belongs to one iteration. An error that ends such a wait passes through the cursors above the
stream, and each of them is afterwards as before its call.
"""

import threading
import time
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


class NothingYetError(Exception):
    """The deadline of a `SourceWait` has come before the stream had a block."""


class WaitEndedError(Exception):
    """The wait for a stream is over, because its iteration is closed or its run ends."""


class SourceWait:
    """How one iteration waits for its streams. One thread waits; other threads may wake and end it.

    Attributes:
        deadline: time of `time.monotonic` at which a wait ends with `NothingYetError`; None waits
            for a block however long this takes.
        on_wait: function that is called again and again on the thread that waits; its errors, such
            as `WaitEndedError`, end the wait.
        lag: function that returns how many messages are there and not read, as the stream sets it;
            None if the stream does not know.
    """

    def __init__(self) -> None:
        # Re-entrant, so that a signal handler may wake its own thread.
        self._changed = threading.Condition(threading.RLock())
        self._is_awake = self._is_stopped = False
        self.deadline: float | None = None
        self.on_wait: Callable[[], None] | None = None
        self.lag: Callable[[], int | None] | None = None

    def pause(self, seconds: float) -> None:
        """Wait until `wake` is called, at most some seconds; a source then looks for blocks again.

        Raises:
            NothingYetError: the deadline has come.
            WaitEndedError: `stop` was called.
        """
        if self.on_wait is not None:
            self.on_wait()
        with self._changed:
            if self._is_stopped:
                raise WaitEndedError
            if self.deadline is not None:
                seconds = min(seconds, self.deadline - time.monotonic())
                if seconds <= 0:
                    raise NothingYetError
            if not self._is_awake:
                self._changed.wait(seconds)
            self._is_awake = False

    def wake(self) -> None:
        """End the pause that goes on or comes next: there may be a block. Thread-safe."""
        with self._changed:
            self._is_awake = True
            self._changed.notify_all()

    def stop(self) -> None:
        """End this wait and all later ones with `WaitEndedError`. Thread-safe."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()


def is_stream(stages: Sequence[Any]) -> bool:
    """Whether a stage, or one that it reads from, is a source that has no end."""
    return any(
        getattr(stage, "is_stream", False) or is_stream(sources_of(stage)) for stage in stages
    )


def attach_wait(stages: Sequence[Any], wait: SourceWait) -> list[Any]:
    """Return the stages with streams, and batches by time, that wait in `wait`."""

    def change(_: Any, copy: Any) -> Any:
        return replace(copy, wait=wait) if hasattr(copy, "wait") else copy

    return rebuild(stages, change)


class BlockLog:
    """The blocks that a stream gave, in order, kept only as far back as a state needs them.

    Which blocks a stream gives depends on when its data came. So the state of its cursor names the
    blocks that the cursor gave after the state was taken, and a cursor that is opened there gives
    the same blocks once more. The states hold the begin of a linked list; entries before the oldest
    state that is in use are freed.
    """

    def __init__(self) -> None:
        self._end = LaterBlocks()

    def later(self) -> "LaterBlocks":
        """Return the blocks that are noted from now on."""
        return self._end

    def note(self, entry: Any) -> None:
        """Note a block as JSON."""
        following = LaterBlocks()
        self._end.entry, self._end.following = entry, following
        self._end = following


class LaterBlocks:
    """The blocks that a `BlockLog` noted after a moment; `settled` makes a list of them."""

    __slots__ = ("entry", "following")

    def __init__(self) -> None:
        self.entry: Any = None
        self.following: LaterBlocks | None = None

    def to_list(self) -> list[Any]:
        """Return the blocks that are noted by now."""
        entries, here = [], self
        while here.following is not None:
            entries.append(here.entry)
            here = here.following
        return entries


def settled(state: Any) -> Any:
    """Return the state of a cursor above streams as JSON, with the blocks until now."""
    if isinstance(state, LaterBlocks):
        return state.to_list()
    if isinstance(state, dict):
        return {name: settled(value) for name, value in state.items()}
    return [settled(value) for value in state] if isinstance(state, list) else state
