"""The op `monolith::step_group`: a graph of torch.compile calls an optimizer to step one group.

A graph cannot hold a lock, or compute eigenvectors in some steps only.
"""

import itertools
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from monolith.errors import FailedPreconditionError
from monolith.optim.update_rules import Rate


class GroupSteps(Protocol):
    """The interface of an optimizer to the op."""

    def step_group(self, number: int, rate: Rate, lists: list[list[torch.Tensor]]) -> None:
        """Update a group in place.

        Args:
            number: Index of the group.
            rate: Learning rate, or a tensor of one element that holds it.
            lists: Parameters, tensors that are only read, then one list for each kind of state.
        """


# A graph holds handles, not optimizers. A handle is never used again.
_OPTIMIZERS: "weakref.WeakValueDictionary[int, GroupSteps]" = weakref.WeakValueDictionary()
_HANDLES = itertools.count(1)


def handle_of(optimizer: GroupSteps) -> int:
    """Return a new handle for an optimizer, valid in graphs while the optimizer is alive."""
    handle = next(_HANDLES)
    _OPTIMIZERS[handle] = optimizer
    return handle


def step_in_graph(handle: int, number: int, rate: Rate, lists: list[list[torch.Tensor]]) -> None:
    """Add a call of an optimizer's `step_group` to the graph that torch.compile traces.

    Args:
        handle: Handle of the optimizer.
        number: Index of the group.
        rate: Learning rate, or a tensor of one element that holds it.
        lists: Argument `lists` of `step_group`.
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
    """Return nothing: the op only changes its arguments."""
