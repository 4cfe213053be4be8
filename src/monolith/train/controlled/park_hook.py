"""`ParkHook`: lets training stand at step boundaries, and serve other threads there."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from monolith.cluster.job.job_workers import WorkerFacts
from monolith.control import ControlRequests
from monolith.errors import AbortedError, OpError
from monolith.train.driver import Coordinator, Hook, Run, StepContext, StepResults

BOUNDARY = "step_boundary"
"""Metadata of a run: function that hooks call, again and again, while they let the run wait."""

_WAIT_SECONDS = 0.2
_TELL_SECONDS = 2.0  # a server 0 that came back hears again that this worker stands

_log = logging.getLogger(__name__)


class Park(Protocol):
    """Says whether training is stopped: `JobPark` for a job, `LocalPark` for one process.

    Calls with `timeout_seconds` ask once, and raise `UnavailableError` without an answer in time.
    """

    on_change: Callable[[], None] | None

    @property
    def number(self) -> int:
        """Number of the park: odd while training is stopped."""

    @property
    def is_placed(self) -> bool:
        """Whether training is stopped."""

    def place(self, timeout_seconds: float | None = None) -> bool:
        """Stop training; return False if it was stopped already."""

    def remove(self, timeout_seconds: float | None = None) -> None:
        """Let training go on."""

    def note_parked(self, number: int) -> None:
        """Note that the training thread stands."""

    def workers(self, timeout_seconds: float | None = None) -> list[WorkerFacts]:
        """Return the state of each worker."""


class LocalPark:
    """The park of a run of one process. Thread-safe.

    Example:
        >>> park = LocalPark()
        >>> park.place(), park.place(), park.workers()[0].state
        (True, False, 'running')
        >>> park.note_parked(park.number)
        >>> park.workers()[0].state
        'parked'
    """

    def __init__(self) -> None:
        self._lock, self._number, self._parked = threading.Lock(), 0, 0
        self.on_change: Callable[[], None] | None = None

    @property
    def number(self) -> int:
        """Number of the park: odd while training is stopped."""
        return self._number

    @property
    def is_placed(self) -> bool:
        """Whether training is stopped."""
        return self._number % 2 == 1

    def place(self, timeout_seconds: float | None = None) -> bool:
        """Stop training; return False if it was stopped already."""
        return self._set(True)

    def remove(self, timeout_seconds: float | None = None) -> None:
        """Let training go on."""
        self._set(False)

    def _set(self, is_placed: bool) -> bool:
        with self._lock:
            is_new = self.is_placed != is_placed
            self._number += is_new
        if is_new and self.on_change is not None:
            self.on_change()
        return is_new

    def note_parked(self, number: int) -> None:
        """Note that the training thread stands."""
        self._parked = number

    def workers(self, timeout_seconds: float | None = None) -> list[WorkerFacts]:
        """Return the state of the one worker, without numbers."""
        is_parked = self.is_placed and self._parked == self._number
        return [WorkerFacts(0, "parked" if is_parked else "running", 0, 0.0, 0.0)]


@dataclass(frozen=True)
class Boundary:
    """What a `ParkHook` needs of its run.

    Args:
        settle: Waits until all updates of the run are done, and acknowledged by servers.
        paused: Context in which the time does not count for the speed of the run.
        is_stopping: Whether the run is to end.
        check: Raises the error by which this worker is no part of its job any more.
        leave: Called when the run is to end while it stands.
    """

    settle: Callable[[], None]
    paused: Callable[[], AbstractContextManager[None]]
    is_stopping: Callable[[], bool]
    check: Callable[[], None]
    leave: Callable[[], None]


class ParkHook(Hook):
    """The hook by which training stands between two steps while it is stopped. The last hook.

    While training stands, and at every other step boundary, the training thread does what other
    threads ask of it, such as a save.

    Args:
        park: Says whether training is stopped.
        requests: Requests of other threads.
        boundary: What the hook needs of the run.
    """

    def __init__(self, park: Park, requests: ControlRequests, boundary: Boundary) -> None:
        self._park, self._requests, self._boundary = park, requests, boundary
        self._thread: int | None = None
        self._coordinator: Coordinator | None = None

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Stand before the first step if training is stopped."""
        self._thread, self._coordinator = threading.get_ident(), coordinator
        self._park.on_change = self._requests.wake
        run.metadata[BOUNDARY] = self.at_boundary
        self.at_boundary()

    def idle(self, ctx: StepContext) -> None:
        """Serve other threads, and stand, while a step waits for its samples."""
        self.at_boundary()

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Stand if training is stopped."""
        self.at_boundary()

    def at_boundary(self) -> None:
        """Serve other threads, and stand while training is stopped.

        Only the training thread does so: other threads may call this, too, for example one that
        reads batches ahead.
        """
        if threading.get_ident() != self._thread:
            return
        self._requests.serve()
        if self._park.is_placed:
            self._stand()

    def _stand(self) -> None:
        park, boundary = self._park, self._boundary
        _log.info("training is stopped: this worker stands")
        with boundary.paused():
            boundary.settle()
            told, next_word = 0, 0.0
            while park.is_placed and not self._must_leave():
                boundary.check()
                number, now = park.number, time.monotonic()
                if number != told or now >= next_word:
                    told, next_word = number, now + _TELL_SECONDS
                    self._tell(number)
                self._requests.wait(_WAIT_SECONDS)
                self._requests.serve()
        if boundary.is_stopping():
            boundary.leave()
        else:
            _log.info("training goes on")

    def _tell(self, number: int) -> None:
        try:
            self._park.note_parked(number)
        except AbortedError:
            raise
        except OpError as error:  # server 0 is away: it is told again
            _log.warning("server 0 does not hear that this worker stands: %s", error)

    def _must_leave(self) -> bool:
        assert self._coordinator is not None
        return self._boundary.is_stopping() or self._coordinator.error is not None


def at_boundary(run: Run) -> None:
    """Let a hook that makes its run wait serve other threads, and stand if training is stopped."""
    call = run.metadata.get(BOUNDARY)
    if call is not None:
        call()
