"""Make a loss whose backward brings gradients that were computed before."""

from collections.abc import Sequence
from typing import Any

import torch


def with_gradients(
    loss: torch.Tensor, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> torch.Tensor:
    """The value of a loss; its backward gives each tensor the gradient of its pair, and no other.

    Whatever is done to the loss, a factor for example, is done to the gradients.

    Args:
        loss: a scalar.
        pairs: gradients, and the tensors that get them.

    Example:
        >>> weight = torch.ones(2, requires_grad=True)
        >>> loss = with_gradients(torch.tensor(5.0), [(torch.tensor([1.0, 2.0]), weight)])
        >>> (loss / 2).backward()
        >>> loss.item(), weight.grad
        (5.0, tensor([0.5000, 1.0000]))
    """
    gradients = tuple(gradient.detach() for gradient, _ in pairs)
    # A leaf of its own, so that a loss without gradients has a backward too.
    anchor = torch.zeros((), requires_grad=True)
    tensors = [tensor for _, tensor in pairs]
    carrier = _LossGradients.apply(loss.detach(), gradients, anchor, *tensors)  # type: ignore[no-untyped-call]
    assert isinstance(carrier, torch.Tensor)
    return carrier


class _LossGradients(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, loss: torch.Tensor, gradients: tuple[torch.Tensor, ...], *tensors: torch.Tensor
    ) -> torch.Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, factor: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, None, None, *[factor * gradient for gradient in ctx.gradients]
