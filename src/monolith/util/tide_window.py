"""Hours of the day, in UTC, at which machines may be used."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone


def _utc_now() -> datetime:
    return datetime.now(timezone.utc)


@dataclass(frozen=True)
class TimeSource:
    """The source of the time; tests bring their own.

    Args:
        utc_now: the date and time in UTC.
        monotonic: seconds; only differences count.
        sleep: waits for so many seconds.
    """

    utc_now: Callable[[], datetime] = _utc_now
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


SYSTEM_TIME = TimeSource()
"""The clock of the system."""


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
        """Return the window of four numbers; None if all of them are None.

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

    @classmethod
    def of(cls, text: str) -> "TideWindow":
        """Return the window of a text such as `22:00-06:00`.

        Raises:
            ValueError: The text is no window.

        Example:
            >>> TideWindow.of("22:00-06:30")
            TideWindow(start_hour=22, start_minute=0, end_hour=6, end_minute=30)
        """
        match = re.fullmatch(r"(\d{1,2}):(\d\d)-(\d{1,2}):(\d\d)", text)
        if match is None:
            raise ValueError(
                f"[TideWindow] expected hours of the day in UTC as 22:00-06:00, got {text!r}"
            )
        return cls(*map(int, match.groups()))

    def __str__(self) -> str:
        start = f"{self.start_hour:02}:{self.start_minute:02}"
        return f"{start}-{self.end_hour:02}:{self.end_minute:02}"

    def contains(self, hour: int, minute: int) -> bool:
        """Whether a time of day is inside."""
        start, end = (self.start_hour, self.start_minute), (self.end_hour, self.end_minute)
        has_started, has_ended = not before(hour, minute, *start), not before(hour, minute, *end)
        if before(*start, *end):
            return has_started and not has_ended
        return has_started or not has_ended

    def is_open(self, source: TimeSource = SYSTEM_TIME) -> bool:
        """Whether the current time is inside."""
        now = source.utc_now()
        return self.contains(now.hour, now.minute)
