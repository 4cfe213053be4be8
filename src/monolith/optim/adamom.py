"""Adamom: momentum divided by the root of a decayed sum of squares over a decayed count."""

from typing import Any, ClassVar

import torch

from monolith.optim.dense import LEAST_EPSILON, DenseOptimizer, LearningRate
from monolith.optim.dense_step import DenseStep
from monolith.optim.update_rules import Rate


class AdamomOptimizer(DenseOptimizer):
    """The Adamom optimizer: momentum divided by the root of a decayed mean of squares.

    ```
    h = g + weight_decay * w
    m <- mom_decay * m + (1 - mom_decay) * h
    v <- ada_decay * v + h^2
    c <- ada_decay * c + 1
    w <- w - lr * m / sqrt(v / c + epsilon)
    ```

    Args:
        params: Parameters or parameter groups.
        learning_rate: Learning rate: a number, a tensor of one element, or a function without
            arguments; see `DenseOptimizer`.
        ada_decay: Decay of the sum of squares and of the count.
        mom_decay: Decay of the momentum.
        epsilon: Number added below the root.
        weight_decay: Share of the weight that is added to its gradient.
        use_locking: Whether several threads may call `step` concurrently.
        name: Middle part of the state's names, `<parameter>/<name>/<slot>`.

    Example:
        >>> w = torch.nn.Parameter(torch.tensor([0.1]))
        >>> optimizer = AdamomOptimizer([w], learning_rate=0.1)
        >>> (0.12 * w).sum().backward()
        >>> optimizer.step()
        >>> sorted(optimizer.state[w])
        ['c', 'm', 'v']
    """

    slots = ("m", "v", "c")
    ranges: ClassVar = {
        "ada_decay": (0.0, 1.0),
        "mom_decay": (0.0, 1.0),
        "epsilon": (LEAST_EPSILON, 1e38),
        "weight_decay": (0.0, 1e38),
    }

    def __init__(
        self,
        params: Any,
        learning_rate: LearningRate = 5e-6,
        *,
        ada_decay: float = 0.9999,
        mom_decay: float = 0.99,
        epsilon: float = 1e-6,
        weight_decay: float = 0.0,
        use_locking: bool = False,
        name: str = "Adamom",
    ) -> None:
        options = {
            "lr": learning_rate,
            "ada_decay": ada_decay,
            "mom_decay": mom_decay,
            "epsilon": epsilon,
            "weight_decay": weight_decay,
        }
        super().__init__(params, options, name=name, use_locking=use_locking)

    def _update(self, group: dict[str, Any], rate: Rate, *lists: list[torch.Tensor]) -> None:
        names = ("ada_decay", "mom_decay", "epsilon", "weight_decay")
        options = [float(group[name]) for name in names]
        DenseStep("adamom", options, rate).run(*lists)
