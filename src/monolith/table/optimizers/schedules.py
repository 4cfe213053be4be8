"""Learning-rate schedules from step to rate. Equal schedules compare equal and print the same."""

import math
from dataclasses import dataclass, fields

from monolith.table.arguments import as_integer, check_kind, check_number
from monolith.table.initializers import MAX_FLOAT32


@dataclass(frozen=True)
class LearningRateFunction:
    """Base of schedules; prints the class and its options by name, as the reference system does."""

    def __call__(self, step: int) -> float:
        """Return the rate at a step."""
        raise NotImplementedError

    def __str__(self) -> str:
        names = sorted(field.name for field in fields(self))
        options = ",".join(f"{name}={getattr(self, name)}" for name in names)
        return f'LearningRateFunction("{type(self).__name__}",Params:{options})'


@dataclass(frozen=True)
class PolynomialDecay(LearningRateFunction):
    """Decreases one rate to another in `decay_steps` steps; constant after that.

    ```
    rate = (initial - end) * (1 - min(step, decay_steps) / decay_steps) ^ power + end
    ```

    Args:
        initial_learning_rate: rate at step 0.
        decay_steps: step at which the end rate is reached.
        end_learning_rate: rate from `decay_steps` on.
        power: exponent; 1 is a straight line.
        cycle: whether the line is stretched to the next multiple of `decay_steps` whenever it ends,
            so that the rate jumps up and falls again.
        name: label; schedules with different labels are different.

    Example:
        >>> PolynomialDecay(0.0, 10, 0.5)(5)
        0.25
    """

    initial_learning_rate: float
    decay_steps: int
    end_learning_rate: float = 0.0001
    power: float = 1.0
    cycle: bool = False
    name: str | None = None

    def __post_init__(self) -> None:
        for name in ("initial_learning_rate", "end_learning_rate"):
            value = getattr(self, name)
            check_number("[PolynomialDecay]", name, value)
            if not 0 <= value <= MAX_FLOAT32:
                raise ValueError(
                    f"[PolynomialDecay] expected {name} in [0, {MAX_FLOAT32:g}], got {value}"
                )
        if as_integer("[PolynomialDecay]", "decay_steps", self.decay_steps) < 1:
            raise ValueError(f"[PolynomialDecay] expected decay_steps >= 1, got {self.decay_steps}")
        check_number("[PolynomialDecay]", "power", self.power)
        if not 0 < self.power <= MAX_FLOAT32:
            raise ValueError(
                f"[PolynomialDecay] expected power in (0, {MAX_FLOAT32:g}], got {self.power}"
            )
        check_kind("[PolynomialDecay]", "cycle", self.cycle, bool)

    def __call__(self, step: int) -> float:
        """Return the rate at a step."""
        span_steps = self.decay_steps
        if self.cycle:
            span_steps *= max(1, math.ceil(step / self.decay_steps))
        left = 1 - min(step, span_steps) / span_steps
        span = self.initial_learning_rate - self.end_learning_rate
        return float(span * left**self.power + self.end_learning_rate)
