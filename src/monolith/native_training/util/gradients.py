"""Continue a backward pass from gradients that a caller already has."""

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

import torch

_Key = TypeVar("_Key", bound=Hashable)
_GradsAndVars = Iterable[tuple[torch.Tensor | None, torch.Tensor]]


def propagate_back_gradients(
    grads_and_vars: _GradsAndVars,
    xs: Iterable[torch.Tensor],
    valid_var_set: Iterable[torch.Tensor] | None = None,
) -> list[torch.Tensor | None]:
    """Propagate gradients of variables back to what the variables were computed from.

    The graph stays, so that a caller may ask again.

    Args:
        grads_and_vars: pairs of a gradient and its variable, also as `zip` or a generator; None
            stands for no gradient. Variables that were computed from nothing that requires a
            gradient are left out.
        xs: tensors that require a gradient.
        valid_var_set: the only variables that may occur; None allows every variable.

    Returns:
        The gradient of each of `xs`; None where no variable depends on it.

    Raises:
        RuntimeError: a variable is not in `valid_var_set`.

    Example:
        >>> x = torch.tensor(8.0, requires_grad=True)
        >>> y = 2 * x
        >>> propagate_back_gradients([(torch.tensor(3.0), y)], [x])
        [tensor(6.)]
    """
    all_pairs, xs = list(grads_and_vars), list(xs)  # an iterator gives its values once
    if valid_var_set is not None:
        allowed = list(valid_var_set)
        valid = {id(variable) for variable in allowed}  # == of tensors compares numbers
        for _, variable in all_pairs:
            if id(variable) not in valid:
                raise RuntimeError("Invalid variables in the input", variable, allowed)
    pairs = [pair for pair in all_pairs if pair[0] is not None and pair[1].requires_grad]
    if not pairs or not xs:
        return [None] * len(xs)
    gradients, variables = zip(*pairs, strict=True)
    grads = torch.autograd.grad(variables, xs, gradients, retain_graph=True, allow_unused=True)
    return list(grads)


def propagate_back_dict_gradients(
    grads_and_vars: _GradsAndVars,
    x_to_key: Mapping[torch.Tensor, _Key],
    valid_var_set: Iterable[torch.Tensor] | None = None,
) -> dict[_Key, list[tuple[torch.Tensor | None, torch.Tensor]]]:
    """Propagate gradients back to the keys of a dictionary, grouped by its values.

    See `propagate_back_gradients`.

    Returns:
        For each value of `x_to_key` the pairs of a gradient and its tensor, in its order.

    Raises:
        RuntimeError: a variable is not in `valid_var_set`.

    Example:
        >>> x = torch.tensor(8.0, requires_grad=True)
        >>> y = 2 * x
        >>> propagate_back_dict_gradients([(3 * y.detach(), y)], {x: "group1"})
        {'group1': [(tensor(96.), tensor(8., requires_grad=True))]}
    """
    gradients = propagate_back_gradients(grads_and_vars, list(x_to_key), valid_var_set)
    grouped: dict[_Key, list[tuple[torch.Tensor | None, torch.Tensor]]] = {}
    for gradient, (x, key) in zip(gradients, x_to_key.items(), strict=True):
        grouped.setdefault(key, []).append((gradient, x))
    return grouped
