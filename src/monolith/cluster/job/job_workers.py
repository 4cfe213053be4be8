"""What server 0 knows of each worker of a job: its steps, its shares, and how it goes."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

SILENT_SECONDS = 10.0
"""Seconds without a call after which a worker, which always watches, is silent."""

_RATE_SECONDS = 1.0  # over which a speed is measured
_OLD_SECONDS = 10.0  # without a step, after which the speed is that of the whole wait


class AppliedShare(NamedTuple):
    """A step that server 0 has, while the worker has not said that all servers have it."""

    number: int
    share: str
    before: Any
    is_last: bool
    num_samples: int


@dataclass
class JobWorker:
    """A worker, over all its starts.

    Attributes:
        start: Random number of the newest start.
        clients: Numbers of its callers.
        is_alive: Whether it is a part of the job.
        number: Number of its last step.
        samples: Number of its samples.
        taken: Share -> position.
        unacknowledged: Steps that perhaps not all servers have.
        parked: Number of the park in which it stands; an old one if it does not stand.
        heard: Time of its last call.
    """

    start: int
    clients: list[int]
    is_alive: bool = True
    number: int = 0
    samples: int = 0
    taken: dict[str, Any] = field(default_factory=dict)
    unacknowledged: list[AppliedShare] = field(default_factory=list)
    parked: int = 0
    heard: float = 0.0
    rate: float = 0.0
    mark: tuple[float, int] | None = None  # time and samples at which the speed was measured

    def note_rate(self, now: float) -> None:
        """Measure the speed after a step."""
        if self.mark is None:
            self.mark = now, self.samples
        elif now - self.mark[0] >= _RATE_SECONDS:
            self.rate = (self.samples - self.mark[1]) / (now - self.mark[0])
            self.mark = now, self.samples

    def facts(self, index: int, now: float, park: int) -> "WorkerFacts":
        """Return how the worker goes.

        Args:
            index: Number of the worker.
            now: The time.
            park: Number of the park.
        """
        if not self.is_alive:
            return WorkerFacts(index, "gone", self.number, 0.0, 0.0)
        heard = now - self.heard
        if heard > SILENT_SECONDS:
            return WorkerFacts(index, "silent", self.number, 0.0, heard)
        if park % 2 and self.parked == park:
            return WorkerFacts(index, "parked", self.number, 0.0, heard)
        return WorkerFacts(index, "running", self.number, self._rate_at(now), heard)

    def _rate_at(self, now: float) -> float:
        if self.mark is None:
            return 0.0
        begin, samples = self.mark
        return (self.samples - samples) / (now - begin) if now - begin > _OLD_SECONDS else self.rate


class WorkerFacts(NamedTuple):
    """What server 0 says of a worker, as it travels.

    Attributes:
        worker: Number of the worker.
        state: "running", "parked", "silent" or "gone".
        number: Number of its last step.
        samples_per_second: Its speed while it is running.
        heard_seconds: Seconds since its last call.
    """

    worker: int
    state: str
    number: int
    samples_per_second: float
    heard_seconds: float
