"""Stop and join the threads of a run: `Coordinator`."""

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


_log = logging.getLogger(__name__)


class Coordinator:
    """Stops the threads of a run, joins them, runs its clean-ups and keeps the first error.

    As a context manager, the coordinator is closed when the block ends, also by an error. The error
    of a thread is raised then, and replaces a `CancelledError` that it caused in the block. Any
    other error of the block stays, and the errors of threads and clean-ups are logged.

    Every method is thread-safe.

    Args:
        stop_seconds: Limit on the wait of `close` for all threads together.

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
        self._is_end_requested = self._is_closed = False
        self._threads: list[threading.Thread] = []
        self._cleanups: list[Callable[[], None]] = []

    @property
    def stop_requested(self) -> bool:
        """Whether the end of the run was requested, or a thread failed."""
        return self._stop.is_set()

    @property
    def error(self) -> BaseException | None:
        """The first error of a thread or clean-up; None without an error."""
        return self._error

    @property
    def is_end_requested(self) -> bool:
        """Whether `request_stop` was called without an error."""
        return self._is_end_requested

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    @property
    def has_threads(self) -> bool:
        """Whether a thread of the coordinator is running."""
        with self._lock:
            return any(thread.is_alive() for thread in self._threads)

    def request_stop(self, error: BaseException | None = None) -> None:
        """Request the end of the run; with an error, the run fails with the first error.

        Later errors are logged.
        """
        if error is None:
            self._is_end_requested = True
        else:
            with self._lock:
                is_first = self._error is None
                self._error = self._error or error
            if not is_first:
                _log.error("a further error while a run ends", exc_info=error)
        self._stop.set()

    def wait_for_stop(self, timeout_seconds: float) -> bool:
        """Wait for a stop request, at most `timeout_seconds`; return whether there is one."""
        return self._stop.wait(min(timeout_seconds, threading.TIMEOUT_MAX))

    def raise_error(self) -> None:
        """Raise the error that `request_stop` keeps, if any."""
        if self._error is not None:
            raise self._error

    def start(self, target: Callable[[], None], *, name: str) -> threading.Thread:
        """Run a function on a thread, in a copy of the calling context.

        An error of the function ends the run.
        """
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
        """Add a function that is called when the run ends, also by an error, last added first."""
        with self._lock:
            self._cleanups.append(call)

    def close(self) -> None:
        """Request a stop, run the clean-ups, join the threads. Safe to call again.

        Raises:
            DeadlineExceededError: A thread did not end within `stop_seconds`.
            BaseException: The first error of a thread or clean-up.
        """
        self._is_closed = True
        self._stop.set()
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
