"""Tasks on several threads: the first error ends the others."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from monolith.errors import CancelledError

_NUM_WAITERS = 16  # a disk syncs several small files at a time


@dataclass(frozen=True)
class Progress:
    """Progress of a save or a load.

    Args:
        num_rows: number of processed rows.
        total_rows: number of all rows; for a save, those of the table at its begin.
        num_bytes: number of written or read bytes.
    """

    num_rows: int
    total_rows: int
    num_bytes: int


ProgressCallback = Callable[[Progress], None]


class WriteControl:
    """Stops a running save, or lifts its rate limit. Thread-safe.

    A control stays stopped or lifted, also for a later save that uses the same control.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_stopped = self._is_rate_lifted = False

    def stop(self) -> None:
        """End the save at its next report or wait; the save raises CancelledError."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def lift_rate(self) -> None:
        """Let the save write as fast as the disk from now on."""
        with self._changed:
            self._is_rate_lifted = True
            self._changed.notify_all()

    def wake(self) -> None:
        """Let every `wait` look at its `is_over` again."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Wait at most `seconds`, until `is_over` or the rate limit is lifted.

        Raises:
            CancelledError: `stop` was called.
        """
        if seconds > 0:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._is_stopped or self._is_rate_lifted or is_over(), seconds
                )
        self._check()

    def poll(self, seconds: float, is_over: Callable[[], bool], *, is_lifted: bool) -> bool:
        """Wait at most `seconds`, until `is_over` or a change; return whether the limit is lifted.

        Args:
            seconds: longest wait.
            is_over: function that ends the wait after `wake`.
            is_lifted: result of the previous call.

        Raises:
            CancelledError: `stop` was called.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_stopped or self._is_rate_lifted != is_lifted or is_over(), seconds
            )
        self._check()
        return self._is_rate_lifted

    def _check(self) -> None:
        if self._is_stopped:
            raise CancelledError("[WriteControl] stopped: the save was abandoned")


class Work:
    """State that the tasks of one save or load share: progress, and whether to continue.

    Args:
        total_rows: number of all rows.
        callback: receives the progress, one call at a time, on the working threads; an exception in
            it ends the work.
        control: lets other threads stop the work or lift its rate limit; None makes a new one.
    """

    def __init__(
        self,
        total_rows: int,
        callback: ProgressCallback | None,
        control: WriteControl | None = None,
    ) -> None:
        self._total_rows, self._callback = total_rows, callback
        self._control = control or WriteControl()
        self._lock = threading.Lock()
        self._is_stopped = False
        self._num_rows = self._num_bytes = 0
        self._waiters = ThreadPoolExecutor(_NUM_WAITERS, thread_name_prefix="monolith-sync")
        self._waiting: list[Future[None]] = []
        self._places = threading.BoundedSemaphore(_NUM_WAITERS)

    def later(self, task: Callable[[], None]) -> None:
        """Leave a waiting task to other threads; `finish` raises its error.

        Blocks while many tasks wait, because each may hold memory, a file and a thread.
        """
        self._places.acquire()
        try:
            future = self._waiters.submit(task)
        except BaseException:
            self._places.release()
            raise
        future.add_done_callback(lambda _: self._places.release())
        self._waiting.append(future)

    def finish(self) -> None:
        """Wait for the tasks of `later`."""
        while self._waiting:  # a task that failed is not kept: its error refers to this call
            self._waiting.pop(0).result()

    def close(self) -> None:
        """End the waiting threads."""
        self._waiters.shutdown(wait=True)

    def stop(self) -> None:
        """End every task at its next report or wait."""
        self._is_stopped = True
        self._control.wake()

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds`, or until the rate limit is lifted.

        Raises:
            CancelledError: `stop` was called, or the control was stopped.
        """
        self._control.wait(seconds, lambda: self._is_stopped)
        self._check()

    def poll(self, seconds: float, *, is_lifted: bool) -> bool:
        """Wait at most `seconds` for a change; return whether the rate limit is lifted.

        Args:
            seconds: longest wait.
            is_lifted: result of the previous call; another one ends the wait.

        Raises:
            CancelledError: `stop` was called, or the control was stopped.
        """
        is_lifted = self._control.poll(seconds, lambda: self._is_stopped, is_lifted=is_lifted)
        self._check()
        return is_lifted

    def _check(self) -> None:
        if self._is_stopped:
            raise CancelledError("[run_all] stopped, because another task failed")

    @property
    def progress(self) -> Progress:
        """Progress so far."""
        with self._lock:
            return Progress(self._num_rows, self._total_rows, self._num_bytes)

    def report(self, num_rows: int, num_bytes: int) -> None:
        """Add to the progress; raises CancelledError after `stop`."""
        self.wait(0.0)
        with self._lock:
            self._num_rows += num_rows
            self._num_bytes += num_bytes
            if self._callback is not None:
                self._callback(Progress(self._num_rows, self._total_rows, self._num_bytes))


def run_all(work: Work, tasks: Sequence[Callable[[], None]], num_threads: int) -> None:
    """Run the tasks in their order; raise the first error after all threads have ended."""
    if min(num_threads, len(tasks)) <= 1:
        for task in tasks:
            task()
        return
    with ThreadPoolExecutor(num_threads, thread_name_prefix="monolith-disk") as threads:
        futures = [threads.submit(task) for task in tasks]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            work.stop()
            for future in futures:
                future.cancel()
            raise
