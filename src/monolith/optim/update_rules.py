"""The update rules of dense parameters over lists of tensors of one dtype, in torch.

The same rules exist for float32 in the compiled core (`native/optimizer/dense_rules.h`) for the CPU
and as Triton kernels for CUDA; all agree within rounding. `options` has the order of the core.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch

Rate = float | torch.Tensor
Tensors = list[torch.Tensor]


def adamom(
    weights: Tensors, grads: Tensors, states: Tensors, options: Sequence[float], rate: Rate
) -> None:
    """Update weights and states in place by the rule of `AdamomOptimizer`."""
    ada, mom, epsilon, decay = options
    m, v, c = _split(states, 3)
    h = torch._foreach_add(grads, weights, alpha=decay)
    torch._foreach_mul_(m, mom)
    torch._foreach_add_(m, h, alpha=_rest(mom, weights))
    torch._foreach_mul_(v, ada)
    torch._foreach_addcmul_(v, h, h)
    torch._foreach_mul_(c, ada)
    torch._foreach_add_(c, 1.0)
    root = torch._foreach_div(v, c)
    torch._foreach_add_(root, epsilon)
    torch._foreach_sqrt_(root)
    change = torch._foreach_mul(m, rate)
    torch._foreach_div_(change, root)
    torch._foreach_sub_(weights, change)


def rmsprop(
    weights: Tensors, grads: Tensors, states: Tensors, options: Sequence[float], rate: Rate
) -> None:
    """Update weights and states in place by the rule of `RmspropOptimizer`."""
    beta1, beta2, epsilon, decay = options
    m, v = _split(states, 2)
    h = torch._foreach_add(grads, weights, alpha=decay)
    torch._foreach_mul_(v, beta2)
    torch._foreach_addcmul_(v, h, h, value=_rest(beta2, weights))
    root = torch._foreach_add(v, epsilon)
    torch._foreach_sqrt_(root)
    _apply_momentum(weights, m, h, root, beta1, rate)


def rmsprop_v2(
    weights: Tensors, grads: Tensors, states: Tensors, options: Sequence[float], rate: Rate
) -> None:
    """Update weights and states in place by the rule of `RmspropOptimizer` with `use_v2`."""
    beta1, beta2, epsilon, decay = options
    m, v = _split(states, 2)
    h = torch._foreach_add(grads, weights, alpha=decay)
    torch._foreach_mul_(v, beta2)
    torch._foreach_addcmul_(v, h, h)
    root = torch._foreach_sqrt(v)
    torch._foreach_add_(root, epsilon)
    _apply_momentum(weights, m, h, root, beta1, rate)


Rule = Callable[[Tensors, Tensors, Tensors, Sequence[float], Rate], None]
RULES: Mapping[str, Rule] = MappingProxyType(
    {"adamom": adamom, "rmsprop": rmsprop, "rmsprop_v2": rmsprop_v2}
)
NUM_STATES: Mapping[str, int] = MappingProxyType({"adamom": 3, "rmsprop": 2, "rmsprop_v2": 2})


def _rest(decay: float, weights: Tensors) -> float:
    """Return 1 - decay, with the decay rounded to float32 first unless weights are float64."""
    if weights[0].dtype == torch.float64:
        return 1.0 - decay
    return 1.0 - round(decay * 2**24) / 2**24


def _split(states: Tensors, number: int) -> list[Tensors]:
    """Return the first state tensors of all parameters, the second state tensors, and so on."""
    size = len(states) // number
    return [states[i * size : (i + 1) * size] for i in range(number)]


def _apply_momentum(
    weights: Tensors,
    m: Tensors,
    h: tuple[torch.Tensor, ...],
    root: tuple[torch.Tensor, ...],
    beta1: float,
    rate: Rate,
) -> None:
    torch._foreach_mul_(h, rate)
    torch._foreach_div_(h, root)
    torch._foreach_mul_(m, beta1)
    torch._foreach_add_(m, h)
    torch._foreach_sub_(weights, m)
