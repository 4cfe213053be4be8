"""Updates of tables: at once, or on a thread beside the next step."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["Updates"]


class Updates:
    """Applies the updates of steps in their order, each once; at most one is under way.

    Args:
        is_async: on a thread; the caller calls `wait` before it begins what the update must not
            run beside.

    Attributes:
        num_applied: updates that are complete. It never runs ahead of the tables.
    """

    def __init__(self, *, is_async: bool) -> None:
        self.num_applied = 0
        self._running: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, "push") if is_async else None

    def apply(self, update: Callable[[], object]) -> None:
        """Run an update, or have it run; waits for the one before it."""
        self.wait()
        if self._thread is None:
            self._run(update)
        else:
            self._running = self._thread.submit(self._run, update)

    def wait(self) -> None:
        """Return when no update is under way.

        Raises:
            BaseException: what the update raised.
        """
        if self._running is not None:
            running, self._running = self._running, None
            running.result()

    def close(self) -> None:
        """End the thread, after the update that is under way."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)

    def _run(self, update: Callable[[], object]) -> None:
        update()
        self.num_applied += 1
