"""Base of the sparse optimizers: options and their checks, state columns, learning rate."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from monolith.table.arguments import as_integer, check_number
from monolith.table.initializers import MAX_FLOAT32
from monolith.table.optimizers.schedules import PolynomialDecay

LearningRate = float | Callable[[int], float]
"""A number, or a schedule: a function from step to number."""

BELOW_ONE = 1 - 2.0**-24
"""Largest float32 below 1."""


@dataclasses.dataclass(frozen=True)
class StateColumn:
    """One named block of optimizer state of a row.

    Args:
        name: name of the column in exports and files.
        size: number of values per row.
        initial: initial value in a new row.
        dtype: "float32" or "int64".

    Example:
        >>> StateColumn("norm", 2, 0.1)
        StateColumn(name='norm', size=2, initial=0.1, dtype='float32')
    """

    name: str
    size: int
    initial: float
    dtype: str = "float32"

    @property
    def num_bytes(self) -> int:
        """Bytes of the column in one row."""
        return self.size * (8 if self.dtype == "int64" else 4)


def number(default: float, most: float = MAX_FLOAT32) -> Any:
    """Return a field for an option of the update rule: a number in [0, most]."""
    return dataclasses.field(default=default, metadata={"most": most, "is_rule": True})


def flag() -> Any:
    """Return a field for an option of the update rule that is on or off; off by default."""
    return dataclasses.field(default=False, metadata={"is_flag": True, "is_rule": True})


def refused(default: float) -> Any:
    """Return a field for an option without published rule, of which only the default is valid."""
    return dataclasses.field(default=default, metadata={"is_refused": True})


def steps() -> Any:
    """Return a field for a number of steps, 0 by default, that only the schedule uses."""
    return dataclasses.field(default=0, metadata={"is_steps": True})


@dataclasses.dataclass(frozen=True)
class Optimizer(ABC):
    """A sparse optimizer: options, and the state in each row. An option of None means its default.

    The update is one header in `native/optimizer/rules/` and one function in `reference/steps.py`.
    A subclass is a frozen dataclass whose fields are created by `number`, `flag`, `refused` and
    `steps`; this class checks them.

    Args:
        learning_rate: a number or a schedule.
    """

    learning_rate: LearningRate = 0.01

    def __post_init__(self) -> None:
        for option in dataclasses.fields(self):
            value = getattr(self, option.name)
            if value is None:
                object.__setattr__(self, option.name, option.default)
            else:
                self._check(option, value)
        if callable(self.learning_rate) and self._warmup_steps():
            raise ValueError(
                f"[{type(self).__name__}] expected warmup_steps=0 beside a schedule, "
                f"got {self._warmup_steps()}"
            )

    def state(self, dim: int) -> tuple[StateColumn, ...]:
        """Return the state columns of a segment of `dim` weights."""
        return self._state(dim)

    @property
    def schedule(self) -> LearningRate:
        """Learning rate; with `warmup_steps`, a schedule that first rises linearly from 0."""
        if callable(self.learning_rate) or not self._warmup_steps():
            return self.learning_rate
        return PolynomialDecay(0.0, self._warmup_steps(), self.learning_rate)

    def rate(self, step: int) -> float:
        """Return the learning rate at a step."""
        schedule = self.schedule
        return schedule(step) if callable(schedule) else schedule

    def rule_options(self) -> dict[str, float]:
        """Return the options that the update rule reads."""
        names = (f.name for f in dataclasses.fields(self) if "is_rule" in f.metadata)
        return {name: float(getattr(self, name)) for name in names}

    @abstractmethod
    def _state(self, dim: int) -> tuple[StateColumn, ...]: ...

    def _warmup_steps(self) -> int:
        return int(getattr(self, "warmup_steps", 0))

    def _check(self, option: "dataclasses.Field[Any]", value: Any) -> None:
        where, name, rules = f"[{type(self).__name__}]", option.name, option.metadata
        if "is_refused" in rules:
            if value != option.default:
                raise ValueError(
                    f"{where} expected {name}={option.default}, got {value}; "
                    "no rule for it was published"
                )
        elif "is_flag" in rules:
            if not isinstance(value, bool):
                raise TypeError(f"{where} expected {name} as True or False, got {value!r}")
        elif "is_steps" in rules:
            if as_integer(where, name, value) < 0:
                raise ValueError(f"{where} expected {name} >= 0, got {value}")
        elif not (name == "learning_rate" and callable(value)):
            most = rules.get("most", MAX_FLOAT32)
            check_number(where, name, value)
            if not 0 <= value <= most:
                span = "[0, 1)" if most == BELOW_ONE else f"[0, {most:g}]"
                raise ValueError(f"{where} expected {name} in {span}, got {value}")
