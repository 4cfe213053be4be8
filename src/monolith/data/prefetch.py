"""Batches made ahead on a thread of their own."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from monolith.data.batch import Batch
from monolith.data.cursor import State

__all__ = ["Made", "Prefetch"]


@dataclass(frozen=True, slots=True)
class Made:
    """A batch, and what the pipeline was after it."""

    batch: Batch | None  # None: the end
    state: State
    progress: tuple[int, int]


class Prefetch:
    """Calls `make` ahead, at most `depth` batches, and hands out what it gave, in order.

    An error of `make` is raised by the call that would have got its batch. Used by one thread.
    """

    def __init__(self, make: Callable[[], Made], depth: int) -> None:
        self._make, self._depth = make, depth
        self._ready: deque[Made | BaseException] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        # A daemon: a program that ends without closing its pipeline ends all the same.
        self._thread = threading.Thread(target=self._work, name="monolith-prefetch", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        made: Made | BaseException
        while True:
            try:
                made = self._make()
            except BaseException as error:
                made = error
            with self._changed:
                self._ready.append(made)
                self._changed.notify_all()
                is_last = not isinstance(made, Made) or made.batch is None
                if is_last:
                    return
                self._changed.wait_for(self._has_room)
                if self._is_closed:
                    return

    def _has_room(self) -> bool:
        return self._is_closed or len(self._ready) < self._depth

    def next(self) -> Made:
        """The next batch; after the end, or an error, the same again."""
        with self._changed:
            while not self._ready:
                self._changed.wait(1.0)  # so that Ctrl-C is seen
            made = self._ready[0]
            if isinstance(made, Made) and made.batch is not None:
                self._ready.popleft()
                self._changed.notify_all()
        if isinstance(made, Made):
            return made
        raise made

    def stop(self) -> None:
        """Let the thread end after the batch it is at."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop the thread; waits for the batch it is at."""
        self.stop()
        self._thread.join()
