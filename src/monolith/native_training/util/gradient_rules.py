"""Clip the gradients of a step by one norm over model and tables, and add weight decay."""

import math

import torch

from monolith.native_training.util.clipping import global_norm, warmed_up_norm
from monolith.optim import Optimizer


def clip_and_decay(
    optimizer: Optimizer,
    step: int,
    *,
    clip_norm: float | None,
    sparse_norm_warmup_steps: int | None = None,
    weight_decay: float = 0.0,
) -> float:
    """Clip the gradients of dense parameters and tables together, then add `weight_decay * v`.

    Weight decay is that of dense parameters with a gradient, and is not clipped.

    Args:
        optimizer: Optimizer with the gradients.
        step: Number of steps before this one.
        clip_norm: Greatest norm; None clips nothing.
        sparse_norm_warmup_steps: Steps in which the bound of the tables grows from 0; None has no
            warm-up.
        weight_decay: Factor of the values that are added to their gradients.

    Returns:
        The norm over all gradients before clipping. Gradients become NaN if the norm is not finite,
        and the step then refuses those of tables.

    Raises:
        ValueError: A bound is negative or NaN, or there are no steps of a warm-up.
    """
    anchors = {queue.anchor for queue in optimizer.queues}
    trained = [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if isinstance(parameter, torch.Tensor) and parameter.grad is not None
    ]
    norm = float(global_norm([parameter.grad for parameter in trained])) if trained else 0.0
    if clip_norm is not None:
        of_tables = warmed_up_norm(clip_norm, step, sparse_norm_warmup_steps)
        for parameter in trained:
            factor = _factor(norm, of_tables if parameter in anchors else clip_norm)
            if factor != 1:
                assert parameter.grad is not None
                parameter.grad.mul_(factor)
    if weight_decay:
        for parameter in trained:
            if parameter not in anchors:
                assert parameter.grad is not None
                parameter.grad.add_(parameter.detach(), alpha=weight_decay)
    return norm


def _factor(norm: float, bound: float) -> float:
    if not bound >= 0:
        raise ValueError(f"[clip_norm] expected a bound >= 0, got {bound}")
    if not math.isfinite(norm):
        return math.nan
    return bound / norm if norm > bound else 1.0
