"""Write saves on one thread while training goes on: `SaveThread`."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from monolith.table.disk.workers import Progress, WriteControl

_log = logging.getLogger(__name__)

_WORD_SECONDS = 10.0  # until the first log line of a wait; the next ones come after twice the time

Result = TypeVar("Result")


class Writing:
    """The part of a save that its writer sees, and other threads use to steer the writer.

    Args:
        name: Name of the save in log lines, such as "step 100".

    Attributes:
        name: Name of the save.
        control: Stops the save or lifts its rate limit; the writer obeys it.
        progress: Progress so far, as the writer told `note`.
        is_failing: Whether a try of the save has failed, as the writer sets it.
        is_over: Event that is set when the writer has returned or raised.
    """

    def __init__(self, name: str) -> None:
        self.name, self.control = name, WriteControl()
        self.progress = Progress(0, 0, 0)
        self.is_failing = False
        self.is_over = threading.Event()

    def note(self, progress: Progress) -> None:
        """Set the progress."""
        self.progress = progress

    def wait(self) -> None:
        """Wait for the end of the save, and say so in the log if the wait is long."""
        start, seconds = time.monotonic(), _WORD_SECONDS
        while not self.is_over.wait(seconds):
            _log.warning(
                "waiting for the save of %s since %.0f s, %.1f MB are written; Ctrl-C twice "
                "abandons it",
                self.name,
                time.monotonic() - start,
                self.progress.num_bytes / 1e6,
            )
            seconds *= 2


class PendingSave(Generic[Result]):
    """A save that a `SaveThread` writes or has written, and the only holder of its result or error.

    Args:
        writing: The part of the save that its writer sees.
        future: Result of the writer.
    """

    def __init__(self, writing: Writing, future: "Future[Result]") -> None:
        self._writing, self._future = writing, future

    @property
    def is_done(self) -> bool:
        """Whether the save has ended, possibly by an error."""
        return self._writing.is_over.is_set()

    def error(self) -> BaseException | None:
        """Return the error of the save, after a wait for its end; None if it has a result."""
        self._writing.wait()
        return self._future.exception()

    def result(self) -> Result:
        """Return the result of a save that has ended without an error."""
        return self._future.result()


class SaveThread:
    """The thread that writes the saves of a run, one after the other.

    Its methods are called by one thread, that of the training.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "save")
        self._writings: list[Writing] = []

    def start(self, name: str, write: Callable[[Writing], Result]) -> PendingSave[Result]:
        """Write a save on the thread, after the saves that were started before.

        Args:
            name: Name of the save in log lines.
            write: Function that writes the save; it is called also after `abandon`, to free what
                the save holds.
        """
        writing = Writing(name)
        # First into the list, so that a save can be abandoned after an interrupt between the lines.
        self._writings = [*self.running(), writing]
        try:
            return PendingSave(writing, self._thread.submit(_run, write, writing))
        except BaseException:
            writing.control.stop()
            writing.is_over.set()  # or `finish` waits for a save that no thread has
            raise

    def running(self) -> list[Writing]:
        """Return the saves that have not ended."""
        return [writing for writing in self._writings if not writing.is_over.is_set()]

    def finish(self, *, drops_failing: bool = False) -> None:
        """Wait for all saves, without their rate limits.

        Args:
            drops_failing: Whether saves of which a try has failed are stopped.
        """
        running = self.running()
        for writing in running:
            writing.control.lift_rate()
            if drops_failing and writing.is_failing:
                writing.control.stop()
        for writing in running:
            writing.wait()

    def abandon(self) -> None:
        """Stop all saves, wait until they have removed their files, and end the thread."""
        for writing in self.running():
            writing.control.stop()
        self.close()

    def close(self) -> None:
        """End the thread after its saves; a second call is fine."""
        self._thread.shutdown()


def _run(write: Callable[[Writing], Result], writing: Writing) -> Result:
    try:
        return write(writing)
    finally:
        writing.is_over.set()
