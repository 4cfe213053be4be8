"""Batches made ahead, and parts of files decoded ahead, on threads of their own."""

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from monolith.data.batch import Batch
from monolith.data.cursor import State

__all__ = ["Made", "PartsAhead", "Prefetch"]

_T = TypeVar("_T")
_PATIENCE_SECONDS = 5.0  # for a thread at the end of the program


@dataclass(frozen=True, slots=True)
class Made:
    """A batch, and what the pipeline was after it."""

    batch: Batch | None  # None: the end
    state: State
    progress: tuple[int, int]

    def is_end(self) -> bool:
        """Whether there is no batch, and none comes."""
        return self.batch is None


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
        self._thread.start()
        atexit.register(self._leave)

    def _leave(self) -> None:
        self.stop()
        self._thread.join(_PATIENCE_SECONDS)

    def _work(self) -> None:
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


class PartsAhead(Iterator[_T]):
    """The parts of a file, the next one decoded while the last one is worked on.

    Arrow decodes on threads of its own, without the GIL; the thread of this class asks it to, and
    waits. Used by one thread.
    """

    def __init__(self, parts: Iterator[_T]) -> None:
        self._ahead = Prefetch(
            lambda: next(parts, None), 1, lambda part: part is None, "monolith-read"
        )
        weakref.finalize(self, self._ahead.stop)

    def __next__(self) -> _T:
        part = self._ahead.next()
        if part is None:
            raise StopIteration
        return part

    def close(self) -> None:
        """Stop the thread; waits for the part it is at."""
        self._ahead.close()
