"""Hours of the day at which machines may be used, and workers that start late."""

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone

from monolith.train.driver import Hook, StepContext, current_or_default_run

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.5
_LOG_SECONDS = 60.0
_MAX_EXTRA_SECONDS = 600


def _utc_now() -> datetime:
    return datetime.now(timezone.utc)


@dataclass(frozen=True)
class TimeSource:
    """Where hooks get the time from; tests bring their own.

    Args:
        utc_now: the date and time in UTC.
        monotonic: seconds; only differences count.
        sleep: waits for so many seconds.
    """

    utc_now: Callable[[], datetime] = _utc_now
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


_SYSTEM_TIME = TimeSource()


def before(hour1: int, minute1: int, hour2: int, minute2: int) -> bool:
    """Whether the first time of day is strictly earlier.

    Example:
        >>> before(1, 59, 2, 0), before(2, 0, 2, 0)
        (True, False)
    """
    return (hour1, minute1) < (hour2, minute2)


@dataclass(frozen=True)
class TideWindow:
    """Hours of each day, in UTC: the start belongs to the window, the end does not.

    A window whose start is later than its end goes over midnight; equal times are the whole day.

    Raises:
        ValueError: an hour is not in 0..23, or a minute not in 0..59.

    Example:
        >>> night = TideWindow(22, 0, 6, 0)
        >>> night.contains(23, 30), night.contains(6, 0)
        (True, False)
    """

    start_hour: int
    start_minute: int
    end_hour: int
    end_minute: int

    def __post_init__(self) -> None:
        for hour in (self.start_hour, self.end_hour):
            if not 0 <= hour <= 23:
                raise ValueError(f"[TideWindow] expected hours in 0..23, got {hour}; midnight is 0")
        for minute in (self.start_minute, self.end_minute):
            if not 0 <= minute <= 59:
                raise ValueError(f"[TideWindow] expected minutes in 0..59, got {minute}")

    @classmethod
    def if_given(cls, *times: int | None) -> "TideWindow | None":
        """The window of four numbers, or None if all of them are None.

        Raises:
            ValueError: some are None and others are not.
        """
        given = [time for time in times if time is not None]
        if given and len(given) != 4:
            raise ValueError(
                "[TideWindow] expected start hour, start minute, end hour and end minute, got "
                f"{times}; give all four or none"
            )
        return cls(*given) if given else None

    def contains(self, hour: int, minute: int) -> bool:
        """Whether a time of day is inside."""
        start, end = (self.start_hour, self.start_minute), (self.end_hour, self.end_minute)
        has_started, has_ended = not before(hour, minute, *start), not before(hour, minute, *end)
        if before(*start, *end):
            return has_started and not has_ended
        return has_started or not has_ended

    def is_open(self, source: TimeSource = _SYSTEM_TIME) -> bool:
        """Whether the current time is inside."""
        now = source.utc_now()
        return self.contains(now.hour, now.minute)


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
