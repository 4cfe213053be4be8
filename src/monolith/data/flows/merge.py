"""`Merge`: a stage over several streams, whose samples are taken in turns or by time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from monolith.data.cursor import Cursor, Stage, State
from monolith.data.flows.flow_reader import FlowReader, StarvedError, share
from monolith.data.stages import concat


@dataclass(frozen=True)
class Merge:
    """Merges streams.

    Args:
        sources: last stage of each stream.
        time: column of times, if the sample with the smallest time goes first; None takes a sample
            of each stream in turns.
        columns: names of the columns of the merged stream.
    """

    sources: tuple[Stage, ...]
    time: str | None
    columns: tuple[str, ...]

    @property
    def reads(self) -> frozenset[str]:
        """See `Stage`."""
        return frozenset() if self.time is None else frozenset({self.time})

    def describe(self) -> list[str]:
        """See `Stage`."""
        order = "in turns" if self.time is None else f"by {self.time!r}"
        lines = [f"{len(self.sources)} streams merged {order}"]
        for number, source in enumerate(self.sources):
            lines += [f"stream {number}: {line}" for line in source.describe()]
        return lines

    def open(self, epoch: int, state: State | None = None) -> Cursor:
        """See `Stage`."""
        stages, readers = share(self.sources, epoch, is_driven=self.time is None)
        states = [{"source": None, "skip": 0}] * len(stages) if state is None else state["sources"]
        streams: list[_Stream] = []
        try:
            for stage, reader, position in zip(stages, readers, states, strict=True):
                cursor = stage.open(epoch, position["source"])
                streams.append(_Stream(cursor, reader, position["skip"]))
        except BaseException:
            for stream in streams:
                stream.cursor.close()
            raise
        return _MergeCursor(self, streams)


class _Stream:
    """One stream: its next block, of which `used` samples are merged."""

    def __init__(self, cursor: Cursor, reader: FlowReader | None, skip: int) -> None:
        self.cursor, self.reader, self.used = cursor, reader, skip
        self.block: pa.RecordBatch | None = None
        self._before: State = {}  # state of the cursor before the block
        self.is_over = False

    def fill(self) -> None:
        """Take the next block if the last one is merged, unless the stream has to wait."""
        if self.block is None and not self.is_over:
            self._before = self.cursor.state()
            try:
                self.block = self.cursor.next()
            except StarvedError:
                return
            self.is_over = self.block is None

    @property
    def num_rows(self) -> int:
        """Number of samples of the block that are not merged."""
        return 0 if self.block is None else self.block.num_rows - self.used

    @property
    def rows(self) -> pa.RecordBatch:
        """Samples of the block that are not merged."""
        assert self.block is not None
        return self.block.slice(self.used)

    def take(self, count: int) -> pa.RecordBatch:
        """Return the next samples of the block."""
        rows = self.rows.slice(0, count)
        self.used += count
        if self.num_rows == 0:
            self.block, self.used = None, 0
        return rows

    def state(self) -> State:
        """Return the position of the next sample that is not merged."""
        before = self.cursor.state() if self.block is None else self._before
        return {"source": before, "skip": self.used}


class _MergeCursor:
    def __init__(self, stage: Merge, streams: list[_Stream]) -> None:
        self._stage, self._streams = stage, streams

    def next(self) -> pa.RecordBatch | None:
        while True:
            for stream in self._streams:
                stream.fill()
            reader = self._starved_reader()
            if reader is None:
                break
            reader.read()
        streams = [stream for stream in self._streams if stream.num_rows]
        if not streams:
            return None
        return self._in_turns(streams) if self._stage.time is None else self._by_time(streams)

    def _starved_reader(self) -> FlowReader | None:
        """Return a reader none of whose flows has samples, although the source has not ended."""
        ready = {id(stream.reader) for stream in self._streams if stream.num_rows}
        for stream in self._streams:
            if stream.reader is not None and not stream.is_over and id(stream.reader) not in ready:
                return stream.reader
        return None

    def _in_turns(self, streams: list[_Stream]) -> pa.RecordBatch:
        count, width = min(stream.num_rows for stream in streams), len(streams)
        order = np.arange(count * width).reshape(width, count).T.ravel()
        return self._joined([stream.take(count) for stream in streams], order)

    def _by_time(self, streams: list[_Stream]) -> pa.RecordBatch:
        # The sample with the smallest time of all next samples goes first; of equal times, that of
        # the first stream. A stream that is not in order keeps its order, so the largest time so
        # far stands for each of its samples.
        times = [
            np.maximum.accumulate(stream.rows.column(self._stage.time).to_numpy())
            for stream in streams
        ]
        limit = min(each[-1] for each in times)  # later samples of this stream are unknown
        first = next(number for number, each in enumerate(times) if each[-1] == limit)
        counts = [
            int(np.searchsorted(each, limit, "right" if number <= first else "left"))
            for number, each in enumerate(times)
        ]
        keys = np.concatenate([each[:count] for each, count in zip(times, counts, strict=True)])
        pairs = zip(streams, counts, strict=True)
        rows = [stream.take(count) for stream, count in pairs if count]
        return self._joined(rows, np.argsort(keys, kind="stable"))

    def _joined(self, parts: Sequence[pa.RecordBatch], order: np.ndarray) -> pa.RecordBatch:
        if len(parts) == 1:
            return parts[0].select(self._stage.columns)
        rows = concat([part.select(self._stage.columns) for part in parts])
        return rows.take(pa.array(order))

    def state(self) -> State:
        return {"sources": [stream.state() for stream in self._streams]}

    def progress(self) -> tuple[int, int]:
        """Return the sums over the streams; flows that share a reader count once."""
        cursors = {id(stream.reader or stream): stream.cursor for stream in self._streams}
        pairs = [cursor.progress() for cursor in cursors.values()]
        totals = [total for _, total in pairs]
        return sum(position for position, _ in pairs), sum(totals) if all(totals) else 0

    def close(self) -> None:
        for stream in self._streams:
            stream.cursor.close()
