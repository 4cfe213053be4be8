"""`TideHook`: lets a run train at some hours of the day only."""

import logging

from monolith.errors import InvalidArgumentError
from monolith.train.controlled.park_hook import at_boundary
from monolith.train.controlled.run_control import ControlledFit
from monolith.train.driver import Coordinator, Hook, Run, StepContext, StepResults
from monolith.util.tide_window import SYSTEM_TIME, TideWindow, TimeSource

_POLL_SECONDS = 0.2

_log = logging.getLogger(__name__)


class TideHook(Hook):
    """The hook by which a run stands outside of its hours, after a save. It comes after all others.

    While the run stands, it serves a controller, ends by a signal, and takes nothing from its
    source; a source with a thread of its own keeps its connections. The time does not count for
    the speed of the run.

    Args:
        fit: The run.
        window: The hours.
        source: Clock.
    """

    def __init__(self, fit: ControlledFit, window: TideWindow, source: TimeSource) -> None:
        self._fit, self._window, self._source = fit, window, source
        self._coordinator: Coordinator | None = None

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Stand before the first step outside of the hours."""
        self._coordinator = coordinator
        self._wait_for_hours(run, is_saved=True)

    def idle(self, ctx: StepContext) -> None:
        """Stand if the hours end while a step waits for its samples."""
        self._wait_for_hours(ctx.run)

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Stand if the hours have ended."""
        self._wait_for_hours(ctx.run)

    def _wait_for_hours(self, run: Run, *, is_saved: bool = False) -> None:
        if self._window.is_open(self._source) or self._must_leave():
            return
        boundary = self._fit.boundary
        with boundary.paused():
            boundary.settle()
            if not is_saved and any(not hook.is_dense_only for hook in self._fit.savers):
                self._fit.save()
            _log.warning("training stands outside of its hours, %s UTC", self._window)
            begin = self._source.monotonic()
            while not self._window.is_open(self._source) and not self._must_leave():
                at_boundary(run)
                self._source.sleep(_POLL_SECONDS)
        seconds = self._source.monotonic() - begin
        if not self._must_leave():
            _log.warning("training goes on in its hours, after %.0f s", seconds)

    def _must_leave(self) -> bool:
        assert self._coordinator is not None
        return self._fit.boundary.is_stopping() or self._coordinator.stop_requested


def tide_hooks(fit: ControlledFit, hours: str | None) -> list[Hook]:
    """Return the hook that keeps a run within its hours; none without hours.

    Args:
        fit: The run.
        hours: `TrainSettings.hours`.

    Raises:
        InvalidArgumentError: The run is one of several processes, which would wait for this one.
    """
    if hours is None:
        return []
    if fit.trainer.job is not None or fit.trainer.sync is not None:
        raise InvalidArgumentError(
            f"[Trainer] expected no hours in a job of several processes, got {hours!r}; stop and "
            "resume the job with `monolith control`"
        )
    return [TideHook(fit, TideWindow.of(hours), SYSTEM_TIME)]
