"""Updates that run, and a handle to wait for them."""

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager

from monolith.errors import DeadlineExceededError


class Completion:
    """Done when the updates that were running when it was made have ended.

    Args:
        running: one per update.
        name: of the table.
    """

    def __init__(self, running: Iterable["Future[None]"], name: str) -> None:
        self._running = list(running)
        self._name = name

    def is_done(self) -> bool:
        """Whether all of them have ended."""
        return all(update.done() for update in self._running)

    def wait(self, timeout_seconds: float = 60.0) -> None:
        """Wait for all of them; the error of one that failed is raised."""
        done, running = wait(self._running, timeout_seconds, return_when=FIRST_EXCEPTION)
        for update in done:
            update.result()
        if running:
            raise DeadlineExceededError(
                f"[Completion.wait] expected the updates to end within {timeout_seconds} seconds, "
                f"got {len(running)} that run (table {self._name!r}); wait longer"
            )


class RunningUpdates:
    """The updates of a table that have begun and not ended. Any thread may call at any time.

    Args:
        name: of the table.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: set[Future[None]] = set()
        self._lock = threading.Lock()

    def completion(self) -> Completion:
        """A handle that is done when the updates that run now have ended."""
        with self._lock:
            return Completion(self._running, self._name)

    @contextmanager
    def update(self) -> Iterator[None]:
        """Around an update; its error is that of the handles that wait for it."""
        update: Future[None] = Future()
        with self._lock:
            self._running.add(update)
        try:
            yield
        except BaseException as error:
            update.set_exception(error)
            raise
        else:
            update.set_result(None)
        finally:
            with self._lock:
                self._running.discard(update)
