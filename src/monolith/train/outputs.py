"""What a task's `loss` gives back, checked."""

from typing import TYPE_CHECKING, Any

import torch

from monolith.data import Batch
from monolith.train.inputs import Inputs

if TYPE_CHECKING:
    from monolith.train.trainer import Trainer

__all__ = ["outputs_of"]


def outputs_of(
    trainer: "Trainer", inputs: Inputs, batch: Batch, *, is_training: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and prediction of a batch, if they are what `Task.loss` promises.

    Args:
        trainer: has task and model.
        inputs: of the batch.
        batch: with labels.
        is_training: the loss needs a gradient.

    Raises:
        TypeError: `Task.loss` gives no pair of tensors.
        ValueError: the loss is not one number or has no gradient, or the prediction has no rows.
        RuntimeError: `Task.loss` raised StopIteration, which would end the run like its data.
    """
    try:
        given = trainer.task.loss(trainer.model, inputs, batch)
    except StopIteration as error:
        raise RuntimeError("[Task.loss] expected a loss, got StopIteration") from error
    return _checked(given, is_training)


def _checked(given: Any, is_training: bool) -> tuple[torch.Tensor, torch.Tensor]:
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
