"""Learning rates of dense optimizers that follow the schedules of tables."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ScheduledRate:
    """A schedule at the step that a counter gives: a learning rate without arguments.

    Args:
        schedule: step -> rate.
        global_step: gives the step; called once per call.

    Example:
        >>> from monolith.optim import PolynomialDecay
        >>> rate = ScheduledRate(PolynomialDecay(0.01, 10, 0.11), lambda: 2)
        >>> round(rate(), 6)
        0.03
    """

    schedule: Callable[[int], float]
    global_step: Callable[[], int]

    def __call__(self) -> float:
        """The rate of the counter's step."""
        return float(self.schedule(self.global_step()))
