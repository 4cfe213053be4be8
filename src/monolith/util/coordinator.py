"""Threads and clean-ups of a run: started, stopped and joined together."""

import contextvars
import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from monolith.errors import CancelledError, DeadlineExceededError
from monolith.util.waiting import check_timeout

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Coordinator"]

_log = logging.getLogger(__name__)


class Coordinator:
    """Stops the threads of a run, joins them, runs its clean-ups and keeps the first error.

    As a context manager it is closed when the block ends, well or not. The error of a thread is
    raised then; it also takes the place of the `CancelledError` that it caused in the block. An
    other error of the block stays, and those of threads and clean-ups are logged.

    Every method is safe from any thread.

    Args:
        stop_seconds: limit on the wait for all threads together when it is closed.

    Example:
        >>> with Coordinator() as coordinator:
        ...     thread = coordinator.start(lambda: coordinator.wait_for_stop(60), name="waiter")
        >>> thread.is_alive()
        False
    """

    def __init__(self, stop_seconds: float = 120.0) -> None:
        self.stop_seconds = check_timeout("[Coordinator]", stop_seconds)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []
        self._cleanups: list[Callable[[], None]] = []

    @property
    def stop_requested(self) -> bool:
        """Whether the run is to end."""
        return self._stop.is_set()

    def request_stop(self, error: BaseException | None = None) -> None:
        """End the run; with an error, as a failure. The first error counts, others are logged."""
        if error is not None:
            with self._lock:
                is_first = self._error is None
                self._error = self._error or error
            if not is_first:
                _log.error("a further error while a run ends", exc_info=error)
        self._stop.set()

    def wait_for_stop(self, timeout_seconds: float) -> bool:
        """Sleep until the run is to end, at most so long; whether it is to end."""
        return self._stop.wait(min(timeout_seconds, threading.TIMEOUT_MAX))

    def raise_error(self) -> None:
        """Raise the first error of a thread, if there was one."""
        if self._error is not None:
            raise self._error

    def start(self, target: Callable[[], None], *, name: str) -> threading.Thread:
        """Run a function on a thread, in a copy of the calling context; its error ends the run."""
        context = contextvars.copy_context()

        def body() -> None:
            try:
                context.run(target)
            except BaseException as error:
                self.request_stop(error)

        thread = threading.Thread(target=body, name=name, daemon=True)
        with self._lock:
            self._threads.append(thread)
        thread.start()
        return thread

    def add_cleanup(self, call: Callable[[], None]) -> None:
        """Have something called when the run ends, well or not; what is added last runs first."""
        with self._lock:
            self._cleanups.append(call)

    def close(self) -> None:
        """Request a stop, run the clean-ups, join the threads. Safe to call again.

        Raises:
            DeadlineExceededError: a thread went on for longer than `stop_seconds`.
            BaseException: the first error of a thread or clean-up.
        """
        self.request_stop()
        while cleanup := self._next_cleanup():
            try:
                cleanup()
            except BaseException as error:
                self.request_stop(error)
        self._join()
        self.raise_error()

    def _next_cleanup(self) -> Callable[[], None] | None:
        with self._lock:
            return self._cleanups.pop() if self._cleanups else None

    def _join(self) -> None:
        deadline = time.monotonic() + self.stop_seconds
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX))
        if alive := [thread.name for thread in threads if thread.is_alive()]:
            late = DeadlineExceededError(
                f"[Coordinator.close] expected all threads to end within {self.stop_seconds} s of "
                f"the stop, got {len(alive)} that go on: {', '.join(alive)}; have them look at "
                "`stop_requested`, or add a clean-up that wakes them"
            )
            self.request_stop(late)

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except BaseException as other:
            if error is None or isinstance(error, CancelledError):
                raise
            if other is not error:
                _log.error("a further error while a failed run ends", exc_info=other)
