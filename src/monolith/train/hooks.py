"""Hooks of every fit: evaluation with early stop, and eviction of expired rows."""

from collections.abc import Callable

from monolith.train.driver import Hook, StepContext, StepResults
from monolith.train.figures import Meter
from monolith.train.run_state import RunState
from monolith.train.settings import TrainSettings


class EvalHook(Hook):
    """Evaluates every `eval_every` steps; ends the run where `early_stop` says so.

    Args:
        evaluate: returns figures by name.
        settings: has `eval_every` and `early_stop`.
        state: keeps the best figure, also over a restore.
        meter: figures of the training, whose clock stands still during an evaluation.

    Attributes:
        evaluations: step -> figures.
        is_early: whether the hook has ended the run.
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
        """Evaluate if it is time."""
        step = ctx.run.global_step or 0
        if step % self._settings.eval_every == 0:
            with self._meter.paused():
                self.evaluations[step] = figures = self._evaluate()
            if self._is_enough(figures):
                self.is_early = True
                ctx.request_stop()

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


class EvictHook(Hook):
    """Removes expired rows every `evict_every` steps, by the latest time that a table has seen.

    Args:
        evict: removes the expired rows of all tables.
        every: number of steps between two calls.
    """

    def __init__(self, evict: Callable[[], None], every: int) -> None:
        self._evict, self._every = evict, every

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Evict if it is time."""
        if (ctx.run.global_step or 0) % self._every == 0:
            self._evict()
