"""Whether somebody else may write a gradient that torch hands to a backward."""

import sys
from typing import Any

import torch

from monolith.embedding.anchor_queue import queue_once

__all__ = ["fewest_holders", "num_holders", "own"]

_ONE_TENSOR = 2  # holders of its storage: the tensor, and the object that asks


def num_holders(gradients: torch.Tensor) -> int:
    """Python references to gradients, those of running functions among them."""
    return sys.getrefcount(gradients)


def own(gradients: torch.Tensor, has_others: bool) -> torch.Tensor:
    """The gradients in memory that nobody else writes before the step.

    Those that nobody else holds are taken as they are, as torch does with those of parameters.

    Args:
        gradients: as a backward got them.
        has_others: whether Python holds them elsewhere too.
    """
    held: Any = gradients
    is_ours = (
        not has_others
        and gradients.is_contiguous()
        and not held._is_view()
        and held._use_count() == 1
        and torch._C._storage_Use_Count(held.untyped_storage()._cdata) == _ONE_TENSOR
        and held.untyped_storage().resizable()  # the memory of others is not
    )
    return gradients if is_ours else gradients.clone(memory_format=torch.contiguous_format)


def fewest_holders() -> int:
    """`num_holders` of gradients that torch alone hands on, two calls below a backward.

    Versions of Python differ in it, so it is counted.
    """
    found: list[int] = []
    with torch.inference_mode(False), torch.enable_grad():
        given = torch.zeros(1, dtype=torch.float32, device="cpu", requires_grad=True)
        (_Probe.apply(given, found) * 2).sum().backward()  # type: ignore[no-untyped-call]
    return found[0]


class _Probe(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, found: list[int]) -> torch.Tensor:
        ctx.found = found
        return given.clone()

    @staticmethod
    def backward(ctx: Any, gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return queue_once(_note, ctx, gradients)


def _note(ctx: Any, gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    ctx.found.append(num_holders(gradients))
    return None, None
