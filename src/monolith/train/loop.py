"""One step of training, with every stage by its name."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch

from monolith.data import Batch

if TYPE_CHECKING:
    from monolith.train.trainer import Trainer

__all__ = ["StepOutput", "TrainStep"]


class StepOutput(NamedTuple):
    """What a step gave: hooks see it as `results.value`.

    Attributes:
        batch: of the step.
        loss: a scalar without gradient; None in prediction.
        prediction: a row for each sample, without gradient.
    """

    batch: Batch
    loss: torch.Tensor | None
    prediction: torch.Tensor


class TrainStep:
    """A step of training; `drive` calls it until the batches end."""

    def __init__(self, trainer: "Trainer", batches: Iterator[Batch]) -> None:
        self._trainer, self._batches = trainer, batches

    def __call__(self) -> StepOutput:
        """Raises StopIteration when the batches end, or the steps are done."""
        trainer = self._trainer
        steps, done = trainer.settings.steps, trainer.run.global_step or 0
        if steps is not None and done >= steps:
            raise StopIteration
        batch = trainer.columns.bind(next(self._batches))  # samples: ragged ids, dense, labels
        inputs = trainer.inputs(batch)  # one lookup of all tables, pooled
        trainer.optimizer.zero_grad()
        loss, prediction = trainer.task.loss(trainer.model, inputs, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        trainer.optimizer.step()  # dense parameters; tables: one step per distinct id
        trainer.run.global_step = done + 1
        return StepOutput(batch, loss.detach(), prediction.detach())
