"""Hooks of every fit: evaluation with early stop, and eviction of expired rows."""

from collections.abc import Callable

from monolith.train.driver import Hook, StepContext, StepResults
from monolith.train.figures import Meter
from monolith.train.run_state import RunState
from monolith.train.settings import TrainSettings


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
