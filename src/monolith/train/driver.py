"""The loop of every run: a step function, and hooks around it."""

from collections.abc import Callable, Sequence
from typing import Any

from monolith.errors import OutOfRangeError
from monolith.util.coordinator import Coordinator
from monolith.util.hooks import Hook, StepContext, StepResults
from monolith.util.run import Run

__all__ = ["drive"]


def drive(
    step: Callable[[], Any],
    hooks: Sequence[Hook] = (),
    *,
    run: Run | None = None,
    stop_seconds: float = 120.0,
) -> Run:
    """Call `step` until its input ends or a hook requests a stop.

    The input ends with an `OutOfRangeError`, also one of a hook, or when the step raises
    `StopIteration`. The run is current while hooks and steps are called. When it fails, `end` of
    the hooks is not called; clean-ups of the coordinator always are.

    Args:
        step: one step; counts `global_step` of the run if anybody does.
        hooks: called in this order.
        run: the run; a new one if None.
        stop_seconds: limit on the wait for the threads of the run at its end.

    Returns:
        The run.

    Raises:
        DeadlineExceededError: a thread of the run went on after its end.
        BaseException: what the step, a hook, a thread or a clean-up raised.

    Example:
        >>> batches = iter([1, 2, 3])
        >>> seen = []
        >>> run = drive(lambda: seen.append(next(batches)))
        >>> seen
        [1, 2, 3]
    """
    run = Run() if run is None else run
    with run.as_current(), Coordinator(stop_seconds) as coordinator:
        for hook in hooks:
            hook.begin()
        for hook in hooks:
            hook.after_create_session(run, coordinator)
        try:
            while not coordinator.stop_requested:
                _drive_one(step, hooks, StepContext(run, coordinator))
        except OutOfRangeError:
            coordinator.request_stop()
        coordinator.raise_error()
        for hook in hooks:
            hook.end(run)
    return run


def _drive_one(step: Callable[[], Any], hooks: Sequence[Hook], ctx: StepContext) -> None:
    calls = [(hook, call) for hook in hooks if (call := hook.before_run(ctx)) is not None]
    ctx.coordinator.raise_error()  # a thread may have failed while a hook waited
    extra = {hook: call() for hook, call in calls}
    try:
        value = step()
    except StopIteration as end:
        raise OutOfRangeError("[drive] the input of the step ended") from end
    results = StepResults(value, extra)
    for hook in hooks:
        hook.after_run(ctx, results)
