"""Hours of the day at which machines may be used, and workers that start late."""

import logging
import random

from monolith.train.driver import Hook, StepContext, current_or_default_run
from monolith.util.tide_window import SYSTEM_TIME as _SYSTEM_TIME
from monolith.util.tide_window import TideWindow as TideWindow
from monolith.util.tide_window import TimeSource as TimeSource
from monolith.util.tide_window import before as before

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.5
_LOG_SECONDS = 60.0
_MAX_EXTRA_SECONDS = 600


def tide_available_now(
    start_hour: int,
    start_minute: int,
    end_hour: int,
    end_minute: int,
    *,
    source: TimeSource = _SYSTEM_TIME,
) -> bool:
    """Whether the current time is inside a `TideWindow`."""
    return TideWindow(start_hour, start_minute, end_hour, end_minute).is_open(source)


class TideStoppingHook(Hook):
    """Requests a stop before a step outside of a `TideWindow`; without one it does nothing.

    Raises:
        ValueError: see `TideWindow` and `TideWindow.if_given`.
    """

    def __init__(
        self,
        tide_start_hour: int | None = None,
        tide_start_minute: int | None = None,
        tide_end_hour: int | None = None,
        tide_end_minute: int | None = None,
        *,
        source: TimeSource = _SYSTEM_TIME,
    ) -> None:
        self._window = TideWindow.if_given(
            tide_start_hour, tide_start_minute, tide_end_hour, tide_end_minute
        )
        self._source = source

    def before_run(self, ctx: StepContext) -> None:
        """Look at the clock."""
        if self._window is not None and not self._window.is_open(self._source):
            _log.info("not in %s: the run stops", self._window)
            ctx.request_stop()


class CustomGlobalStepWaiterHook(Hook):
    """Holds a worker back until the others have made some steps.

    It looks at the run's global step every half second. It also goes on when the global step has
    been above 1 for `max_non_tide_wait_minute` and a random time of at most 10 minutes, and ends
    the run outside of the window.

    Args:
        wait_until_step: the global step to wait for; 0 or less does not wait.
        tide_start_hour: with the next three, the `TideWindow`; all None for none.
        tide_start_minute: see `tide_start_hour`.
        tide_end_hour: see `tide_start_hour`.
        tide_end_minute: see `tide_start_hour`.
        max_non_tide_wait_minute: see above.
        source: the time.
        random_source: draws the random time, once.

    Raises:
        ValueError: see `TideWindow` and `TideWindow.if_given`.
    """

    def __init__(
        self,
        wait_until_step: int,
        tide_start_hour: int | None = None,
        tide_start_minute: int | None = None,
        tide_end_hour: int | None = None,
        tide_end_minute: int | None = None,
        max_non_tide_wait_minute: float = 10,
        *,
        source: TimeSource = _SYSTEM_TIME,
        random_source: random.Random | None = None,
    ) -> None:
        self._wait_until_step, self._source = wait_until_step, source
        self._window = TideWindow.if_given(
            tide_start_hour, tide_start_minute, tide_end_hour, tide_end_minute
        )
        extra = (random_source or random.Random()).randint(0, _MAX_EXTRA_SECONDS)
        self._max_wait_seconds = max_non_tide_wait_minute * 60 + extra
        self._has_started = False

    def begin(self) -> None:
        """Refuse a run that does not count its steps.

        Raises:
            RuntimeError: its global step is None.
        """
        if current_or_default_run().global_step is None:
            raise RuntimeError("Global step should be created to use _GlobalStepWaiterHook.")

    def before_run(self, ctx: StepContext) -> None:
        """Wait, once."""
        if self._has_started or self._wait_until_step <= 0:
            return
        source, timer_start, logged_at = self._source, None, None
        while not ctx.stop_requested:
            if self._window is not None and not self._window.is_open(source):
                _log.info("not in %s: the run stops", self._window)
                ctx.request_stop()
                return
            step, now = ctx.run.global_step or 0, source.monotonic()
            if timer_start is None and step > 1:
                timer_start = now
            is_late = timer_start is not None and now - timer_start > self._max_wait_seconds
            if step >= self._wait_until_step or is_late:
                self._has_started = True
                return
            if logged_at is None or now - logged_at >= _LOG_SECONDS:
                _log.info("waiting for global step %d, now %d", self._wait_until_step, step)
                logged_at = now
            source.sleep(_POLL_SECONDS)
