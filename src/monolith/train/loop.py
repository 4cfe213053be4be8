"""One step of training, with every stage by its name."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

from monolith.data import Batch
from monolith.train.inputs import Inputs
from monolith.train.kept_batch import loss_error
from monolith.train.step_reader import StepReader
from monolith.train.updates import Updates

if TYPE_CHECKING:
    from monolith.train.trainer import Trainer

__all__ = ["BatchOutput", "ModelOutput", "Part", "StepOutput", "TrainLoop", "Work"]


class Part(NamedTuple):
    """A batch of a step, and what was looked up for it."""

    batch: Batch
    inputs: Inputs


class Work(NamedTuple):
    """What a step needs.

    Attributes:
        parts: one per batch; several where gradients are accumulated.
        version: number of updates that were applied before the lookup began.
    """

    parts: list[Part]
    version: int


class ModelOutput(NamedTuple):
    """What `Task.loss` gives: loss and prediction, and maybe a step of its own.

    Attributes:
        loss: a scalar.
        prediction: a row for each sample.
        step: does what a step does in place of backward and the optimizer; None: the trainer does.
    """

    loss: torch.Tensor
    prediction: torch.Tensor
    step: Callable[[], object] | None = None


class BatchOutput(NamedTuple):
    """What a model made of a batch.

    Attributes:
        batch: the samples.
        loss: None in prediction.
        prediction: a row for each sample, without gradient.
    """

    batch: Batch
    loss: float | None
    prediction: torch.Tensor


class StepOutput(NamedTuple):
    """What a step gave: hooks see it as `results.value`.

    Attributes:
        parts: one per batch.
        staleness: updates that the step's lookup had not seen, at most `staleness_bound`.
    """

    parts: list[BatchOutput]
    staleness: int

    @property
    def loss(self) -> float:
        """Mean of the batches."""
        return sum(part.loss or 0.0 for part in self.parts) / len(self.parts)


class TrainLoop:
    """A step of training; `drive` calls it until the batches end.

    Args:
        trainer: has model, tables and optimizer.
        reader: makes the work of each step.
        updates: applies the updates of tables.
    """

    def __init__(self, trainer: "Trainer", reader: StepReader[Work], updates: Updates) -> None:
        self._trainer, self._reader, self._updates = trainer, reader, updates
        self._num_steps = 0

    def __call__(self) -> StepOutput:
        """Raises StopIteration when the batches end."""
        trainer, updates = self._trainer, self._updates
        work = self._reader.take()  # samples; their ids; one lookup of all tables, pooled
        parts = []
        for part in work.parts:
            output = self._model(part)  # dense model and loss
            loss = self._checked_loss(output, part.batch)
            parts.append(BatchOutput(part.batch, loss, output.prediction.detach()))
            updates.wait()  # of the step before, which may run beside the model
            trainer.clock.set(each.batch for each in work.parts)
            if output.step is not None:
                trainer.check_own_step()
                output.step()
            else:
                share = output.loss / len(work.parts) if len(work.parts) > 1 else output.loss
                share.backward()  # type: ignore[no-untyped-call]  # queued on the tables
        if output.step is None:
            trainer.clip_gradients()
            # Dense parameters; tables: one update per distinct id, now or beside the next step.
            trainer.step_with(updates)
        else:
            updates.num_applied += 1
        trainer.step_schedule()
        trainer.run.global_step = (trainer.run.global_step or 0) + 1
        staleness, self._num_steps = self._num_steps - work.version, self._num_steps + 1
        self._reader.finish()
        return StepOutput(parts, staleness)

    def _model(self, part: Part) -> ModelOutput:
        trainer = self._trainer
        with trainer.precision():
            return ModelOutput(*trainer.task.loss(trainer.model, part.inputs, part.batch))

    def _checked_loss(self, output: ModelOutput, batch: Batch) -> float:
        """The loss as a number; what the step has queued is dropped if it is not finite."""
        loss = output.loss.item()
        if not math.isfinite(loss):
            self._updates.wait()
            self._trainer.optimizer.zero_grad()
            step = self._trainer.run.global_step or 0
            raise loss_error(loss, step, batch, self._trainer.settings.keep_dir)
        return loss
