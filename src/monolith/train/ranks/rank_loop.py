"""`RankLoop`: the training loop of one rank, and the hooks by which all ranks decide together."""

import signal
from collections.abc import Callable, Sequence
from typing import Any

from monolith.data import Batch
from monolith.errors import OutOfRangeError
from monolith.train.driver import Coordinator, Hook, Run, StepContext, StepResults
from monolith.train.figures import Figures, FiguresHook
from monolith.train.inputs import Inputs
from monolith.train.interrupt import Interrupt
from monolith.train.loop import BatchOutput, Part, StepInput, TrainLoop
from monolith.train.ranks.rank_sync import INTERRUPT, NUM_WISHES, SAVE, STOP, TERMINATE, RankSync


class RankLoop(TrainLoop):
    """The training loop of one rank: its steps are those of all ranks.

    A rank whose data has ended takes part with empty batches until the data of all ranks has ended.
    What a rank wishes for the job travels with the dense gradients of a step, and comes true in all
    ranks after that step.

    Args:
        sync: part of this rank in the job.
        arguments: those of `TrainLoop`.

    Attributes:
        sync: the same.
        interrupt: signals of this process; None before the run.
        wants_save: whether rank 0 saves after the running step.
        agreed_signal: signal that ends the run of all ranks; None without one.
    """

    def __init__(self, sync: RankSync, *arguments: Any) -> None:
        self.sync = sync
        self.interrupt: Interrupt | None = None
        self.wants_save: Callable[[int], bool] = lambda step: False
        self.agreed_signal: signal.Signals | None = None
        self._wants_stop = self._is_stop_agreed = self._is_settled = False
        self._lookups: StepInput | None = None
        super().__init__(*arguments)
        self._queues_late = False  # the sums of dense gradients are waited for anyway

    def read(self) -> StepInput:
        """Read and look up the batches of the next step together with all ranks."""
        settings = self._trainee.settings
        if settings.steps is not None and self._num_read >= settings.steps:
            raise StopIteration
        self._num_read += 1
        version = self.updates.num_applied
        parts, lookups = [], []
        for _ in range(settings.accumulate):
            with self.stages.read:
                sample = self._next_sample()
            with self.stages.lookup:
                batch = None if sample is None else self._trainee.columns.bind(sample.batch)
                inputs, messages = self.sync.look_up(batch)
            if messages.has_ended:
                break
            lookups.append(messages)
            if sample is not None and batch is not None:
                parts.append(Part(batch, self._send(_required(inputs), batch), sample.position))
        if not lookups:
            raise StopIteration
        return StepInput(parts, version, lookups)

    def _send(self, inputs: Inputs, batch: Batch) -> Inputs:
        """Return the inputs where the dense model is."""
        if self._trainee.transfer is None:
            return inputs
        with self.stages.send:
            return self._trainee.send(inputs, batch)

    def _next_sample(self) -> Any:
        try:
            return self._next_batches(1)[0]
        except (StopIteration, OutOfRangeError):
            self.has_data_ended = True
            return None

    def _take(self) -> StepInput:
        step = super()._take()
        self._lookups = step
        return step

    def _train(self, parts: list[Part], divisors: Sequence[float] = ()) -> list[BatchOutput]:
        """Compute losses and gradients, and add up those of dense parameters over all ranks.

        On a device a loss is known only after its backward. If it is not finite, this rank has not
        yet sent its last gradients, so no rank makes the step.
        """
        assert self._lookups is not None
        lookups, rank = self._lookups.lookups, self.sync.group.rank
        if not parts:  # else the update before this one runs during the forward
            self.updates.wait()
        own = [messages for messages in lookups if not messages.facts[rank].has_ended]
        self._begin_sums(len(parts))
        divisors = [self.sync.share_of(messages) * len(lookups) for messages in own]
        outputs = super()._train(parts, divisors)
        with self.stages.backward:
            self._agree(self.sync.dense.finish())
        return outputs

    def _begin_sums(self, num_backwards: int) -> None:
        received = None if self.interrupt is None else self.interrupt.received
        wishes = [0.0] * NUM_WISHES
        wishes[STOP] = float(self._wants_stop)
        wishes[INTERRUPT] = float(received == signal.SIGINT)
        wishes[TERMINATE] = float(received == signal.SIGTERM)
        wishes[SAVE] = float(self.wants_save(self._state.step + 1))
        self.sync.dense.wishes = wishes
        on_device = self._trainee.transfer is not None
        self.sync.dense.begin(num_backwards, holds_last=on_device)

    def _agree(self, wishes: list[float]) -> None:
        """Take over what ranks wish."""
        if wishes[TERMINATE] or wishes[INTERRUPT]:
            self.agreed_signal = signal.SIGTERM if wishes[TERMINATE] else signal.SIGINT
        self._is_stop_agreed = any(wishes[wish] for wish in (STOP, INTERRUPT, TERMINATE))
        self.sync.is_save_agreed = bool(wishes[SAVE])

    def _num_samples(self, parts: list[Part]) -> int:
        assert self._lookups is not None
        return sum(messages.num_samples for messages in self._lookups.lookups)

    def _prepare_update(self, parts: list[Part]) -> None:
        assert self._lookups is not None
        self.sync.begin_update(self._lookups.lookups)

    def stop(self) -> None:
        """Wish for the end of the run. Safe in a signal handler; a second call is fine."""
        self._wants_stop = True

    def reason_of_end(self, received: signal.Signals | None, *, is_early: bool) -> str:
        """Return the reason of the end of the run, which is that of all ranks."""
        return super().reason_of_end(self.agreed_signal, is_early=is_early)

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Start to read ahead; a run that fails ends its waits for other ranks."""
        coordinator.add_cleanup(self._end_waits)
        limit = 2 * self.sync.group.wait_seconds  # the waits for other ranks end first, with a name
        self.reader.timeout_seconds = max(self.reader.timeout_seconds, limit)
        super().after_create_session(run, coordinator)

    def _end_waits(self) -> None:
        if not self._is_settled:
            self.sync.give_up()

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """End the run after its last step, or after the step in which a rank has wished so."""
        is_over = self._last_step is not None and (self._run.global_step or 0) >= self._last_step
        if self._is_stop_agreed or is_over:
            ctx.coordinator.request_stop()

    def finish(self) -> None:
        """Wait for the last update, and for lookups that other ranks may have begun."""
        super().finish()
        self.reader.settle()
        self._is_settled = True


def _required(inputs: Inputs | None) -> Inputs:
    assert inputs is not None
    return inputs


class RankStateHook(Hook):
    """The hook that gives rank 0 the state of all ranks before a save, and at the end.

    It is called before the hooks that save.

    Args:
        sync: part of this rank in the job.
        finish_updates: waits for the update of this rank that runs on a thread.
    """

    def __init__(self, sync: RankSync, finish_updates: Callable[[], None]) -> None:
        self._sync, self._finish_updates = sync, finish_updates

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Gather, if rank 0 saves after this step: its cut has the updates of all ranks."""
        if self._sync.is_save_agreed:
            self._finish_updates()
            self._sync.gather_state()

    def end(self, run: Run) -> None:
        """Gather for the last save."""
        self._sync.share_buffers()
        self._sync.gather_state()


