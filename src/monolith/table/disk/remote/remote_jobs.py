"""Long work of other processes for a save or a load: started, asked for its state, stopped."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from monolith.errors import DeadlineExceededError, OpError
from monolith.table.disk.workers import Work

_log = logging.getLogger(__name__)

_FIRST_WAIT, _LONGEST_WAIT = 0.001, 0.25  # seconds between two questions for the state
_STOP_SECONDS = 60.0  # until stopped jobs have ended


class JobState(NamedTuple):
    """State of the job of one process.

    Attributes:
        is_over: whether the job has ended.
        num_rows: number of processed rows so far.
        num_bytes: number of written or read bytes so far.
        result: result of the job at its end.
    """

    is_over: bool
    num_rows: int
    num_bytes: int
    result: Any


class RemoteJobs(ABC):
    """Jobs of several processes, one each, that were started together. For one thread.

    Attributes:
        labels: names of the processes, for messages.
    """

    labels: Sequence[str]

    @abstractmethod
    def states(self) -> list[JobState]:
        """Return the states of all jobs, or raise the error of a job."""

    @abstractmethod
    def hurry(self) -> None:
        """Lift the rate limits of all jobs."""

    @abstractmethod
    def stop(self) -> bool:
        """Stop all jobs, which remove their files; return whether they have ended by now."""

    def wait(self, work: Work) -> list[JobState]:
        """Wait for the end of all jobs; pass their progress to `work`, and to them what it says."""
        num_rows = num_bytes = 0
        is_lifted, seconds = False, _FIRST_WAIT
        while True:
            states = self.states()
            rows, size = sum(s.num_rows for s in states), sum(s.num_bytes for s in states)
            work.report(rows - num_rows, size - num_bytes)
            num_rows, num_bytes = rows, size
            if all(state.is_over for state in states):
                return states
            was_lifted, is_lifted = is_lifted, work.poll(seconds, is_lifted=is_lifted)
            if is_lifted and not was_lifted:
                self.hurry()
            seconds = min(2 * seconds, _LONGEST_WAIT)

    def end(self) -> None:
        """Stop all jobs and wait for their ends: none changes a file or a table afterwards."""
        start = time.monotonic()
        try:
            while not self.stop():
                if time.monotonic() - start > _STOP_SECONDS:
                    raise DeadlineExceededError(f"they go on after {_STOP_SECONDS} seconds")
        except OpError as error:
            labels = ", ".join(self.labels)
            _log.warning("a save or load that failed may go on: %s did not stop: %s", labels, error)
