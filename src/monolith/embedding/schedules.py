"""Learning-rate schedules: step -> rate. Equal schedules compare equal and print the same."""

from dataclasses import dataclass

from monolith.embedding.arguments import as_integer, check_number
from monolith.embedding.initializers import MAX_FLOAT32

__all__ = ["PolynomialDecay"]


@dataclass(frozen=True)
class PolynomialDecay:
    """From one rate to another in `decay_steps` steps, then constant.

    ```
    rate = (initial - end) * (1 - min(step, decay_steps) / decay_steps) ^ power + end
    ```

    Args:
        initial_learning_rate: rate of step 0.
        decay_steps: step at which the end is reached.
        end_learning_rate: rate from there on.
        power: 1 is a straight line.

    Example:
        >>> PolynomialDecay(0.0, 10, 0.5)(5)
        0.25
    """

    initial_learning_rate: float
    decay_steps: int
    end_learning_rate: float = 0.0001
    power: float = 1.0

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

    def __call__(self, step: int) -> float:
        """The rate of a step."""
        left = 1 - min(step, self.decay_steps) / self.decay_steps
        span = self.initial_learning_rate - self.end_learning_rate
        return float(span * left**self.power + self.end_learning_rate)
