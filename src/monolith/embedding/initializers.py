"""Initial values of the weights of a new row.

A value is a pure function of (table seed, key, column), so a row starts equal on every thread,
shard and machine (`counter_random.py`).
"""

from dataclasses import dataclass

from monolith.embedding.arguments import check_number

__all__ = ["Constant", "Initializer", "MAX_FLOAT32", "Normal", "Uniform", "Zeros"]

MAX_FLOAT32 = (2 - 2**-23) * 2.0**127
"""Largest finite float32: tables compute in float32, so every option must fit."""


def _check_fits(where: str, limit: float, **values: float) -> None:
    for name, value in values.items():
        check_number(f"[{where}]", name, value)
        if not abs(value) <= limit:
            raise ValueError(f"[{where}] expected |{name}| <= {limit:g}, got {value}")


@dataclass(frozen=True)
class Zeros:
    """Every weight starts at 0.

    Example:
        >>> Zeros()
        Zeros()
    """


@dataclass(frozen=True)
class Constant:
    """Every weight starts at `value`.

    Args:
        value: the initial weight.

    Example:
        >>> Constant(0.5)
        Constant(value=0.5)
    """

    value: float

    def __post_init__(self) -> None:
        _check_fits("Constant", MAX_FLOAT32, value=self.value)


@dataclass(frozen=True)
class Uniform:
    """Weights start uniformly distributed in [minval, maxval).

    Args:
        minval: smallest value.
        maxval: upper bound.

    Example:
        >>> Uniform(-0.1, 0.1)
        Uniform(minval=-0.1, maxval=0.1)
    """

    minval: float = -0.05
    maxval: float = 0.05

    def __post_init__(self) -> None:
        # Half the range each, so that maxval - minval fits too.
        _check_fits("Uniform", MAX_FLOAT32 / 2, minval=self.minval, maxval=self.maxval)
        if self.minval > self.maxval:
            raise ValueError(
                f"[Uniform] expected minval <= maxval, got {self.minval} > {self.maxval}"
            )


@dataclass(frozen=True)
class Normal:
    """Weights start normally distributed (Box-Muller, from two words of the generator).

    Logarithm and sine differ between machines in their last bit, and so may these values.

    Args:
        mean: centre.
        stddev: standard deviation.

    Example:
        >>> Normal(stddev=0.01)
        Normal(mean=0.0, stddev=0.01)
    """

    mean: float = 0.0
    stddev: float = 0.05

    def __post_init__(self) -> None:
        # A value is at most 5.8 standard deviations from the mean.
        _check_fits("Normal", MAX_FLOAT32 / 16, mean=self.mean, stddev=self.stddev)
        if self.stddev < 0:
            raise ValueError(f"[Normal] expected stddev >= 0, got {self.stddev}")


Initializer = Zeros | Constant | Uniform | Normal
