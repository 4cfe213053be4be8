"""The trainer's own hooks: figures, evaluation, eviction, and the end of a run."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from monolith.train.driver import Hook, Run, StepContext, StepResults
from monolith.train.figures import Figures, Meter, ReportHook, memory_bytes, table_counts
from monolith.train.interrupt import Interrupt
from monolith.train.read_ahead import StepReader

if TYPE_CHECKING:
    from monolith.train.trainer import Trainer


class StopHook(Hook):
    """Ends a run after its last step, or after the step in which Ctrl-C or SIGTERM came.

    Args:
        steps: of this run; None for no limit.
        first: the run's global step at its beginning.
        interrupt: notes Ctrl-C and SIGTERM.
    """

    def __init__(self, steps: int | None, first: int, interrupt: Interrupt) -> None:
        self._last = None if steps is None else first + steps
        self._interrupt = interrupt

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Look whether it is time."""
        if self._interrupt.received is not None or ctx.run.global_step == self._last:
            ctx.request_stop()


class FiguresHook(Hook):
    """Sums up what steps give, and tells hooks that are `ReportHook`.

    Counts of tables and memory are asked for at a report only.

    Args:
        trainer: whose figures they are.
        reader: tells the prefetch.
        hooks: of the run.
        share: gives how much of the source is read, if anybody knows.

    Attributes:
        meter: what was summed up since the last report.
        last: the last figures, if any.
    """

    def __init__(
        self,
        trainer: "Trainer",
        reader: StepReader[Any],
        hooks: Sequence[Hook],
        share: Callable[[], float | None],
    ) -> None:
        self._trainer, self._reader, self._share = trainer, reader, share
        self._listeners = [hook for hook in hooks if isinstance(hook, ReportHook)]
        self.meter = trainer.meter()
        trainer.state.watch(self.meter)
        self._num_reported = -self.meter.num_samples  # those before a restore: of another run
        self.last: Figures | None = None

    @property
    def num_samples(self) -> int:
        """Of the run so far."""
        return self._num_reported + self.meter.num_samples

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Add a step; report if it is time."""
        meter, trainer = self.meter, self._trainer
        for part in results.value.parts:
            label = trainer.label_of(part.batch)
            meter.add(part.loss, part.prediction, label, part.batch.weight)
        meter.staleness = max(meter.staleness, results.value.staleness)
        every, step = trainer.settings.log_every, ctx.run.global_step or 0
        if every and step % every == 0:
            self._report(step)

    def end(self, run: Run) -> None:
        """Report the rest; a run without a step has figures, but nothing to report."""
        step = run.global_step or 0
        if self.meter.num_samples:
            self._report(step)
        elif self.last is None:
            self.last = self._figures(step)

    def _report(self, step: int) -> None:
        self.last = self._figures(step)
        self._num_reported += self.meter.num_samples
        for listener in self._listeners:
            listener.report(self.last)
        self.meter.reset()

    def _figures(self, step: int) -> Figures:
        meter, bound = self.meter, self._trainer.settings.staleness_bound
        rows, refused, evicted = table_counts(self._trainer.features)
        return Figures(
            step=step,
            num_samples=meter.num_samples,
            loss=meter.loss,
            metrics=meter.values(),
            samples_per_second=meter.samples_per_second,
            num_rows=rows,
            num_refused=refused,
            num_evicted=evicted,
            memory_bytes=memory_bytes(),
            staleness=meter.staleness,
            staleness_bound=bound,
            prefetch=self._reader.capacity,
            share=self._share(),
        )


class EvalHook(Hook):
    """Evaluates every so many steps, and ends the run where that does not become better.

    Args:
        trainer: that evaluates.
        meter: of the training, whose time stands still meanwhile.

    Attributes:
        evaluations: step -> figures.
        is_early: whether it has ended the run.
    """

    def __init__(self, trainer: "Trainer", meter: Meter) -> None:
        self._trainer, self._meter = trainer, meter
        self.evaluations: dict[int, dict[str, float]] = {}
        self.is_early = False

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Evaluate if it is time."""
        step = ctx.run.global_step or 0
        if step % self._trainer.settings.eval_every == 0:
            with self._meter.paused():
                self.evaluations[step] = found = self._trainer.evaluate()
            if self._is_enough(found):
                self.is_early = True
                ctx.request_stop()

    def _is_enough(self, found: dict[str, float]) -> bool:
        rule = self._trainer.settings.early_stop
        if rule is None:
            return False
        if rule.metric not in found:
            raise ValueError(
                f"[EarlyStop] expected a metric of the evaluation ({', '.join(found)}), got "
                f"{rule.metric!r}"
            )
        value, state = found[rule.metric], self._trainer.state
        if state.best is None or rule.is_better(value, state.best):
            state.best, state.num_worse = value, 0
        else:
            state.num_worse += 1
        return state.num_worse >= rule.patience


class EvictHook(Hook):
    """Removes expired rows every so many steps, by the latest time that a table has seen."""

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Evict if it is time."""
        if (ctx.run.global_step or 0) % self._trainer.settings.evict_every == 0:
            self._trainer.finish_updates()
            for table in self._trainer.features.tables.values():
                table.evict()
