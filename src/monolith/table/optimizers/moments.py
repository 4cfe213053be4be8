"""Optimizers that average gradients and their squares over steps."""

from dataclasses import dataclass
from typing import ClassVar

from monolith.table.optimizers.optimizer_base import (
    BELOW_ONE,
    LearningRate,
    Optimizer,
    StateColumn,
    flag,
    number,
    refused,
    steps,
)


@dataclass(frozen=True)
class Adadelta(Optimizer):
    """Adadelta with a learning rate.

    ```
    h = g + weight_decay_factor * w;  r = averaging_ratio
    a <- r * a + (1 - r) * h^2
    x = sqrt(u + epsilon) / sqrt(a + epsilon) * h
    w <- w - lr * x
    u <- r * u + (1 - r) * x^2
    ```

    Args:
        learning_rate: a number or a schedule.
        weight_decay_factor: share of the weight that is added to its gradient.
        averaging_ratio: share of the averages that stays.
        epsilon: number added under the roots.
        warmup_steps: number of steps in which the rate rises from 0 to `learning_rate`.

    Example:
        >>> [column.name for column in Adadelta().state(dim=8)]
        ['accum', 'accum_update']
    """

    learning_rate: LearningRate = 0.01
    weight_decay_factor: float = number(0.0)
    averaging_ratio: float = number(0.9, most=1.0)
    epsilon: float = number(0.01)
    warmup_steps: int = steps()

    def _state(self, dim: int) -> tuple[StateColumn, ...]:
        return (StateColumn("accum", dim, 0.0), StateColumn("accum_update", dim, 0.0))


@dataclass(frozen=True)
class _Moments(Optimizer):
    """Options and state that `Adam` and `AMSGrad` share."""

    learning_rate: LearningRate = 0.01
    beta1: float = number(0.9, most=BELOW_ONE)
    beta2: float = number(0.99, most=BELOW_ONE)
    weight_decay_factor: float = number(0.0)
    use_nesterov: bool = flag()
    epsilon: float = number(0.01)
    warmup_steps: int = steps()

    _averages: ClassVar[tuple[str, ...]] = ("m", "v")

    def _state(self, dim: int) -> tuple[StateColumn, ...]:
        return (
            *(StateColumn(name, dim, 0.0) for name in self._averages),
            StateColumn("beta1_power", 1, self.beta1),
            StateColumn("beta2_power", 1, self.beta2),
        )


@dataclass(frozen=True)
class Adam(_Moments):
    """Adam; epsilon is outside the root and not corrected for bias.

    ```
    l = lr * sqrt(1 - p2) / (1 - p1);  h = g + weight_decay_factor * w
    m <- m + (1 - beta1) * (h - m)
    v <- v + (1 - beta2) * (h^2 - v)
    w <- w - l * m / (sqrt(v) + epsilon)
    with use_nesterov: (1 - beta1) * h + beta1 * m in place of m
    p1 <- p1 * beta1;  p2 <- p2 * beta2
    ```

    The powers p1 and p2 start at beta1 and beta2, and count the steps of their row.

    Args:
        learning_rate: a number or a schedule.
        beta1: share of m that stays.
        beta2: share of v that stays.
        weight_decay_factor: share of the weight that is added to its gradient.
        use_nesterov: whether to use Nesterov's look-ahead.
        epsilon: number added to the root.
        warmup_steps: number of steps in which the rate rises from 0 to `learning_rate`.
        use_beta1_warmup: only False is supported.

    Example:
        >>> [column.name for column in Adam().state(dim=8)]
        ['m', 'v', 'beta1_power', 'beta2_power']
    """

    use_beta1_warmup: bool = refused(False)


@dataclass(frozen=True)
class AMSGrad(_Moments):
    """Adam that divides by the largest v so far.

    ```
    as Adam, with x <- max(x, v) and sqrt(x) in place of sqrt(v)
    ```

    Args:
        learning_rate: a number or a schedule.
        beta1: share of m that stays.
        beta2: share of v that stays.
        weight_decay_factor: share of the weight that is added to its gradient.
        use_nesterov: whether to use Nesterov's look-ahead.
        epsilon: number added to the root.
        warmup_steps: number of steps in which the rate rises from 0 to `learning_rate`.

    Example:
        >>> [column.name for column in AMSGrad().state(dim=8)]
        ['m', 'v', 'vhat', 'beta1_power', 'beta2_power']
    """

    _averages: ClassVar[tuple[str, ...]] = ("m", "v", "vhat")


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """RMSprop with an average of squares, computed in double precision.

    ```
    h = g + weight_decay_factor * w
    n <- momentum * n + (1 - momentum) * h^2
    w <- w - lr * h / (sqrt(n) + 1)
    ```

    Args:
        learning_rate: a number or a schedule.
        weight_decay_factor: share of the weight that is added to its gradient.
        momentum: share of n that stays.

    Example:
        >>> RMSprop().momentum
        0.9
    """

    learning_rate: LearningRate = 0.01
    weight_decay_factor: float = number(0.0)
    momentum: float = number(0.9, most=1.0)

    def _state(self, dim: int) -> tuple[StateColumn, ...]:
        return (StateColumn("n", dim, 0.0),)


@dataclass(frozen=True)
class RMSpropV2(RMSprop):
    """RMSprop with a decaying sum of squares.

    ```
    h = g + weight_decay_factor * w
    n <- momentum * n + h^2
    w <- w - lr * h / (sqrt(n) + 1)
    ```

    Args:
        learning_rate: a number or a schedule.
        weight_decay_factor: share of the weight that is added to its gradient.
        momentum: share of n that stays.

    Example:
        >>> RMSpropV2().momentum
        0.9
    """
