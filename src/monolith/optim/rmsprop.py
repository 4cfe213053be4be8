"""RMSprop that adds up scaled gradients as momentum, in two variants."""

from typing import Any, ClassVar

import torch

from monolith.optim.dense import LEAST_EPSILON, DenseOptimizer, LearningRate
from monolith.optim.dense_step import DenseStep
from monolith.optim.update_rules import Rate
from monolith.table.arguments import check_kind


class RmspropOptimizer(DenseOptimizer):
    """RMSprop that adds up scaled gradients as momentum.

    ```
    h = g + weight_decay * w
    v <- beta2 * v + (1 - beta2) * h^2           with use_v2: v <- beta2 * v + h^2
    m <- beta1 * m + lr * h / sqrt(v + epsilon)  with use_v2: ... / (sqrt(v) + epsilon)
    w <- w - m
    ```

    Args:
        params: parameters or groups of them.
        learning_rate: see `DenseOptimizer`.
        beta1: what is kept of the momentum.
        beta2: what is kept of the mean, or with `use_v2` of the sum, of squares.
        epsilon: keeps the divisor above 0.
        weight_decay: share of the weight that is added to its gradient.
        use_locking: whether several threads may call `step` at once.
        use_v2: the second variant; groups may differ in it.
        name: part of the names of the state.

    Example:
        >>> w = torch.nn.Parameter(torch.tensor([0.1]))
        >>> optimizer = RmspropOptimizer([w], learning_rate=0.1)
        >>> (0.12 * w).sum().backward()
        >>> optimizer.step()
        >>> sorted(optimizer.state[w])
        ['m', 'v']
    """

    slots = ("m", "v")
    ranges: ClassVar = {
        "beta1": (0.0, 1.0),
        "beta2": (0.0, 1.0),
        "epsilon": (LEAST_EPSILON, 1e38),
        "weight_decay": (0.0, 1e38),
    }

    def __init__(
        self,
        params: Any,
        learning_rate: LearningRate = 5e-6,
        *,
        beta1: float = 0.99,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        use_locking: bool = False,
        use_v2: bool = False,
        name: str = "Rmsprop",
    ) -> None:
        options = {
            "lr": learning_rate,
            "beta1": beta1,
            "beta2": beta2,
            "epsilon": epsilon,
            "weight_decay": weight_decay,
            "use_v2": use_v2,
        }
        super().__init__(params, options, name=name, use_locking=use_locking)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As of `DenseOptimizer`."""
        super().add_param_group(param_group)
        check_kind("[RmspropOptimizer]", "use_v2", self.param_groups[-1]["use_v2"], bool)

    def _update(self, group: dict[str, Any], rate: Rate, *lists: list[torch.Tensor]) -> None:
        options = [float(group[name]) for name in ("beta1", "beta2", "epsilon", "weight_decay")]
        DenseStep("rmsprop_v2" if group["use_v2"] else "rmsprop", options, rate).run(*lists)
