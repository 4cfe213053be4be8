"""One step of training, with every stage by its name."""

import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from monolith.data import Batch
from monolith.train.inputs import Inputs, outputs_of
from monolith.train.non_finite import loss_error
from monolith.train.read_ahead import StepReader

if TYPE_CHECKING:
    from monolith.train.trainer import Trainer


class Updates:
    """Applies the updates of steps in their order, each once; at most one is under way.

    Args:
        is_async: on a thread; the caller calls `wait` before it begins what the update must not
            run beside.

    Attributes:
        num_applied: updates that are complete. It never runs ahead of the tables.
    """

    def __init__(self, *, is_async: bool) -> None:
        self.num_applied = 0
        self._running: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, "push") if is_async else None

    def apply(self, update: Callable[[], object]) -> None:
        """Run an update, or have it run; waits for the one before it."""
        self.wait()
        if self._thread is None:
            self._run(update)
        else:
            self._running = self._thread.submit(self._run, update)

    def wait(self) -> None:
        """Return when no update is under way.

        Raises:
            BaseException: what the update raised.
        """
        if self._running is not None:
            running, self._running = self._running, None
            running.result()

    def close(self) -> None:
        """End the thread, after the update that is under way."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)

    def _run(self, update: Callable[[], object]) -> None:
        update()
        self.num_applied += 1


class Part(NamedTuple):
    """A batch of a step, what was looked up for it, and where the source is behind it."""

    batch: Batch
    inputs: Inputs
    position: Any


class StepInput(NamedTuple):
    """What a step needs.

    Attributes:
        parts: one per batch; several where gradients are accumulated.
        version: number of updates that were applied before the lookup began.
    """

    parts: list[Part]
    version: int


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

    def __init__(self, trainer: "Trainer", reader: StepReader[StepInput], updates: Updates) -> None:
        self._trainer, self._reader, self._updates = trainer, reader, updates
        self._num_steps = 0

    def __call__(self) -> StepOutput:
        """Raises StopIteration when the batches end."""
        trainer, updates = self._trainer, self._updates
        work = self._reader.take()  # samples; their ids; one lookup of all tables, pooled
        parts = []
        for batch, inputs, _ in work.parts:
            with trainer.precision():
                loss, prediction = outputs_of(trainer, inputs, batch, is_training=True)  # model
            parts.append(BatchOutput(batch, self._number(loss, batch), prediction.detach()))
            updates.wait()  # of the tables by the step before, which may run beside the model
            mean = loss / len(work.parts) if len(work.parts) > 1 else loss
            mean.backward()  # type: ignore[no-untyped-call]  # gradients, queued on the tables
        trainer.clip_gradients()
        trainer.clock.set(part.batch for part in parts)
        # Dense parameters; tables: one update per distinct id, now or beside the next step.
        trainer.step_with(updates)
        trainer.step_schedule()
        trainer.run.global_step = (trainer.run.global_step or 0) + 1
        trainer.state.position = work.parts[-1].position
        staleness, self._num_steps = self._num_steps - work.version, self._num_steps + 1
        self._reader.finish()
        return StepOutput(parts, staleness)

    def _number(self, loss: torch.Tensor, batch: Batch) -> float:
        """The loss; if it is not finite, what the step has queued is dropped."""
        number = loss.item()
        if not math.isfinite(number):
            self._updates.wait()
            self._trainer.optimizer.zero_grad()
            step = self._trainer.run.global_step or 0
            raise loss_error(number, step, batch, self._trainer.settings.keep_dir)
        return number
