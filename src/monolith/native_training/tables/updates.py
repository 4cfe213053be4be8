"""Updates that run, and a handle to wait for them."""

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager

from monolith.errors import DeadlineExceededError
from monolith.table.rows import Applied


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


class AppliedUpdate(Applied):
    """The counts of an update, with a handle for the updates of its table.

    Example:
        >>> updates = RunningUpdates("user")
        >>> update = AppliedUpdate.of([(2, 1, 0, 0), (1, 1, 0, 0)], updates)
        >>> update, update.as_op().is_done()
        (AppliedUpdate(num_applied=3, num_inserted=2, num_refused=0, num_skipped=0), True)
    """

    _updates: "RunningUpdates"

    @classmethod
    def of(cls, counts: Iterable[Iterable[int]], updates: "RunningUpdates") -> "AppliedUpdate":
        """Return the sum of the counts of shards.

        Args:
            counts: counts of each shard, as `Applied` has them.
            updates: updates of the table.
        """
        update = cls(*map(sum, zip((0, 0, 0, 0), *counts, strict=True)))
        update._updates = updates
        return update

    def as_op(self) -> Completion:
        """Return a handle that is done when the updates that run now have ended everywhere."""
        return self._updates.completion()


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
