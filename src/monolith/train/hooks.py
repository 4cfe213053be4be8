"""Hooks of every fit: evaluation with early stop, eviction of expired rows, and lost leases."""

import logging
from collections.abc import Callable, Iterable, Mapping

from monolith.cluster.job.job_client import JobClient
from monolith.cluster.job.served_dense import ServedDense
from monolith.table.arguments import as_integer
from monolith.table.calls import Clock
from monolith.train.driver import (
    PREEMPTION_ERRORS,
    Coordinator,
    Hook,
    Run,
    StepContext,
    StepResults,
)
from monolith.train.figures import Meter
from monolith.train.run_state import RunState
from monolith.train.settings import TrainSettings

_log = logging.getLogger(__name__)


class EvalHook(Hook):
    """The hook that evaluates every `eval_every` steps and ends the run by `early_stop`.

    Args:
        evaluate: Function that evaluates the model and returns figures by name.
        settings: Settings with `eval_every` and `early_stop`.
        state: State of the run, which keeps the best figure over a restore.
        meter: Meter of the training, which is paused during an evaluation.

    Attributes:
        evaluations: Step -> figures of the evaluation after that step.
        is_early: Whether the hook has ended the run.
    """

    def __init__(
        self,
        evaluate: Callable[[], dict[str, float]],
        settings: TrainSettings,
        state: RunState,
        meter: Meter,
    ) -> None:
        self._evaluate, self._settings, self._state = evaluate, settings, state
        self._meter = meter
        self.evaluations: dict[int, dict[str, float]] = {}
        self.is_early = False

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Evaluate after every `eval_every` steps."""
        step = ctx.run.global_step or 0
        if step % self._settings.eval_every == 0:
            with self._meter.paused():
                self.evaluations[step] = figures = self._figures()
            if self._is_enough(figures):
                self.is_early = True
                ctx.coordinator.request_stop()  # the figures are those of all ranks

    def _figures(self) -> dict[str, float]:
        """Evaluate; once more from the beginning if a server came back without its cut.

        A run that never recovers, such as that of one rank of several, does not try again.
        """
        try:
            return self._evaluate()
        except PREEMPTION_ERRORS as error:
            if not self._settings.max_recoveries:
                raise
            _log.warning("an evaluation begins anew after: %s", error)
            return self._evaluate()

    def _is_enough(self, figures: dict[str, float]) -> bool:
        rule, state = self._settings.early_stop, self._state
        if rule is None:
            return False
        if rule.metric not in figures:
            raise ValueError(
                f"[EarlyStop] expected a metric of the evaluation ({', '.join(figures)}), got "
                f"{rule.metric!r}"
            )
        value = figures[rule.metric]
        if state.best is None or rule.is_better(value, state.best):
            state.best, state.num_worse = value, 0
        else:
            state.num_worse += 1
        return state.num_worse >= rule.patience


class RefreshHook(Hook):
    """The hook that keeps the copies of dense parameters on servers fresh.

    What a step reads or its answer brings is written into the model after the step.

    Args:
        served: Dense parameters on the servers.
    """

    def __init__(self, served: ServedDense) -> None:
        self._served = served

    def before_run(self, ctx: StepContext) -> Callable[[], None] | None:
        """Read the parameters during the step, unless the answer of the step brings them."""
        return None if self._served.wants_values else self._served.fetch

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Write what has arrived into the model."""
        self._served.refresh()


class JobEndHook(Hook):
    """The hook of the chief that lets the other workers end before the last save.

    Args:
        job: Connection to the job.
        is_stopping: Whether the run ends before its data; the other workers are stopped then.
        timeout_seconds: Limit on the wait.
    """

    def __init__(
        self, job: JobClient, is_stopping: Callable[[], bool], timeout_seconds: float
    ) -> None:
        self._job, self._is_stopping = job, is_stopping
        self._timeout_seconds = timeout_seconds

    def end(self, run: Run) -> None:
        """Wait for the others."""
        if self._is_stopping():
            self._job.stop_all()
        self._job.await_others(self._timeout_seconds)
        run.global_step = max(run.global_step or 0, self._job.read_steps())  # theirs too


def job_hooks(
    job: JobClient | None, served: ServedDense | None, stop: Callable[[], None]
) -> list[Hook]:
    """Return the hooks by which a job takes part in a run; none without a job.

    Args:
        job: Connection to the job.
        served: Dense parameters on its servers.
        stop: Function that ends the run.
    """
    if job is None or served is None:
        return []
    job.on_stop = stop
    return [RefreshHook(served)]


def end_hooks(job: JobClient | None, is_stopping: Callable[[], bool]) -> list[Hook]:
    """Return the hook by which the chief waits for other workers; none without a job.

    Args:
        job: Connection to the job.
        is_stopping: Whether the run ends before its data.
    """
    if job is None or not job.is_chief:
        return []
    return [JobEndHook(job, is_stopping, job.end_seconds)]


class EvictHook(Hook):
    """The hook that removes expired rows every `every` steps.

    Args:
        evict: Function that removes the expired rows of all tables.
        every: Number of steps between two evictions.
    """

    def __init__(self, evict: Callable[[], None], every: int) -> None:
        self._evict, self._every = evict, every

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Evict after every `every` steps."""
        if (ctx.run.global_step or 0) % self._every == 0:
            self._evict()


class SweepHook(Hook):
    """The hook that removes expired rows of a table each time the clock passes its full hours.

    Full hours are multiples since 1970, so that a run that was resumed sweeps as the whole run.

    Args:
        evict: Function that removes the expired rows of some tables.
        hours: Table -> hours between two sweeps.
        clock: Clock of the tables.
    """

    def __init__(
        self, evict: Callable[[list[str]], None], hours: Mapping[str, int], clock: Clock
    ) -> None:
        self._evict, self._clock = evict, clock
        self._seconds = {name: 3600 * number for name, number in hours.items()}
        self._last: int | None = None  # time of the last step whose hours were looked at

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Begin at the time of the clock; a recovery may set the clock back, but never ahead."""
        now = self._clock()
        self._last = now if self._last is None else min(self._last, now)

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Evict from the tables that are due."""
        now = self._clock()
        last, self._last = now if self._last is None else self._last, now
        due = [name for name, every in self._seconds.items() if now // every > last // every]
        if due:
            self._evict(due)


def check_hours(hours: Mapping[str, int], tables: Iterable[str]) -> None:
    """Refuse hours of a table that is not there, and numbers below 1.

    Args:
        hours: `Task.evict_every_hours`.
        tables: names of the tables.
    """
    names = list(tables)
    for name, number in hours.items():
        if name not in names:
            raise ValueError(
                f"[Trainer] expected tables of the task in evict_every_hours "
                f"({', '.join(names)}), got {name!r}"
            )
        if as_integer("[Trainer]", "evict_every_hours", number, f" (table {name!r})") < 1:
            raise ValueError(
                f"[Trainer] expected evict_every_hours >= 1, got {number} (table {name!r})"
            )


class RunLockHook(Hook):
    """The hook that ends a run before it saves into a directory that another run has taken over.

    Attributes:
        checks: Functions that raise an error if a directory is another run's now.
    """

    def __init__(self) -> None:
        self.checks: list[Callable[[], None]] = []

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Check after each step; hooks that save come later."""
        self._check()

    def idle(self, ctx: StepContext) -> None:
        """Check before hooks save while a step waits for its samples."""
        self._check()

    def end(self, run: Run) -> None:
        """Check before hooks save the end of the run."""
        self._check()

    def _check(self) -> None:
        for check in self.checks:
            check()
