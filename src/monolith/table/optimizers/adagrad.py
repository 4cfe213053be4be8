"""Adagrad and its relatives: per weight, per row, per group, with decoupled weight decay."""

from dataclasses import dataclass

from monolith.table.optimizers.optimizer_base import (
    LearningRate,
    Optimizer,
    StateColumn,
    flag,
    number,
    refused,
    steps,
)


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad, without an epsilon.

    ```
    h = g + weight_decay_factor * w
    n <- n + h^2
    w <- w - lr * h / sqrt(n)
    ```

    Args:
        learning_rate: a number or a schedule.
        initial_accumulator_value: n of a new row.
        weight_decay_factor: share of the weight that is added to its gradient.
        warmup_steps: number of steps in which the rate rises from 0 to `learning_rate`.
        hessian_compression_times: only 1 is supported.

    Example:
        >>> Adagrad(0.05).initial_accumulator_value
        0.1
    """

    learning_rate: LearningRate = 0.001
    initial_accumulator_value: float = number(0.1)
    weight_decay_factor: float = number(0.0)
    warmup_steps: int = steps()
    hessian_compression_times: float = refused(1)

    def _state(self, dim: int) -> tuple[StateColumn, ...]:
        return (StateColumn("norm", dim, self.initial_accumulator_value),)


@dataclass(frozen=True)
class RowWiseAdagrad(Optimizer):
    """Adagrad with one accumulator for the whole segment, of d weights.

    ```
    s <- s + sum(g^2) / d
    w <- w - lr * g / (sqrt(s) + epsilon)
    ```

    Args:
        learning_rate: a number or a schedule.
        initial_accumulator_value: s of a new row.
        epsilon: added to the root.

    Example:
        >>> RowWiseAdagrad().state(dim=64)[0].size
        1
    """

    learning_rate: LearningRate = 0.01
    initial_accumulator_value: float = number(0.0)
    epsilon: float = number(1e-8)

    def _state(self, dim: int) -> tuple[StateColumn, ...]:
        return (StateColumn("norm", 1, self.initial_accumulator_value),)


@dataclass(frozen=True)
class GroupAdagrad(Optimizer):
    """Adagrad with group lasso: weak weights of a segment become 0 together.

    ```
    h = g + weight_decay_factor * w
    s <- s + max(h^2)
    l = lr / (beta + sqrt(s));  y = h - w / l
    w <- 0 if |y| <= l2_regularization else -l * ((|y| - l2_regularization) / |y|) * y
    ```

    Args:
        learning_rate: a number or a schedule.
        beta: added to the root.
        initial_accumulator_value: s of a new row.
        l2_regularization: strength of the group lasso.
        weight_decay_factor: share of the weight that is added to its gradient.
        warmup_steps: number of steps in which the rate rises from 0 to `learning_rate`.

    Example:
        >>> GroupAdagrad().state(dim=64)[0].name
        'grad_square_sum'
    """

    learning_rate: LearningRate = 0.01
    beta: float = number(0.0)
    initial_accumulator_value: float = number(0.1)
    l2_regularization: float = number(0.0)
    weight_decay_factor: float = number(0.0)
    warmup_steps: int = steps()

    def _state(self, dim: int) -> tuple[StateColumn, ...]:
        return (StateColumn("grad_square_sum", 1, self.initial_accumulator_value),)


@dataclass(frozen=True)
class DynamicWdAdagrad(Optimizer):
    """Adagrad whose weight decay can act on the weight instead of on the gradient.

    ```
    as Adagrad; with decouple_weight_decay:
    n <- n + g^2
    w <- w - lr * g / sqrt(n) - lr * weight_decay_factor * w
    ```

    Args:
        learning_rate: a number or a schedule.
        initial_accumulator_value: n of a new row.
        weight_decay_factor: strength of the weight decay.
        decouple_weight_decay: whether the decay acts on the weight, not on the gradient.
        warmup_steps: number of steps in which the rate rises from 0 to `learning_rate`.
        hessian_compression_times: only 1 is supported.
        enable_dynamic_wd: only False is supported.
        flip_direction: only False is supported.
        dynamic_wd_temperature: only 1 is supported.

    Example:
        >>> DynamicWdAdagrad(0.1).decouple_weight_decay
        False
    """

    learning_rate: LearningRate = 0.001
    initial_accumulator_value: float = number(0.1)
    weight_decay_factor: float = number(0.0)
    decouple_weight_decay: bool = flag()
    warmup_steps: int = steps()
    hessian_compression_times: float = refused(1)
    enable_dynamic_wd: bool = refused(False)
    flip_direction: bool = refused(False)
    dynamic_wd_temperature: float = refused(1.0)

    def _state(self, dim: int) -> tuple[StateColumn, ...]:
        return (StateColumn("norm", dim, self.initial_accumulator_value),)
