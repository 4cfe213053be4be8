"""Whether somebody else may write a gradient that torch hands to a backward."""

import sys
from typing import Any

import torch

from monolith.embedding.anchor_queue import queue_once

__all__ = ["Holders", "holders_alone", "holders_of", "own"]

Holders = tuple[int, int, int, int]
"""References to a tensor and to its storage: of Python to the object, and of C++, each."""


def holders_of(gradients: torch.Tensor) -> Holders:
    """Who holds gradients, running functions among them."""
    held: Any = gradients
    storage = held.untyped_storage()
    return (
        sys.getrefcount(gradients),
        held._use_count(),
        sys.getrefcount(storage),
        torch._C._storage_Use_Count(storage._cdata),
    )


def own(gradients: torch.Tensor, is_alone: bool) -> torch.Tensor:
    """The gradients in memory that nobody else writes before the step.

    Those that nobody else holds are taken as they are, as torch does with those of parameters.

    Args:
        gradients: as a backward got them.
        is_alone: whether torch's call of the backward is all that holds them.
    """
    held: Any = gradients
    is_ours = (
        is_alone
        and gradients.is_contiguous()
        and not held._is_view()
        and held.untyped_storage().resizable()  # the memory of others is not
    )
    return gradients if is_ours else gradients.clone(memory_format=torch.contiguous_format)


def holders_alone() -> Holders:
    """`holders_of` gradients that torch alone hands on, two calls below a backward.

    Versions of Python and torch differ in it, so it is counted.
    """
    found: list[Holders] = []
    with torch.inference_mode(False), torch.enable_grad():
        given = torch.zeros(1, dtype=torch.float32, device="cpu", requires_grad=True)
        (_Probe.apply(given, found) * 2).sum().backward()  # type: ignore[no-untyped-call]
    return found[0]


class _Probe(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, found: list[Holders]) -> torch.Tensor:
        ctx.found = found
        return given.clone()

    @staticmethod
    def backward(ctx: Any, gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return queue_once(_note, ctx, gradients)


def _note(ctx: Any, gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    ctx.found.append(holders_of(gradients))
    return None, None
