"""`Flow`: a part of a split stream. `FlowReader`: one pass over the source for several flows.

The state of a flow is the position of the next block that it has not received: the number of the
block, and the state of the source there. The reader opens the source at the earliest position of
its flows, and passes a block only to the flows that have not received it. So a flow has the same
state whether it is read alone or together with others.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from monolith.data.cursor import Cursor, Stage, State
from monolith.data.flows.splitter import Splitter
from monolith.data.operations.draws import Sampling
from monolith.data.stages import Blocks, Filter, Map, ShardSamples, Shuffle
from monolith.errors import FailedPreconditionError

# Stages that open their source once, and read it to its end.
_SINGLE_PASS = (Blocks, Filter, Map, Sampling, ShardSamples, Shuffle)


class StarvedError(Exception):
    """A flow has no samples until its reader reads another block."""


@dataclass(frozen=True)
class Flow:
    """Stage of one flow of a split source; reads the source alone, unless `share` replaces it."""

    source: Stage
    splitter: Splitter
    name: str

    @property
    def reads(self) -> frozenset[str] | None:
        """See `Stage`."""
        return self.splitter.reads

    def describe(self) -> list[str]:
        """See `Stage`."""
        return [
            *self.source.describe(),
            f"flow {self.name!r} of a split {self.splitter.description}",
        ]

    def open(self, epoch: int, state: State | None = None) -> Cursor:
        """See `Stage`."""
        return FlowReader(self.source, self.splitter, epoch).open(self.name, state)


@dataclass(frozen=True)
class _SharedFlow:
    """Stage of a flow that shares its reader with others."""

    reader: "FlowReader"
    flow: Flow

    def describe(self) -> list[str]:
        return self.flow.describe()

    def open(self, epoch: int, state: State | None = None) -> Cursor:
        return self.reader.open(self.flow.name, state)


@dataclass(frozen=True)
class _Position:
    """Position of a block of the source; None means the start."""

    block: int = 0
    state: State | None = None


class FlowReader:
    """Reads a source once, and passes the samples of each block to their flows. Thread-safe.

    Args:
        source: source of all flows.
        splitter: tells the flow of each sample.
        epoch: number of the pass.
        is_driven: whether a flow without samples raises `StarvedError`, so that the caller decides
            when `read` reads another block; otherwise the flow reads.
        patience: seconds that a flow waits for the reader of another flow, for which too many
            samples wait.
    """

    def __init__(
        self,
        source: Stage,
        splitter: Splitter,
        epoch: int,
        *,
        is_driven: bool = False,
        patience: float = 0.0,
    ) -> None:
        self._source, self._splitter, self._epoch = source, splitter, epoch
        self._is_driven, self._patience = is_driven, patience
        self._changed = threading.Condition()
        self._flows: dict[str, _FlowCursor] = {}
        self._cursor: Cursor | None = None
        self._next = _Position()
        self.is_over = False

    def open(self, name: str, state: State | None) -> "_FlowCursor":
        """Return the cursor of a flow; blocks before its position are not passed to it."""
        start = _Position() if state is None else _Position(state["block"], state["source"])
        flow = _FlowCursor(self, name, start)
        with self._changed:
            if self._cursor is not None and start.block < self._next.block:
                self._rewind()
            self._flows[name] = flow
            try:
                self._open_source()
            except BaseException:
                del self._flows[name]
                raise
        return flow

    def _open_source(self) -> Cursor:
        if self._cursor is None:
            first = min((flow.position for flow in self._flows.values()), key=_number_of)
            self._cursor, self._next = self._source.open(self._epoch, first.state), first
            self.is_over = False
        return self._cursor

    def _rewind(self) -> None:
        """Close the source; the next read begins at the earliest position."""
        cursor, self._cursor = self._cursor, None
        for flow in self._flows.values():
            flow.waiting.clear()
            flow.num_waiting, flow.since = 0, flow.position.block
        if cursor is not None:
            cursor.close()

    def next(self, flow: "_FlowCursor") -> pa.RecordBatch | None:
        """Return the next samples of a flow; None at the end.

        Raises:
            FailedPreconditionError: too many samples wait for another flow.
            StarvedError: the reader is driven, and no samples wait.
        """
        deadline = time.monotonic() + self._patience
        with self._changed:
            while True:
                if flow.waiting:
                    rows, flow.position = flow.waiting.popleft()
                    flow.num_waiting -= rows.num_rows
                    self._changed.notify_all()
                    return rows
                self._open_source()
                if self.is_over:
                    return None
                if self._is_driven:
                    raise StarvedError
                full = self._full_flow()
                if full is None:
                    self._read()
                elif not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    raise self._unread(flow, full)

    def _full_flow(self) -> "_FlowCursor | None":
        limit = self._splitter.max_waiting
        return next((flow for flow in self._flows.values() if flow.num_waiting >= limit), None)

    def _unread(self, flow: "_FlowCursor", full: "_FlowCursor") -> FailedPreconditionError:
        return FailedPreconditionError(
            f"[Pipeline.split] expected flow {full.name!r} to be read too, got {full.num_waiting} "
            f"samples that wait for its reader (max_waiting {self._splitter.max_waiting}) while "
            f"flow {flow.name!r} needs more; read or close flow {full.name!r}, allow more by "
            "max_waiting, or give patience if another thread reads it"
        )

    def read(self) -> None:
        """Read another block, and pass its samples to their flows."""
        with self._changed:
            self._open_source()
            self._read()

    def _read(self) -> None:
        assert self._cursor is not None
        try:
            block = self._cursor.next()
            if block is None:
                self.is_over = True
            else:
                self._pass_on(block, self._cursor.state())
        except BaseException:
            self._rewind()  # the source may have failed within a block
            raise
        self._changed.notify_all()

    def _pass_on(self, block: pa.RecordBatch, state: State) -> None:
        places, number = self._splitter.places(block), self._next.block
        self._next = _Position(number + 1, state)
        for place, name in enumerate(self._splitter.names):
            flow = self._flows.get(name)
            if flow is not None and number >= flow.since:
                is_ours = np.equal(places, place)
                flow.put(block if is_ours.all() else block.filter(pa.array(is_ours)), self._next)

    def progress(self) -> tuple[int, int]:
        """See `Cursor`."""
        with self._changed:
            return self._open_source().progress() if self._flows else (0, 0)

    def leave(self, flow: "_FlowCursor") -> None:
        """Pass no more samples to a flow; the last flow that leaves closes the source."""
        with self._changed:
            if self._flows.get(flow.name) is flow:
                del self._flows[flow.name]
                flow.waiting.clear()
                flow.num_waiting = 0
                if not self._flows:
                    self._rewind()
            self._changed.notify_all()


def _number_of(position: _Position) -> int:
    return position.block


class _FlowCursor:
    """Cursor over the samples of a flow.

    Attributes:
        position: position of the next block that the flow has not received.
        since: number of the first block that the reader passes to the flow.
        waiting: samples that wait, each with the position after their block.
    """

    def __init__(self, reader: FlowReader, name: str, start: _Position) -> None:
        self._reader, self.name = reader, name
        self.position, self.since = start, start.block
        self.waiting: deque[tuple[pa.RecordBatch, _Position]] = deque()
        self.num_waiting = 0

    def put(self, rows: pa.RecordBatch, after: _Position) -> None:
        """Let samples wait; without samples, only the position moves on."""
        if rows.num_rows:
            self.waiting.append((rows, after))
            self.num_waiting += rows.num_rows
        elif self.waiting:
            self.waiting[-1] = (self.waiting[-1][0], after)
        else:
            self.position = after

    def next(self) -> pa.RecordBatch | None:
        """See `Cursor`."""
        return self._reader.next(self)

    def state(self) -> State:
        """See `Cursor`."""
        position = self.position  # another thread may replace it
        return {"source": position.state, "block": position.block}

    def progress(self) -> tuple[int, int]:
        """See `Cursor`."""
        return self._reader.progress()

    def close(self) -> None:
        """See `Cursor`."""
        self._reader.leave(self)


def share(
    stages: Sequence[Stage], epoch: int, **options: Any
) -> tuple[list[Stage], list[FlowReader | None]]:
    """Let flows of one split share a reader.

    A flow reads alone if the stages after it read it more than once, or not to its end.

    Args:
        stages: stages that are read together.
        epoch: number of the pass.
        options: options of `FlowReader`.

    Returns:
        The stages, and the reader of each; None without one.
    """
    readers: dict[tuple[int, Splitter], FlowReader] = {}
    names: set[tuple[int, Splitter, str]] = set()
    users: list[FlowReader | None] = []

    def with_reader(stage: Any) -> Any:
        if isinstance(stage, Flow):
            key = (id(stage.source), stage.splitter)
            if (*key, stage.name) in names:  # two cursors of one flow need two readers
                return stage
            names.add((*key, stage.name))
            if key not in readers:
                readers[key] = FlowReader(stage.source, stage.splitter, epoch, **options)
            users[-1] = readers[key]
            return _SharedFlow(readers[key], stage)
        if isinstance(stage, _SINGLE_PASS):
            return replace(stage, source=with_reader(stage.source))
        return stage

    result = []
    for stage in stages:
        users.append(None)
        result.append(with_reader(stage))
    return result, users
