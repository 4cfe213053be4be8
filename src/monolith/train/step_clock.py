"""The time of updates: that of the samples, or of a clock."""

from collections.abc import Iterable
from typing import Any

from monolith.data import Batch
from monolith.embedding.verbs import Clock

__all__ = ["StepClock"]

_FUTURE_SECONDS = 3600  # events may be ahead of the clock by so much, as in a table


class StepClock:
    """Gives the tables the time of the step that is applied.

    Args:
        clock: gives seconds since 1970 for samples without a time.

    Attributes:
        num_clamped: steps whose samples were more than an hour ahead of the clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._time: int | None = None
        self.num_clamped = 0

    def __call__(self) -> int:
        """Time of the step; of the clock before the first one."""
        return self._clock() if self._time is None else self._time

    def state_dict(self) -> dict[str, Any]:
        """The time of the last step, and the count."""
        return {"time": self._time, "num_clamped": self.num_clamped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._time, self.num_clamped = state["time"], state["num_clamped"]

    def set(self, batches: Iterable[Batch]) -> None:
        """Begin the update of a step: its time is the latest of its samples."""
        times = [int(b.time.max()) for b in batches if b.time is not None and len(b.time)]
        now = self._clock()
        self._time = min(max(times), now + _FUTURE_SECONDS) if times else now
        self.num_clamped += bool(times) and max(times) > self._time
