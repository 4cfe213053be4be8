"""The training loop: every stage of a step by its name (docs/life_of_a_batch.md).

    1 samples     -> 2 ids, columns -> 3 rows of all features -> 4 one matrix with dense columns
    5 model, loss -> 6 gradients, queued on the tables -> 7 one step per parameter and distinct id

`TrainLoop.read` runs stages 1 to 4, on a thread if batches are read ahead; a call of the loop runs
stages 5 to 7.
"""

import contextlib
import functools
import math
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch

from monolith.cluster.data_service.served_batches import ServedBatches
from monolith.cluster.ranks.key_exchange import KeyMessages
from monolith.data import Batch, Batches
from monolith.errors import FailedPreconditionError
from monolith.train.driver import (
    PREEMPTION_ERRORS,
    Coordinator,
    Hook,
    Run,
    StepContext,
    StepResults,
)
from monolith.train.inputs import DeviceInputs, Inputs, Trainee
from monolith.train.non_finite import loss_error
from monolith.train.online.online_source import OnlineBatches
from monolith.train.read_ahead import StepReader
from monolith.train.roles.job_source import JobSource, source_position
from monolith.train.run_state import (
    BufferCopies,
    RunState,
    position_of,
    set_random_states,
    torch_states,
)
from monolith.train.step.step_stages import Stages
from monolith.train.task import Task


class SourceBatch(NamedTuple):
    """A batch, and the source position after it."""

    batch: Batch
    position: Any


class Part(NamedTuple):
    """A batch of a step, its looked-up inputs, and the source position after it."""

    batch: Batch
    inputs: Inputs
    position: Any


class StepInput(NamedTuple):
    """The batches and looked-up inputs of a step.

    Attributes:
        parts: One `Part` per batch; several if gradients are accumulated.
        version: Number of updates that were applied before the lookup began.
        lookups: Keys and facts of the lookups of all ranks; empty without ranks.
    """

    parts: list[Part]
    version: int
    lookups: Sequence[KeyMessages] = ()


class BatchOutput(NamedTuple):
    """The loss and the predictions of a batch.

    Attributes:
        batch: The batch.
        loss: Mean loss of the batch; None in prediction.
        prediction: Predictions without gradient, a row for each sample.
    """

    batch: Batch
    loss: float | None
    prediction: torch.Tensor


class StepOutput(NamedTuple):
    """The result of a step; hooks receive it as `results.value`.

    Attributes:
        parts: One `BatchOutput` per batch.
        staleness: Number of this process' own updates that the step's lookup missed, at most
            `staleness_bound`; in a job the number of steps of any worker that a server had made and
            the dense parameters of the newest complete push missed, if that is larger.
    """

    parts: list[BatchOutput]
    staleness: int

    @property
    def loss(self) -> float:
        """Mean loss of the batches; NaN without batches, as of a rank whose data has ended."""
        if not self.parts:
            return math.nan
        return sum(part.loss or 0.0 for part in self.parts) / len(self.parts)


class Attempt(NamedTuple):
    """A step whose update has not begun.

    Attributes:
        parts: Batches of the step.
        random: State of torch's generators before the step, for `set_random_states`.
    """

    parts: list[Part]
    random: dict[str, Any]


