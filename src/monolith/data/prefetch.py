"""Samples of batches copied ahead, and parts of files decoded ahead, on threads of their own."""

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from monolith.data.batch_maker import BatchMaker
from monolith.data.cursor import Cursor, Stage, State
from monolith.data.stages import next_parts

if TYPE_CHECKING:
    import monolith._native as _native


_T = TypeVar("_T")
_PATIENCE_SECONDS = 5.0  # for a thread at the end of the program


@dataclass(frozen=True, slots=True)
class PrefetchedBatch:
    """The copied samples of a batch, and what the pipeline was after it."""

    copied: "_native.BlockCopy | None"  # None: the end
    state: State
    progress: tuple[int, int]

    def is_end(self) -> bool:
        """Whether there is no batch, and none comes."""
        return self.copied is None


class BatchCopier:
    """Copies the samples of batches. Knows nothing of `Batches`, which may go while it copies.

    Args:
        stage: gives the blocks.
        batches: copies them.
        state: of the stage; None: from the start.

    Attributes:
        last: what `copy` gave, without samples before the first call.
    """

    def __init__(self, stage: Stage, batches: BatchMaker, state: State | None) -> None:
        self._stage, self._batches = stage, batches
        self._cursor: Cursor | None = stage.open(0, state)
        self.last = PrefetchedBatch(None, self._cursor.state(), self._cursor.progress())

    def copy(self) -> PrefetchedBatch:
        """The next one; after an error the same again."""
        if self._cursor is None:  # the last call failed, perhaps amid a batch
            self._cursor = self._stage.open(0, self.last.state)
        cursor, self._cursor = self._cursor, None
        try:
            parts = next_parts(cursor)
            copied = None if parts is None else self._batches.copy(parts)
            self.last = PrefetchedBatch(copied, cursor.state(), cursor.progress())
        except BaseException:
            cursor.close()  # the error may be kept, and the cursor with it
            raise
        self._cursor = cursor
        return self.last

    def close(self) -> None:
        """Close files."""
        if self._cursor is not None:
            self._cursor.close()


@dataclass(frozen=True, slots=True)
class _Failure:
    error: BaseException


class Prefetch(Generic[_T]):
    """Calls `make` ahead, at most `depth` times, and hands out what it gave, in order.

    An error of `make` is raised by the call that would have got its result. Used by one thread.

    Args:
        make: what to call, until `is_last` of its result.
        depth: results that wait at most.
        is_last: whether nothing comes after a result.
        name: of the thread.
    """

    def __init__(
        self, make: Callable[[], _T], depth: int, is_last: Callable[[_T], bool], name: str
    ) -> None:
        self._make, self._depth, self._is_last = make, depth, is_last
        self._ready: deque[_T | _Failure] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        # A daemon: a program that ends without closing its pipeline ends all the same; but first
        # the thread does, where it can: one in the middle of a native call would end the program.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        with self._changed:  # so that the thread ends after this
            self._thread.start()
            atexit.register(self._leave)

    def _leave(self) -> None:
        self.stop()
        self._thread.join(_PATIENCE_SECONDS)

    def _work(self) -> None:
        try:
            self._make_all()
        finally:  # else the program would hold the results, or a failure with all its frames
            with self._changed:
                atexit.unregister(self._leave)

    def _make_all(self) -> None:
        made: _T | _Failure
        while True:
            try:
                made = self._make()
            except BaseException as error:
                made = _Failure(error)
            with self._changed:
                self._ready.append(made)
                self._changed.notify_all()
                if self._ends(made):
                    return
                self._changed.wait_for(self._has_room)
                if self._is_closed:
                    return

    def _ends(self, made: _T | _Failure) -> bool:
        return isinstance(made, _Failure) or self._is_last(made)

    def _has_room(self) -> bool:
        return self._is_closed or len(self._ready) < self._depth

    def next(self) -> _T:
        """The next result; after the last, or an error, the same again."""
        with self._changed:
            while not self._ready:
                if self._is_closed and not self._thread.is_alive():
                    raise RuntimeError(f"[{self._thread.name}] expected it open, got it closed")
                self._changed.wait(1.0)  # so that Ctrl-C is seen
            made = self._ready[0]
            if not self._ends(made):
                self._ready.popleft()
                self._changed.notify_all()
        if isinstance(made, _Failure):
            raise made.error
        return made

    def stop_with(self, owner: object) -> None:
        """Call `stop` when the owner is gone; holds no failure, whose frames may hold the owner."""
        weakref.finalize(owner, _stop, weakref.ref(self))

    def stop(self) -> None:
        """Let the thread end after what it is at."""
        atexit.unregister(self._leave)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop the thread; waits for what it is at."""
        self.stop()
        self._thread.join()


def _stop(ahead: "weakref.ref[Prefetch[Any]]") -> None:
    found = ahead()  # a thread that runs holds it
    if found is not None:
        found.stop()


class PartsAhead(Iterator[_T]):
    """The parts of a file, the next one decoded while the last one is worked on.

    Arrow decodes on threads of its own, without the GIL; the thread of this class asks it to, and
    waits. Used by one thread.
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
        """Stop the thread; waits for the part it is at."""
        self._ahead.close()
