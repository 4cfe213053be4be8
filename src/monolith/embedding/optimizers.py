"""Sparse optimizers: what a segment of a row does with a gradient.

A class here names an optimizer, its options and the state that it keeps in each row; the update
itself is one header in `native/optimizer/` and one function in `reference_optimizers.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from monolith.embedding.initializers import MAX_FLOAT32

__all__ = ["Adagrad", "LearningRate", "Optimizer", "SGD", "StateColumn"]

LearningRate = float | Callable[[int], float]
"""A number, or a schedule: step -> number."""


@dataclass(frozen=True)
class StateColumn:
    """One named block of optimizer state of a row.

    Args:
        name: column name in exports and files.
        size: number of float32 values per row.
        initial: value of each in a new row.

    Example:
        >>> Adagrad().state(dim=2)
        (StateColumn(name='norm', size=2, initial=0.1),)
    """

    name: str
    size: int
    initial: float


def _check_options(where: str, learning_rate: LearningRate, **options: float) -> None:
    if not callable(learning_rate):
        options = {"learning_rate": learning_rate, **options}
    for name, value in options.items():
        if not 0 <= value <= MAX_FLOAT32:
            raise ValueError(f"[{where}] expected {name} in [0, {MAX_FLOAT32:g}], got {value}")


@dataclass(frozen=True)
class SGD:
    """w <- w - lr * g. No state.

    Args:
        learning_rate: a number or a schedule.

    Example:
        >>> SGD(0.1)
        SGD(learning_rate=0.1)
    """

    learning_rate: LearningRate = 0.01

    def __post_init__(self) -> None:
        _check_options("SGD", self.learning_rate)

    def state(self, dim: int) -> tuple[StateColumn, ...]:
        """State columns of a segment of `dim` weights."""
        return ()


@dataclass(frozen=True)
class Adagrad:
    """g' = g + wd * w; n <- n + g'^2; w <- w - lr * g' / sqrt(n). State: n.

    Args:
        learning_rate: a number or a schedule.
        initial_accumulator_value: n of a new row.
        weight_decay_factor: wd.

    Example:
        >>> Adagrad(0.05).initial_accumulator_value
        0.1
    """

    learning_rate: LearningRate = 0.001
    initial_accumulator_value: float = 0.1
    weight_decay_factor: float = 0.0

    def __post_init__(self) -> None:
        _check_options(
            "Adagrad",
            self.learning_rate,
            initial_accumulator_value=self.initial_accumulator_value,
            weight_decay_factor=self.weight_decay_factor,
        )

    def state(self, dim: int) -> tuple[StateColumn, ...]:
        """State columns of a segment of `dim` weights."""
        return (StateColumn("norm", dim, self.initial_accumulator_value),)


Optimizer = SGD | Adagrad
