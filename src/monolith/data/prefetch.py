"""Threads that copy the samples of batches ahead and decode parts of files ahead."""

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from monolith.data.batch_maker import BatchMaker
from monolith.data.cursor import State

if TYPE_CHECKING:
    import monolith._native as _native
    from monolith.data.arrivals import Arrivals, ArrivalsCursor


_T = TypeVar("_T")
_PATIENCE_SECONDS = 5.0  # wait for a thread at the end of the program
_TICK_SECONDS = 0.1  # between two calls of `on_wait`


@dataclass(frozen=True, slots=True)
class PrefetchedBatch:
    """Copied samples of a batch, and the state of the pipeline after the batch."""

    copied: "_native.BlockCopy | None"  # None at the end
    state: State
    progress: tuple[int, int]
    event_time: float | None = None

    def is_end(self) -> bool:
        """Whether the source has ended."""
        return self.copied is None


class BatchCopier:
    """Copies the samples of batches; keeps no reference to `Batches`, so that it can be deleted.

    Args:
        arrivals: arrivals of files whose stages deliver the blocks.
        batches: converter that copies the blocks.
        state: state of the pipeline; None begins at the start.

    Attributes:
        last: last result of `copy`, without samples before the first call.
    """

    def __init__(self, arrivals: "Arrivals", batches: BatchMaker, state: State | None) -> None:
        self._arrivals, self._batches = arrivals, batches
        self._cursor: ArrivalsCursor | None = arrivals.open(state)
        self.last = PrefetchedBatch(None, self._cursor.state(), self._cursor.progress())

    def copy(self) -> PrefetchedBatch:
        """Return the next copied batch; a call after an error tries the same batch again."""
        if self._cursor is None:  # the last call failed, perhaps within a batch
            self._cursor = self._arrivals.open(self.last.state)
        cursor, self._cursor = self._cursor, None
        try:
            parts = cursor.next_parts()
            copy = None if parts is None else self._batches.copy(parts)
            event_time = None if parts is None else self._batches.event_time(parts)
            self.last = PrefetchedBatch(copy, cursor.state(), cursor.progress(), event_time)
        except BaseException:
            cursor.close()  # the traceback of a stored error may hold the cursor
            raise
        self._cursor = cursor
        return self.last

    def close(self) -> None:
        """Close the files."""
        if self._cursor is not None:
            self._cursor.close()


@dataclass(frozen=True, slots=True)
class _Failure:
    error: BaseException


class Prefetch(Generic[_T]):
    """Calls `make` ahead, at most `depth` times, and returns the results in order.

    An error of `make` is raised by the call of `next` that needs its result. Not thread-safe.

    Args:
        make: function to call until `is_last` is true for its result.
        depth: largest number of waiting results.
        is_last: whether a result is the last one.
        name: name of the thread.
        interrupt: function that ends a wait within `make` when the thread is to end; None if `make`
            does not wait.
    """

    def __init__(
        self,
        make: Callable[[], _T],
        depth: int,
        is_last: Callable[[_T], bool],
        name: str,
        interrupt: Callable[[], None] | None = None,
    ) -> None:
        self._make, self._depth, self._is_last = make, depth, is_last
        self._interrupt = interrupt
        self._ready: deque[_T | _Failure] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        # The thread is a daemon, so that a program can end without closing its pipeline. The
        # finalizer first asks the thread to end, because a daemon inside a native call could crash
        # the exit.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        with self._changed:  # held, so that the thread cannot end before this
            self._thread.start()
            atexit.register(self._leave)

    def _leave(self) -> None:
        self.stop()
        self._thread.join(_PATIENCE_SECONDS)

    def _work(self) -> None:
        try:
            self._make_all()
        finally:  # releases the results, or a failure with all its frames
            with self._changed:
                atexit.unregister(self._leave)

    def _make_all(self) -> None:
        result: _T | _Failure
        while True:
            try:
                result = self._make()
            except BaseException as error:
                result = _Failure(error)
            with self._changed:
                self._ready.append(result)
                self._changed.notify_all()
                if self._ends(result):
                    return
                self._changed.wait_for(self._has_room)
                if self._is_closed:
                    return

    def _ends(self, result: _T | _Failure) -> bool:
        return isinstance(result, _Failure) or self._is_last(result)

    def _has_room(self) -> bool:
        return self._is_closed or len(self._ready) < self._depth

    def next(self, on_wait: Callable[[], None] | None = None) -> _T:
        """Return the next result; after the last result or an error, the same again.

        Args:
            on_wait: function that is called again and again while there is no result; its errors
                end the wait.
        """
        if on_wait is not None:
            while not self._wait(_TICK_SECONDS):
                on_wait()
        with self._changed:
            while not self._ready:
                if self._is_closed and not self._thread.is_alive():
                    raise RuntimeError(f"[{self._thread.name}] expected it open, got it closed")
                self._changed.wait(1.0)  # wakes up for Ctrl-C
            result = self._ready[0]
            if not self._ends(result):
                self._ready.popleft()
                self._changed.notify_all()
        if isinstance(result, _Failure):
            raise result.error
        return result

    def _wait(self, seconds: float) -> bool:
        """Wait for a result, or for the end of the thread; return whether there is one."""
        with self._changed:
            if not self._ready and self._thread.is_alive():
                self._changed.wait(seconds)
            return bool(self._ready) or not self._thread.is_alive()

    def stop_with(self, owner: object) -> None:
        """Call `stop` after the owner is deleted; keeps no frames, which may hold the owner."""
        weakref.finalize(owner, _stop, weakref.ref(self))

    def stop(self) -> None:
        """Let the thread end after its current call."""
        atexit.unregister(self._leave)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._interrupt is not None:
            self._interrupt()

    def close(self) -> None:
        """Stop the thread; waits for its current call."""
        self.stop()
        self._thread.join()


def _stop(ahead: "weakref.ref[Prefetch[Any]]") -> None:
    prefetch = ahead()  # a running thread holds a reference
    if prefetch is not None:
        prefetch.stop()


class PartsAhead(Iterator[_T]):
    """Iterator over the parts of a file; decodes the next part while the caller uses the last.

    Arrow decodes on its own threads, without the GIL; the thread of this class starts a decode and
    waits for it. Not thread-safe.
    """

    def __init__(self, parts: Iterator[_T]) -> None:
        self._ahead = Prefetch(
            lambda: next(parts, None), 1, lambda part: part is None, "monolith-read"
        )
        self._ahead.stop_with(self)

    def __next__(self) -> _T:
        part = self._ahead.next()
        if part is None:
            raise StopIteration
        return part

    def close(self) -> None:
        """Stop the thread; waits for the current part."""
        self._ahead.close()
