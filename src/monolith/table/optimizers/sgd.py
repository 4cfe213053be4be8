"""Optimizers with at most one value of state per weight: SGD and its relatives."""

from dataclasses import dataclass, field

from monolith.table.optimizers.optimizer_base import (
    LearningRate,
    Optimizer,
    StateColumn,
    flag,
    number,
    steps,
)


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent.

    ```
    w <- w - lr * g
    ```

    Args:
        learning_rate: a number or a schedule.
        warmup_steps: number of steps in which the rate rises from 0 to `learning_rate`.

    Example:
        >>> SGD(0.1).state(dim=8)
        ()
    """

    learning_rate: LearningRate = 0.01
    warmup_steps: int = steps()

    def _state(self, dim: int) -> tuple[StateColumn, ...]:
        return ()


@dataclass(frozen=True)
class Momentum(Optimizer):
    """SGD with momentum; the learning rate is inside the velocity n.

    ```
    n' = momentum * n - lr * (g + weight_decay_factor * w)
    w <- w + n'
    with use_nesterov: w <- w - momentum * n + (1 + momentum) * n'
    n <- n'
    ```

    Args:
        learning_rate: a number or a schedule.
        weight_decay_factor: share of the weight that is added to its gradient.
        use_nesterov: whether to use Nesterov's look-ahead.
        momentum: share of the velocity that stays.
        warmup_steps: number of steps in which the rate rises from 0 to `learning_rate`.

    Example:
        >>> Momentum(0.1).momentum
        0.9
    """

    learning_rate: LearningRate = 0.01
    weight_decay_factor: float = number(0.0)
    use_nesterov: bool = flag()
    momentum: float = number(0.9, most=1.0)
    warmup_steps: int = steps()

    def _state(self, dim: int) -> tuple[StateColumn, ...]:
        return (StateColumn("n", dim, 0.0),)


@dataclass(frozen=True)
class MovingAverage(Optimizer):
    """Averages the samples that come as gradients; the learning rate is not used.

    ```
    w <- momentum * w + (1 - momentum) * g
    ```

    Args:
        momentum: share of the old average that stays.

    Example:
        >>> MovingAverage(0.5).momentum
        0.5
    """

    learning_rate: LearningRate = field(default=1.0, init=False, repr=False)
    momentum: float = number(0.9, most=1.0)

    def _state(self, dim: int) -> tuple[StateColumn, ...]:
        return ()


@dataclass(frozen=True)
class BatchSoftmax(Optimizer):
    """Estimates the number of steps between two occurrences of a key; needs dim 1.

    Uses `step` of `apply_gradients`, not the value of the gradient. A is the last such step.

    ```
    w <- (1 - lr) * w + lr * (step - A)
    A <- step
    ```

    Args:
        learning_rate: a number or a schedule.

    Example:
        >>> BatchSoftmax().state(dim=1)[0].dtype
        'int64'
    """

    learning_rate: LearningRate = 0.1

    def _state(self, dim: int) -> tuple[StateColumn, ...]:
        if dim != 1:
            raise ValueError(f"[BatchSoftmax] expected a segment of dim 1, got {dim}")
        return (StateColumn("global_step", 1, 0, "int64"),)
