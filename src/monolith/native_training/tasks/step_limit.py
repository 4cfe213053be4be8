"""The steps at which a run ends, and for which a worker waits before it begins."""

import math

from monolith.train.driver import Coordinator, Hook, Run, StepContext, StepResults


class StepLimitHook(Hook):
    """The hook that ends a run after some steps, or at a global step, whichever comes first.

    Args:
        num_steps: most steps of each run; None for any number.
        last_step: global step at which a run ends; a run that is there already makes no step. None
            for any.

    Example:
        >>> from monolith.train.driver import drive
        >>> run = Run(global_step=5)
        >>> def step():
        ...     run.global_step += 1
        >>> drive(step, [StepLimitHook(10, 8)], run=run).global_step
        8
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        self._num_steps, self._last_step = num_steps, last_step
        self._end: int | None = None
        self._is_begun = False

    def begin(self) -> None:
        """Count the steps of the run from its first one."""
        self._is_begun = False

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Compute the last step of the run; a recovery changes nothing."""
        step = run.global_step or 0
        if not self._is_begun:
            ends = [] if self._num_steps is None else [step + self._num_steps]
            ends += [] if self._last_step is None else [self._last_step]
            self._end, self._is_begun = min(ends, default=None), True
        if self._end is not None and step >= self._end:
            coordinator.request_stop()

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """End the run after its last step."""
        if self._end is not None and (ctx.run.global_step or 0) >= self._end:
            ctx.coordinator.request_stop()  # ranks reach the step together


def slow_start_step(steps: int, worker_index: int) -> int:
    """Return the global step for which a worker waits before its first step.

    Example:
        >>> [slow_start_step(100, index) for index in range(4)]
        [0, 69, 109, 138]
    """
    return int(steps * math.log(1 + worker_index))