class Updates:
    """The updates of steps, applied in order, at once or on a thread.

    Args:
        state: State of the run, which is torn if an update fails on the thread.
        is_async: Whether updates are applied on a thread, one at a time. The caller then calls
            `wait` before work that must not run concurrently with an update.

    Attributes:
        num_applied: Number of complete updates. The count never runs ahead of the tables.
    """

    def __init__(self, state: RunState, *, is_async: bool) -> None:
        self.num_applied, self._state = 0, state
        self._running: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, "push") if is_async else None

    def apply(self, update: Callable[[], object]) -> None:
        """Wait for the update before this one, then run this update or start it on the thread."""
        self.wait()
        if self._thread is None:
            self._run(update)
        else:
            self._running = self._thread.submit(self._run_on_thread, update)

    def wait(self) -> None:
        """Wait until no update is running.

        Raises:
            BaseException: The error of the update.
        """
        if self._running is not None:
            running, self._running = self._running, None
            running.result()

    def close(self) -> None:
        """End the thread after the update that is running."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)

    def _run(self, update: Callable[[], object]) -> None:
        update()
        self.num_applied += 1

    def _run_on_thread(self, update: Callable[[], object]) -> None:
        try:
            self._run(update)
        except BaseException:
            self._state.is_torn = True  # the dense parameters have made their step
            raise


def _may_queue_late(trainee: Trainee) -> bool:
    """Whether the thread of updates may wait for gradients of rows that come from a device.

    Not if something needs the norm of these gradients before the step of the dense parameters.
    """
    settings = trainee.settings
    return (
        trainee.transfer is not None
        and settings.push > 0
        and settings.clip_norm is None
        and trainee.served is None
        and type(trainee.task).change_gradients is Task.change_gradients
        and trainee.optimizer.queues == [trainee.features.pending]
    )


def _queue_gradients(parts: Sequence[Part]) -> None:
    for part in parts:
        if isinstance(part.inputs, DeviceInputs):
            part.inputs.queue_gradients()


class TrainLoop(Hook):
    """The training loop: the step function of `drive`, and the first hook of the run.

    Args:
        trainee: The task with its tables, model, optimizer and settings.
        run: Run whose `global_step` counts the steps.
        state: State of the run, which keeps the source position after each step.
        batches: Iterator of the batches.
        unread: Batches that an earlier run took from the iterator and did not train.
        schedule: Function that sets the learning rates for the next step; called after each step.

    Attributes:
        schedule: The function.
        reader: Reader that calls `read`, ahead of the steps with prefetch.
        updates: Updates of the tables and dense parameters.
        stages: Times of the stages, which a run with a sink measures.
        batches: Iterator of the batches.
        unread: Batches that were taken from the iterator and not trained.
        has_data_ended: Whether the iterator has no more batches.
    """

    def __init__(
        self,
        trainee: Trainee,
        run: Run,
        state: RunState,
        batches: Iterator[Batch],
        unread: Sequence[SourceBatch] = (),
        schedule: Callable[[], None] | None = None,
    ) -> None:
        settings = trainee.settings
        self._trainee, self._run, self._state, self.schedule = trainee, run, state, schedule
        self.batches, self.unread, self.has_data_ended = batches, list(unread), False
        self._position = unread[-1].position if unread else state.position  # after the last batch
        self._attempt: Attempt | None = None
        self._source_error: BaseException | None = None  # of the last read; None if there was none
        self._random: dict[str, Any] = {}  # before the last read of the source
        self._retried: Attempt | None = None
        self._buffers = BufferCopies(trainee.model)  # before the step
        self._num_read, self._num_steps = state.step - state.first, 0
        capacity = 0 if isinstance(settings.prefetch, str) else settings.prefetch
        self._is_stopping, self.stages = False, Stages()
        self._queues_late = _may_queue_late(trainee)
        self._last_step = None if settings.steps is None else state.first + settings.steps
        is_stream = getattr(batches, "is_stream", False)
        self.reader: StepReader[StepInput] = StepReader(self.read, capacity, is_endless=is_stream)
        self.updates = Updates(state, is_async=settings.push > 0)

    def read(self) -> StepInput:
        """Read the batches of the next step and look up their rows: stages 1 to 4.

        Raises:
            StopIteration: The source has ended, or all steps of the settings are read.
        """
        trainee, settings = self._trainee, self._trainee.settings
        if settings.steps is not None and self._num_read >= settings.steps:
            raise StopIteration
        with self.stages.read:
            samples = self._next_batches(settings.accumulate)  # 1: samples
        self._num_read += 1
        version = self.updates.num_applied  # the lookup may see more updates, never fewer
        parts = []
        try:
            with self.stages.lookup:
                for batch, position in samples:
                    batch = trainee.columns.bind(batch)  # 2: ids of features, dense columns, labels
                    inputs = trainee.look_up(batch, is_training=True)  # 3, 4: rows, one matrix
                    parts.append(Part(batch, inputs, position))
            if trainee.transfer is not None:
                with self.stages.send:
                    parts = [Part(b, trainee.send(inputs, b), p) for b, inputs, p in parts]
        except PREEMPTION_ERRORS:
            self.unread = samples + self.unread
            raise
        return StepInput(parts, version)

    def __call__(self) -> StepOutput:
        """Train one step on the result of `read`: stages 5 to 7.

        Raises:
            StopIteration: There is no further step.
        """
        with self.stages.step:
            return self._step()

    def _step(self) -> StepOutput:
        trainee, stages = self._trainee, self.stages
        with stages.wait:
            parts, version, *_ = self._take()
        outputs = self._train(parts)
        with stages.update:
            self._update(parts)
        self._attempt = None
        served = trainee.served
        num_steps = (self._run.global_step or 0) + 1
        self._run.global_step = num_steps if served is None else max(num_steps, served.num_steps)
        is_alone = served is None or served.num_workers == 1
        if parts:
            self._state.position = source_position(parts[-1].position, is_alone=is_alone)
        self._state.num_samples += self._num_samples(parts)
        staleness, self._num_steps = self._num_steps - version, self._num_steps + 1
        if served is not None:
            staleness = max(staleness, served.staleness)
        self.reader.finish()
        return StepOutput(outputs, staleness)

    def _train(self, parts: list[Part], divisors: Sequence[float] = ()) -> list[BatchOutput]:
        """Compute losses and queue the gradients of quotients of them: stages 5 and 6."""
        pairs = list(zip(parts, divisors or [len(parts)] * len(parts), strict=True))
        if self._trainee.transfer is not None:
            return self._compute_on_device(pairs)
        return [self._train_part(part, divisor) for part, divisor in pairs]

    def _train_part(self, part: Part, divisor: float) -> BatchOutput:
        """Compute the loss of a batch, and the gradients of the loss divided by a number."""
        trainee, batch = self._trainee, part.batch
        with self.stages.forward:
            loss, prediction = trainee.forward(part.inputs, batch, is_training=True)  # 5: model
            output = BatchOutput(batch, self._finite(loss, batch), prediction.detach())
        with self.stages.backward:
            self.updates.wait()  # the tables' step before this one may run during stage 5
            mean = loss / divisor if divisor != 1 else loss
            mean.backward()  # type: ignore[no-untyped-call]  # 6: gradients, queued
        return output

    def _num_samples(self, parts: list[Part]) -> int:
        return sum([len(part.batch) for part in parts])

    def _prepare_update(self, parts: list[Part]) -> None:
        """Set what the update needs to know of its batches."""
        if self._trainee.served is not None:
            self._trainee.served.note_progress([part.position for part in parts])
        self._trainee.clock.set([part.batch for part in parts])

    def _compute_on_device(self, parts: list[tuple[Part, float]]) -> list[BatchOutput]:
        """Do the same on a device, to which all work is given before the first wait for it."""
        trainee, stages, transfer = self._trainee, self.stages, self._trainee.transfer
        assert transfer is not None
        sent, fetched, outputs = [], [], []
        for (batch, inputs, _), divisor in parts:
            assert isinstance(inputs, DeviceInputs)
            sent.append(inputs)
            with stages.forward:
                loss, prediction = trainee.forward(inputs, batch, is_training=True)
                fetched.append(transfer.fetch([loss, prediction]))
            with stages.backward:
                if not self._queues_late:
                    self.updates.wait()
                mean = loss / divisor if divisor != 1 else loss
                mean.backward()  # type: ignore[no-untyped-call]
                inputs.fetch_gradients()
        for (part, _), arriving in zip(parts, fetched, strict=True):
            with stages.copy:
                loss, prediction = arriving.wait()
            outputs.append(BatchOutput(part.batch, self._finite(loss, part.batch), prediction))
        if not self._queues_late:
            with stages.copy:
                for inputs in sent:
                    inputs.await_gradients()
            with stages.backward:
                for inputs in sent:
                    inputs.queue_gradients()
        return outputs

    def _update(self, parts: list[Part]) -> None:
        trainee, optimizer = self._trainee, self._trainee.optimizer
        begin: Callable[..., Callable[[], None]] = optimizer.begin_step
        if self._queues_late:
            self.updates.wait()
            begin = functools.partial(begin, functools.partial(_queue_gradients, parts))
        self._prepare_update(parts)
        if trainee.settings.clip_norm is not None:
            trainee.clip_gradients(trainee.settings.clip_norm)
        trainee.task.change_gradients(optimizer, self._run.global_step or 0)
        num_begun = optimizer.num_begun
        try:
            # 7: dense parameters; tables: one step per distinct id, now or during the next stage 5
            self.updates.apply(begin() if trainee.settings.push else optimizer.step)
            if optimizer.dense is not None:
                optimizer.dense.zero_grad()
            if self.schedule is not None:
                self.schedule()
        except BaseException:
            self._state.is_torn |= optimizer.num_begun > num_begun
            raise

    def _take(self) -> StepInput:
        """Return the input of the step, and keep what a second attempt of the step needs."""
        step = self.reader.take()
        if self._retried is not None:
            self._buffers.restore()
            set_random_states(self._retried.random)
            self._retried = None
        if self._trainee.settings.max_recoveries:
            self._buffers.update()
        self._attempt = Attempt(step.parts, torch_states())
        return step

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Start to read ahead."""
        self.reader.start(coordinator)

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Request the end of the run after its last step, or after a call of `stop`."""
        is_over = self._last_step is not None and (self._run.global_step or 0) >= self._last_step
        if self._is_stopping or is_over:
            ctx.request_stop()

    def finish(self) -> None:
        """Wait for the last update, so that `end` of the hooks sees all updates."""
        self.updates.wait()

    def drop_step(self, source: Any) -> None:
        """Drop the failed step and what was read ahead, and keep their batches to be read again.

        The thread that reads ahead has ended. An update that runs is waited for.

        Args:
            source: Source of the iterator; a source with `resume` is opened again if it failed.

        Raises:
            BaseException: The error of the update, unless it is one of `PREEMPTION_ERRORS`.
        """
        with contextlib.suppress(*PREEMPTION_ERRORS):
            self.updates.wait()
        self._trainee.optimizer.zero_grad()
        attempt, self._attempt = self._attempt, None
        parts = [] if attempt is None else attempt.parts
        parts = parts + [part for step in self.reader.drain() for part in step.parts]
        self.unread = [SourceBatch(part.batch, part.position) for part in parts] + self.unread
        self._retried = attempt or self._retried
        if self._source_error is not None:
            if self._position is not None and hasattr(source, "resume"):
                self._close_iterator(source)
                self.batches, self._source_error = source.resume(self._position), None
            if not self.reader.capacity:
                set_random_states(self._random)
        self._restart()

    def go_back(self, source: Any, schedule: Callable[[], None] | None) -> None:
        """Go on after a checkpoint that was restored, with the batch after `RunState.position`.

        Args:
            source: Source of the iterator.
            schedule: Function that sets the learning rates for the next step.

        Raises:
            FailedPreconditionError: The source cannot be read from a position.
        """
        batches = self._state.resume(source)
        if self._state.position is None:  # of a checkpoint from before the first step
            self._state.position = position_of(batches)
        self._close_iterator(source)
        self.batches, self.schedule = batches, schedule
        self.unread, self.has_data_ended, self._position = [], False, self._state.position
        self._retried = self._source_error = None
        self._num_steps = self.updates.num_applied
        self._restart()

    def _close_iterator(self, source: Any) -> None:
        if self.batches is not source and hasattr(self.batches, "close"):
            self.batches.close()

    def _restart(self) -> None:
        self._num_read = self._state.step - self._state.first
        self.reader.restart()
        if self._is_stopping:
            self.reader.stop()

    def stop(self) -> None:
        """End the run after the running step. Safe in a signal handler; a second call is fine."""
        self._is_stopping = True
        if isinstance(self.batches, JobSource | ServedBatches):
            self.batches.stop()
        self.reader.stop()

    def reason_of_end(self, received: signal.Signals | None, *, is_early: bool) -> str:
        """Return the reason of the end of the run; see `FitResult.ended`.

        Args:
            received: Signal that has ended the run; None without one.
            is_early: Whether its evaluations have ended the run.
        """
        if received is not None:
            return "terminated" if received == signal.SIGTERM else "interrupted"
        if is_early:
            return "early stop"
        if self._last_step is not None and (self._run.global_step or 0) >= self._last_step:
            return "steps"
        return "end of data" if self.has_data_ended else "stopped"

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._is_stopping

    def close(self) -> None:
        """End the thread of updates, and keep the batches that were read and not trained."""
        self.updates.close()
        parts = [part for step in self.reader.drain() for part in step.parts]
        self.unread = [SourceBatch(part.batch, part.position) for part in parts] + self.unread

    def _next_batches(self, number: int) -> list[SourceBatch]:
        """Return `number` batches, fewer at the end of the source; an error keeps them unread."""
        while len(self.unread) < number and not self.has_data_ended:
            self._random = torch_states()
            if isinstance(self.batches, ServedBatches):
                self.batches.on_wait = self.reader.on_wait
            elif isinstance(self.batches, Batches | JobSource | OnlineBatches):
                self.batches.on_wait = self.reader.while_waiting
            try:
                batch = next(self.batches)
            except StopIteration:
                self._check_source_alive()
                if getattr(self.batches, "is_interrupted", False):
                    raise  # the run is to end, and not the data
                self.has_data_ended = True
            except PREEMPTION_ERRORS as error:
                self._source_error = error
                raise
            else:
                self._source_error, self._position = None, position_of(self.batches)
                self.unread.append(SourceBatch(batch, self._position))
        if not self.unread:
            raise StopIteration
        samples, self.unread = self.unread[:number], self.unread[number:]
        return samples

    def _check_source_alive(self) -> None:
        """Refuse an end of the source right after its error, as generators end."""
        if self._source_error is not None:
            raise FailedPreconditionError(
                "[Trainer.fit] expected a source that goes on after an AbortedError, got the end "
                f"of a {type(self.batches).__name__}; use a Pipeline, or an iterator with a "
                "__next__ of its own"
            ) from self._source_error

    def _finite(self, loss: torch.Tensor, batch: Batch) -> float:
        """Return the loss as a number; drop the step's gradients and raise if it is not finite."""
        number = loss.item()
        if not math.isfinite(number):
            self.updates.wait()
            self._trainee.optimizer.zero_grad()
            raise loss_error(number, self._state.step, batch, self._trainee.settings.keep_dir)
        return number
