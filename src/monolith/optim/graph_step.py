"""An op by which a graph of torch.compile has an optimizer step one of its groups.

It is for what a graph cannot hold: a lock, and eigenvectors that are computed by a schedule.
"""

import itertools
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from monolith.errors import FailedPreconditionError
from monolith.optim.update_rules import Rate


class GroupSteps(Protocol):
    """An optimizer, as the op knows it."""

    def step_group(self, number: int, rate: Rate, lists: list[list[torch.Tensor]]) -> None:
        """Update in place: parameters, what is only read, and lists of state."""


# A graph holds numbers, not optimizers. A number is never used again.
_OPTIMIZERS: "weakref.WeakValueDictionary[int, GroupSteps]" = weakref.WeakValueDictionary()
_HANDLES = itertools.count(1)


def handle_of(optimizer: GroupSteps) -> int:
    """A new number by which graphs know an optimizer, as long as it lives."""
    handle = next(_HANDLES)
    _OPTIMIZERS[handle] = optimizer
    return handle


def step_in_graph(handle: int, number: int, rate: Rate, lists: list[list[torch.Tensor]]) -> None:
    """Put `step_group` of an optimizer into the graph that is being traced.

    Args:
        handle: of the optimizer.
        number: of the group.
        rate: learning rate, or a tensor of one element that holds it.
        lists: as `step_group` takes them.
    """
    states = [tensor for tensors in lists[2:] for tensor in tensors]
    sizes = [len(tensors) for tensors in lists[2:]]
    is_tensor = isinstance(rate, torch.Tensor)
    value, tensor = (0.0, rate) if is_tensor else (rate, None)
    torch.ops.monolith.step_group(handle, number, lists[0], lists[1], states, sizes, value, tensor)


@torch.library.custom_op(
    "monolith::step_group",
    mutates_args=("parameters", "states"),
    schema="(int handle, int number, Tensor(a!)[] parameters, Tensor[] inputs, "
    "Tensor(b!)[] states, int[] sizes, float rate, Tensor? rate_tensor) -> ()",
)
def _step_op(
    handle: int,
    number: int,
    parameters: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    states: Sequence[torch.Tensor],
    sizes: Sequence[int],
    rate: float,
    rate_tensor: torch.Tensor | None,
) -> None:
    optimizer = _OPTIMIZERS.get(handle)
    if optimizer is None:
        raise FailedPreconditionError(
            f"[monolith::step_group] expected the optimizer of handle {handle} to be alive in this "
            "process, got none; compile the step again where it is"
        )
    rest = iter(states)
    kinds = [list(itertools.islice(rest, size)) for size in sizes]
    optimizer.step_group(
        number,
        rate if rate_tensor is None else rate_tensor,
        [list(parameters), list(inputs), *kinds],
    )


@_step_op.register_fake
def _(*arguments: Any) -> None:
    """Changes its arguments and returns nothing."""