class RankFiguresHook(FiguresHook):
    """The hook that reports the figures of all ranks in rank 0.

    Args:
        sync: part of this rank in the job.
        arguments: those of `FiguresHook`.
    """

    def __init__(self, sync: RankSync, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sync = sync

    def end(self, run: Run) -> None:
        """Report the remaining samples of all ranks."""
        self._report(run.global_step or 0)

    def _report(self, step: int) -> None:
        merged = self._sync.merge(self.meter)
        if not merged.num_samples and self.last is not None:
            return
        self.meter.take_sums(merged)
        if self._sync.is_chief:
            self.last = self.figures(step)
            for listener in self._listeners if merged.num_samples else ():
                listener.report(self.last)
        else:
            self.last = Figures(step, merged.num_samples, merged.loss, merged.values())
        self.meter.reset()


def figures_hook(sync: RankSync | None, *arguments: Any) -> FiguresHook:
    """Return the hook that reports the figures of this process, or those of all ranks.

    Args:
        sync: part of this rank in the job; None without ranks.
        arguments: those of `FiguresHook`.
    """
    return FiguresHook(*arguments) if sync is None else RankFiguresHook(sync, *arguments)


def make_loop(sync: RankSync | None, *arguments: Any) -> TrainLoop:
    """Return the loop of this process, or that of a rank.

    Args:
        sync: part of this rank in the job; None without ranks.
        arguments: those of `TrainLoop`.
    """
    return TrainLoop(*arguments) if sync is None else RankLoop(sync, *arguments)


def join_ranks(
    loop: TrainLoop, is_save_due: Callable[[int], bool], interrupt: Interrupt
) -> list[Hook]:
    """Let all ranks decide together; return the hooks for it that come before saves.

    Args:
        loop: loop of the run; one of a rank has hooks.
        is_save_due: whether this process saves after a step.
        interrupt: signals of this process.
    """
    if not isinstance(loop, RankLoop):
        return []
    loop.interrupt, loop.wants_save = interrupt, is_save_due
    return [RankStateHook(loop.sync, loop.updates.wait)]
