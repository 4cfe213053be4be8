"""RMSprop that adds up scaled gradients as momentum, in two variants."""

from typing import Any, ClassVar

import torch

from monolith.optim.dense import LEAST_EPSILON, DenseOptimizer, LearningRate
from monolith.optim.dense_step import DenseStep
from monolith.optim.update_rules import Rate
from monolith.table.arguments import check_kind


class RmspropOptimizer(DenseOptimizer):
    """The RMSprop optimizer with scaled gradients added up as momentum.

    ```
    h = g + weight_decay * w
    v <- beta2 * v + (1 - beta2) * h^2           with use_v2: v <- beta2 * v + h^2
    m <- beta1 * m + lr * h / sqrt(v + epsilon)  with use_v2: ... / (sqrt(v) + epsilon)
    w <- w - m
    ```

    Args:
        params: Parameters or parameter groups.
        learning_rate: Learning rate: a number, a tensor of one element, or a function without
            arguments; see `DenseOptimizer`.
        beta1: Decay of the momentum.
        beta2: Decay of the mean of squares, or with `use_v2` of the sum of squares.
        epsilon: Number that keeps the divisor above 0.
        weight_decay: Share of the weight that is added to its gradient.
        use_locking: Whether several threads may call `step` concurrently.
        use_v2: Whether to use the second variant, for each group.
        name: Middle part of the state's names, `<parameter>/<name>/<slot>`.

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
        """Add a group of parameters; see `DenseOptimizer.add_param_group`."""
        super().add_param_group(param_group)
        check_kind("[RmspropOptimizer]", "use_v2", self.param_groups[-1]["use_v2"], bool)

    def _update(self, group: dict[str, Any], rate: Rate, *lists: list[torch.Tensor]) -> None:
        options = [float(group[name]) for name in ("beta1", "beta2", "epsilon", "weight_decay")]
        DenseStep("rmsprop_v2" if group["use_v2"] else "rmsprop", options, rate).run(*lists)
