"""Continue a backward pass from gradients that a caller already has."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TypeVar

import torch

_Key = TypeVar("_Key", bound=Hashable)
_GradsAndVars = Sequence[tuple[torch.Tensor | None, torch.Tensor]]


def propagate_back_gradients(
    grads_and_vars: _GradsAndVars,
    xs: Sequence[torch.Tensor],
    valid_var_set: Collection[torch.Tensor] | None = None,
) -> list[torch.Tensor | None]:
    """Propagate gradients of variables back to what the variables were computed from.

    The graph stays, so that a caller may ask again.

    Args:
        grads_and_vars: pairs of a gradient and its variable; None stands for no gradient. Variables
            that were computed from nothing that requires a gradient are left out.
        xs: tensors that require a gradient.
        valid_var_set: the only variables that may occur, if given.

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
    if valid_var_set is not None:
        valid = {id(variable) for variable in valid_var_set}  # == of tensors compares numbers
        for _, variable in grads_and_vars:
            if id(variable) not in valid:
                raise RuntimeError("Invalid variables in the input", variable, valid_var_set)
    pairs = [pair for pair in grads_and_vars if pair[0] is not None and pair[1].requires_grad]
    if not pairs or not xs:
        return [None] * len(xs)
    gradients, variables = zip(*pairs, strict=True)
    grads = torch.autograd.grad(variables, xs, gradients, retain_graph=True, allow_unused=True)
    return list(grads)


def propagate_back_dict_gradients(
    grads_and_vars: _GradsAndVars,
    x_to_key: Mapping[torch.Tensor, _Key],
    valid_var_set: Collection[torch.Tensor] | None = None,
) -> dict[_Key, list[tuple[torch.Tensor | None, torch.Tensor]]]:
    """`propagate_back_gradients` to the keys of a dictionary, grouped by its values.

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
