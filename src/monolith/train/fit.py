"""One call of `Trainer.fit`: what runs beside the loop, and how it ends."""

import contextlib
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from monolith.checkpoint.files import only_run
from monolith.data import Batch, Batches
from monolith.train.checkpoints import CheckpointHook
from monolith.train.driver import Coordinator, Hook, Run, drive
from monolith.train.figures import Figures
from monolith.train.fit_hooks import EvalHook, EvictHook, FiguresHook, StopHook
from monolith.train.interrupt import Interrupt
from monolith.train.loop import Part, StepInput, TrainLoop, Updates
from monolith.train.read_ahead import AutoPrefetch, StepReader
from monolith.train.run_state import position_of
from monolith.train.settings import AUTO, TrainSettings

if TYPE_CHECKING:
    from monolith.train.trainer import Trainer


class SourceBatch(NamedTuple):
    """A batch, and where the source is behind it."""

    batch: Batch
    position: Any


@dataclass(frozen=True)
class FitResult:
    """What a run came to.

    Attributes:
        ended: why: "end of data", "steps", "early stop", "interrupted" (Ctrl-C), "terminated"
            (SIGTERM) or "stopped" (by a hook).
        num_steps: of this run.
        num_samples: of this run.
        seconds: that it took.
        figures: the last ones.
        evaluations: step -> figures of an evaluation.
        prefetch: steps ahead; what "auto" has chosen, 0 if it had too few steps.
    """

    ended: str
    num_steps: int
    num_samples: int
    seconds: float
    figures: Figures
    evaluations: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    prefetch: int = 0


class Fit:
    """One run.

    Args:
        trainer: whose run it is.
        batches: where samples come from.
        left: batches that were taken from there before, and not used.

    Attributes:
        left: batches that were taken and not used, when the run has ended.
    """

    def __init__(
        self, trainer: "Trainer", batches: Iterator[Batch], left: list[SourceBatch]
    ) -> None:
        settings = trainer.settings
        self.left = left
        self._trainer, self._batches = trainer, batches
        self._num_made = trainer.state.step - trainer.state.first
        self._has_data_ended = False
        capacity = 0 if isinstance(settings.prefetch, str) else settings.prefetch
        self.reader: StepReader[StepInput] = StepReader(self._make, capacity)
        self.updates = Updates(is_async=settings.push > 0)

    def run(self, hooks: Sequence[Hook]) -> FitResult:
        """Drive the loop to its end.

        Args:
            hooks: of user and task; the trainer's own come after them.
        """
        trainer, settings = self._trainer, self._trainer.settings
        begin, step = time.perf_counter(), trainer.state.step
        saves = [hook for hook in hooks if isinstance(hook, CheckpointHook)]
        hooks = [hook for hook in hooks if hook not in saves]
        saves += _own_saves(settings)
        figures = FiguresHook(trainer, self.reader, hooks, self._share)
        evals = EvalHook(trainer, figures.meter)
        with contextlib.ExitStack() as stack:
            for directory in dict.fromkeys(each.directory for each in saves):
                stack.enter_context(only_run(directory))
            for each in saves:
                each.attach(trainer)
            stack.enter_context(self._beside())
            interrupt = stack.enter_context(Interrupt(self.reader.stop))
            own: list[Hook] = [figures]
            own += [EvictHook(trainer)] if settings.evict_every else []
            own += [evals] if settings.eval_every else []
            own += [AutoPrefetch(self.reader)] if settings.prefetch == AUTO else []
            stop = StopHook(settings.steps, trainer.state.first, interrupt)
            try:
                drive(
                    TrainLoop(trainer, self.reader, self.updates),
                    [_Start(self), *hooks, *own, *saves, stop],
                    run=trainer.run,
                )
            finally:
                parts = [part for work in self.reader.drain() for part in work.parts]
                unused = [SourceBatch(part.batch, part.position) for part in parts]
                self.left = unused + self.left
        assert figures.last is not None
        return FitResult(
            ended=self._why(interrupt.received, evals.is_early),
            num_steps=trainer.state.step - step,
            num_samples=figures.num_samples,
            seconds=time.perf_counter() - begin,
            figures=figures.last,
            evaluations=evals.evaluations,
            prefetch=self.reader.capacity,
        )

    def _why(self, received: signal.Signals | None, is_early: bool) -> str:
        if received is not None:
            return "terminated" if received == signal.SIGTERM else "interrupted"
        if is_early:
            return "early stop"
        steps, state = self._trainer.settings.steps, self._trainer.state
        if steps is not None and state.step - state.first >= steps:
            return "steps"
        return "end of data" if self._has_data_ended else "stopped"

    def _share(self) -> float | None:
        """How much of the source is read; batches that were read ahead count too."""
        done, total = self._batches.progress if isinstance(self._batches, Batches) else (0, 0)
        return done / total if total else None

    def _make(self) -> StepInput:
        """Read the batches of a step and look them up; on a thread where there is prefetch."""
        trainer, settings = self._trainer, self._trainer.settings
        if settings.steps is not None and self._num_made >= settings.steps:
            raise StopIteration
        taken = self._read(settings.accumulate)
        self._num_made += 1
        version = self.updates.num_applied  # before the lookup: it may see more, never less
        bound = [(trainer.columns.bind(batch), position) for batch, position in taken]
        return StepInput([Part(batch, trainer.inputs(batch), at) for batch, at in bound], version)

    def _read(self, number: int) -> list[SourceBatch]:
        """So many batches; fewer when the source ends. What fails leaves those read in `left`."""
        read = self.left
        while len(read) < number and not self._has_data_ended:
            try:
                read.append(SourceBatch(next(self._batches), position_of(self._batches)))
            except StopIteration:
                self._has_data_ended = True
        if not read:
            raise StopIteration
        self.left = read[number:]
        return read[:number]

    @contextlib.contextmanager
    def _beside(self) -> Iterator[None]:
        """Threads of torch, and that of updates."""
        threads, before = self._trainer.settings.threads, torch.get_num_threads()
        if threads is not None:
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            self.updates.close()
            if threads is not None:
                torch.set_num_threads(before)


def _own_saves(settings: TrainSettings) -> list[CheckpointHook]:
    if settings.checkpoint_dir is None:
        return []
    return [
        CheckpointHook(
            settings.checkpoint_dir,
            every_steps=settings.save_every or None,
            keep=settings.keep,
            ignore_save_errors=settings.ignore_save_errors,
        )
    ]


class _Start(Hook):
    """Starts to read ahead when the run does; waits for the last update when it ends."""

    def __init__(self, fit: Fit) -> None:
        self._fit = fit

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Also after a recovery."""
        self._fit.reader.start(coordinator)

    def end(self, run: Run) -> None:
        """First of all hooks: the others see all updates."""
        self._fit.updates.wait()
