"""Learning rates of dense optimizers that follow the schedules of tables."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ScheduledRate:
    """A learning rate without arguments: the rate of a schedule at the step of a counter.

    Args:
        schedule: Function from step to learning rate.
        global_step: Function that returns the step, called once per call of the rate.

    Example:
        >>> from monolith.optim import PolynomialDecay
        >>> rate = ScheduledRate(PolynomialDecay(0.01, 10, 0.11), lambda: 2)
        >>> round(rate(), 6)
        0.03
    """

    schedule: Callable[[int], float]
    global_step: Callable[[], int]

    def __call__(self) -> float:
        """Return the learning rate at the counter's step."""
        return float(self.schedule(self.global_step()))
