"""`JobPark`: how a worker of a job hears that training is stopped, and says that it stands."""

import threading
from collections.abc import Callable
from typing import Any

from monolith.cluster.job.job_workers import WorkerFacts


class JobPark:
    """Stops all workers of a job at their next step boundaries, and lets them go on.

    The number of the park counts stops and resumes, so training is stopped while it is odd. Every
    process keeps the largest number that it has heard, and a worker tells it when it joins: a
    server 0 that came back empty stops training again, and a resume is never forgotten for a stop.

    Any thread may call at any time.

    Args:
        call: (verb, arguments, timeout_seconds=) -> answer of server 0; with a limit of time it is
            asked once.

    Attributes:
        on_change: Called on a thread when training was stopped or goes on.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call, self._lock = call, threading.Lock()
        self._number = 0
        self.on_change: Callable[[], None] | None = None

    @property
    def number(self) -> int:
        """Number of the park: odd while training is stopped."""
        return self._number

    @property
    def is_placed(self) -> bool:
        """Whether training is stopped, as far as this worker has heard."""
        return self._number % 2 == 1

    def hear(self, number: int) -> None:
        """Take a number that server 0 has told; an older one changes nothing."""
        with self._lock:
            is_new = number > self._number
            self._number = max(number, self._number)
        if is_new and self.on_change is not None:
            self.on_change()

    def place(self, timeout_seconds: float | None = None) -> bool:
        """Stop training; return False if it was stopped already."""
        number, is_new = self._call("park_job", self._number, timeout_seconds=timeout_seconds)
        self.hear(number)
        return bool(is_new)

    def remove(self, timeout_seconds: float | None = None) -> None:
        """Let training go on."""
        self.hear(self._call("unpark_job", self._number, timeout_seconds=timeout_seconds))

    def note_parked(self, number: int) -> None:
        """Tell that this worker stands, and that all servers have its steps."""
        self._call("note_parked", number)

    def workers(self, timeout_seconds: float | None = None) -> list[WorkerFacts]:
        """Return what server 0 knows of all workers."""
        answer = self._call("worker_facts", timeout_seconds=timeout_seconds)
        return [WorkerFacts(*facts) for facts in answer]
