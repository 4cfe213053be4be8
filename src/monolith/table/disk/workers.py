"""Tasks on several threads: the first error ends the others."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from monolith.errors import CancelledError

_NUM_WAITERS = 16  # a disk that syncs many small files does several at a time


@dataclass(frozen=True)
class Progress:
    """How far a save or a load is.

    Args:
        num_rows: rows done.
        total_rows: rows in all; at a save, those of the table when it began.
        num_bytes: bytes written or read.
    """

    num_rows: int
    total_rows: int
    num_bytes: int


ProgressCallback = Callable[[Progress], None]


class Work:
    """What the tasks of one save or load share: progress, and whether to go on.

    Args:
        total_rows: rows in all.
        callback: is told the progress, one call at a time, from the threads that do the work; an
            exception from it ends the work.
    """

    def __init__(self, total_rows: int, callback: ProgressCallback | None) -> None:
        self._total_rows, self._callback = total_rows, callback
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._num_rows = self._num_bytes = 0
        self._waiters = ThreadPoolExecutor(_NUM_WAITERS, thread_name_prefix="monolith-sync")
        self._waiting: list[Future[None]] = []
        self._places = threading.BoundedSemaphore(_NUM_WAITERS)

    def later(self, task: Callable[[], None]) -> None:
        """Leave something that only waits to other threads; `finish` raises its error.

        Waits itself while many wait: each may hold memory, a file and a thread until it is done.
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
        """Wait for what was left for later."""
        for future in self._waiting:
            future.result()

    def close(self) -> None:
        """End the threads that wait."""
        self._waiters.shutdown(wait=True)

    def stop(self) -> None:
        """Let every task end at its next report or wait."""
        self._stop.set()

    def wait(self, seconds: float) -> None:
        """Wait, but no longer than until `stop`; raises CancelledError then."""
        if self._stop.wait(seconds):
            raise CancelledError("[run_all] stopped, because another task failed")

    def report(self, num_rows: int, num_bytes: int) -> None:
        """Some more is done; raises CancelledError after `stop`."""
        self.wait(0.0)
        with self._lock:
            self._num_rows += num_rows
            self._num_bytes += num_bytes
            if self._callback is not None:
                self._callback(Progress(self._num_rows, self._total_rows, self._num_bytes))


def run_all(work: Work, tasks: Sequence[Callable[[], None]], num_threads: int) -> None:
    """Run the tasks in their order; the first error is raised when all threads have ended."""
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
