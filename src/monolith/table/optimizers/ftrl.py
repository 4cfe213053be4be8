"""Follow the regularised leader: sparse weights by L1, per weight or per segment."""

from dataclasses import dataclass

from monolith.table.optimizers.optimizer_base import (
    LearningRate,
    Optimizer,
    StateColumn,
    number,
    steps,
)


@dataclass(frozen=True)
class FTRL(Optimizer):
    """Follow the regularised leader, proximal.

    ```
    n' = n + g^2;  z <- z + g - (sqrt(n') - sqrt(n)) / lr * w;  n <- n'
    w <- 0 if |z| <= l1_regularization else
         lr * (sign(z) * l1_regularization - z) / (sqrt(n) + beta + l2_regularization * lr)
    ```

    Args:
        learning_rate: a number or a schedule.
        initial_accumulator_value: n of a new row.
        beta: added to the root.
        l1_regularization: bound on |z| up to which a weight is 0.
        l2_regularization: strength of the shrinkage of all weights.
        warmup_steps: number of steps in which the rate rises from 0 to `learning_rate`.

    Example:
        >>> [column.name for column in FTRL().state(dim=8)]
        ['zero', 'norm']
    """

    learning_rate: LearningRate = 0.01
    initial_accumulator_value: float = number(0.1)
    beta: float = number(0.0)
    l1_regularization: float = number(0.0)
    l2_regularization: float = number(0.0)
    warmup_steps: int = steps()

    def _state(self, dim: int) -> tuple[StateColumn, ...]:
        norm = StateColumn("norm", dim, self.initial_accumulator_value)
        return (StateColumn("zero", dim, 0.0), norm)


@dataclass(frozen=True)
class GroupFTRL(FTRL):
    """FTRL whose L1 acts on the norm |z| of the whole segment.

    ```
    n, z as in FTRL
    w <- 0 if |z| <= l1_regularization else
         lr * z * ((l1_regularization - |z|) / |z|) / (beta + sqrt(n) + l2_regularization * lr)
    ```

    Args:
        learning_rate: a number or a schedule.
        initial_accumulator_value: n of a new row.
        beta: added to the root.
        l1_regularization: bound on |z| up to which a segment is 0.
        l2_regularization: strength of the shrinkage of all weights.
        warmup_steps: number of steps in which the rate rises from 0 to `learning_rate`.

    Example:
        >>> GroupFTRL().beta
        1.0
    """

    initial_accumulator_value: float = number(0.0)
    beta: float = number(1.0)
