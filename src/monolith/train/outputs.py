"""What a task's `loss` gives back, checked."""

from typing import Any

import torch

__all__ = ["checked_outputs"]


def checked_outputs(given: Any, *, is_training: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and prediction, if they are what `Task.loss` promises.

    Args:
        given: what it returned.
        is_training: the loss needs a gradient.

    Raises:
        TypeError: it is no pair of tensors.
        ValueError: the loss is not one number or has no gradient, or the prediction has no rows.
    """
    is_pair = isinstance(given, tuple | list) and len(given) == 2
    if not is_pair or not all(isinstance(each, torch.Tensor) for each in given):
        got = f"({', '.join(type(each).__name__ for each in given)})" if is_pair else _kind(given)
        raise TypeError(f"[Task.loss] expected loss and prediction, two tensors, got {got}")
    loss, prediction = given
    if loss.numel() != 1:
        raise ValueError(
            f"[Task.loss] expected a loss of one number, got shape {tuple(loss.shape)}; take its "
            "mean"
        )
    if prediction.dim() == 0:
        raise ValueError("[Task.loss] expected a prediction for each sample, got one number")
    if is_training and not loss.requires_grad:
        raise ValueError(
            "[Task.loss] expected a loss with a gradient, got one without: it does not depend on "
            "features or model, or was detached"
        )
    return loss, prediction


def _kind(given: Any) -> str:
    number = f" of {len(given)}" if isinstance(given, tuple | list) else ""
    return f"{type(given).__name__}{number}"
