"""The order in which the blocks of several inputs are taken: `AlignedInputs`, `LiveInputs`."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from monolith.data.cursor import Cursor

_PATIENCE_SECONDS = 1.0  # for the current block of an input, before the input is closed
_END_SECONDS = 10.0  # for the thread of a closed input
_WAITING_BLOCKS = 2  # blocks of an input that are read ahead


@dataclass(frozen=True, slots=True)
class Arrival:
    """What an input did: gave a block, or, without a block, ended or became idle.

    Args:
        source: number of the input.
        block: events; None if the input is not to be waited for.
        position: state of the input after the block.
    """

    source: int
    block: pa.RecordBatch | None
    position: Any = None


class Inputs(Protocol):
    """Blocks of several inputs."""

    def next(self, newest: Sequence[int]) -> Arrival | None:
        """Return what comes next; None at the end of all inputs.

        Args:
            newest: newest event time of each input.
        """

    def progress(self) -> list[tuple[int, int]]:
        """Return the progress of each input."""

    def close(self) -> None:
        """Close the inputs."""


class AlignedInputs:
    """Takes the next block from the input whose newest event is oldest, and waits for this input.

    The order depends on the events only. Not thread-safe.
    """

    def __init__(self, cursors: Sequence[Cursor]) -> None:
        self._cursors = cursors
        self._open = set(range(len(cursors)))

    def next(self, newest: Sequence[int]) -> Arrival | None:
        """See `Inputs`."""
        if not self._open:
            return None
        source = min(self._open, key=lambda at: (newest[at], at))
        block = self._cursors[source].next()
        if block is None:
            self._open.remove(source)
            return Arrival(source, None)
        return Arrival(source, block, self._cursors[source].state())

    def progress(self) -> list[tuple[int, int]]:
        """See `Inputs`."""
        return [cursor.progress() for cursor in self._cursors]

    def close(self) -> None:
        """See `Inputs`."""
        for cursor in self._cursors:
            cursor.close()


class LiveInputs:
    """Takes the next block from any input that has one; an input without events becomes idle.

    Each input is read on a thread of its own. Of several inputs with a block, that with the oldest
    newest event goes first. `close` closes an input while its thread may wait in `Cursor.next`,
    which has to end the wait. `next` and `close` are not thread-safe.

    Args:
        cursors: inputs.
        idle_seconds: seconds without a block after which an input is idle, until its next block.
    """

    def __init__(self, cursors: Sequence[Cursor], idle_seconds: float) -> None:
        self._idle_seconds = idle_seconds
        self._changed = threading.Condition()
        self._readers = [_Reader(cursor, self._changed) for cursor in cursors]
        for number, reader in enumerate(self._readers):
            reader.start(f"monolith-join-{number}")

    def next(self, newest: Sequence[int]) -> Arrival | None:
        """See `Inputs`."""
        with self._changed:
            while True:
                left = [at for at, reader in enumerate(self._readers) if not reader.is_over]
                if not left:
                    return None
                ready = [at for at in left if self._readers[at].ready]
                if ready:
                    return self._take(min(ready, key=lambda at: (newest[at], at)))
                now = time.monotonic()
                limits = {at: self._readers[at].last + self._idle_seconds for at in left}
                waited = {at: end for at, end in limits.items() if not self._readers[at].is_idle}
                idle = [at for at, end in waited.items() if end <= now]
                if idle:
                    longest = min(idle, key=limits.__getitem__)
                    self._readers[longest].is_idle = True
                    return Arrival(longest, None)
                # At most a second, so that a signal is handled soon.
                self._changed.wait(min([1.0, *(end - now for end in waited.values())]))

    def _take(self, source: int) -> Arrival:
        reader = self._readers[source]
        result = reader.ready.popleft()
        if isinstance(result, BaseException):
            reader.ready.append(result)  # the next call raises the error again
            raise result
        reader.is_idle, reader.last = False, time.monotonic()
        reader.is_over = result is None
        self._changed.notify_all()
        return Arrival(source, None) if result is None else Arrival(source, *result)

    def progress(self) -> list[tuple[int, int]]:
        """Return the progress of each input, blocks that are read ahead included."""
        return [reader.progress for reader in self._readers]

    def close(self) -> None:
        """See `Inputs`."""
        with self._changed:
            for reader in self._readers:
                reader.is_closed = True
            self._changed.notify_all()
        for reader in self._readers:
            reader.close()


class _Reader:
    """Reads one input ahead on a thread."""

    def __init__(self, cursor: Cursor, changed: threading.Condition) -> None:
        self._cursor, self._changed = cursor, changed
        # Blocks with the positions after them; None at the end, or the error of the input.
        self.ready: deque[tuple[pa.RecordBatch, Any] | BaseException | None] = deque()
        self.last = time.monotonic()
        self.progress = cursor.progress()
        self.is_idle = self.is_over = self.is_closed = False
        self._thread: threading.Thread | None = None

    def start(self, name: str) -> None:
        self._thread = threading.Thread(target=self._read, name=name, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        result: tuple[pa.RecordBatch, Any] | BaseException | None
        while True:
            try:
                block = self._cursor.next()
                result = None if block is None else (block, self._cursor.state())
            except BaseException as error:
                result = error
            with self._changed:
                self.progress = self._cursor.progress()
                self.ready.append(result)
                self._changed.notify_all()
                if not isinstance(result, tuple):
                    return
                self._changed.wait_for(lambda: self.is_closed or len(self.ready) < _WAITING_BLOCKS)
                if self.is_closed:
                    return

    def close(self) -> None:
        assert self._thread is not None
        self._thread.join(_PATIENCE_SECONDS)
        self._cursor.close()
        self._thread.join(_END_SECONDS)
