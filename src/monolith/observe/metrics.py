"""Counters and timers: measured code writes to a sink and does not know its reader."""

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

_MAX_AGE_SECONDS = 900.0  # longest interval of a summary
_MAX_TIMES = 100_000  # of each timer; the oldest are dropped first

_Series = tuple[str, tuple[tuple[str, str], ...]]


class MetricsSink(Protocol):
    """Receives measurements. Thread-safe; calls do not wait."""

    def count(self, name: str, number: float, tags: Mapping[str, str]) -> None:
        """Add to a counter."""

    def time(self, name: str, microseconds: float, tags: Mapping[str, str]) -> None:
        """Record a time."""


class NullSink:
    """Drops all measurements."""

    def count(self, name: str, number: float, tags: Mapping[str, str]) -> None:
        """Drop the measurement."""

    def time(self, name: str, microseconds: float, tags: Mapping[str, str]) -> None:
        """Drop the measurement."""


class TimeSummary(NamedTuple):
    """Summary of the times of an interval, in microseconds; NaN without times."""

    num_times: int
    minimum: float
    maximum: float
    mean: float
    p99: float


class MemorySink:
    """Keeps measurements in memory: counters for ever, times for 15 minutes.

    Args:
        clock: function that returns seconds; only differences count.

    Example:
        >>> sink = MemorySink()
        >>> for microseconds in (10.0, 30.0):
        ...     sink.time("embedding_lookup", microseconds, {"ps": "0"})
        >>> sink.summary("embedding_lookup", {"ps": "0"})
        TimeSummary(num_times=2, minimum=10.0, maximum=30.0, mean=20.0, p99=30.0)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[_Series, float] = defaultdict(float)
        self._times: dict[_Series, deque[tuple[float, float]]] = {}

    def count(self, name: str, number: float, tags: Mapping[str, str]) -> None:
        """Add to a counter."""
        with self._lock:
            self._counts[_series(name, tags)] += number

    def time(self, name: str, microseconds: float, tags: Mapping[str, str]) -> None:
        """Record a time."""
        series, now = _series(name, tags), self._clock()
        with self._lock:
            times = self._times.setdefault(series, deque(maxlen=_MAX_TIMES))
            times.append((now, microseconds))
            while times[0][0] < now - _MAX_AGE_SECONDS:
                times.popleft()

    def total(self, name: str, tags: Mapping[str, str]) -> float:
        """Return the counter of a name and tags."""
        with self._lock:
            return self._counts.get(_series(name, tags), 0.0)

    def summary(
        self, name: str, tags: Mapping[str, str], interval_seconds: float = _MAX_AGE_SECONDS
    ) -> TimeSummary:
        """Summarize the times of a name and tags over the last seconds, at most 900."""
        since = self._clock() - interval_seconds
        with self._lock:
            series = self._times.get(_series(name, tags), ())
            times = sorted(microseconds for at, microseconds in series if at >= since)
        if not times:
            return TimeSummary(0, math.nan, math.nan, math.nan, math.nan)
        p99 = times[math.ceil(0.99 * len(times)) - 1]
        return TimeSummary(len(times), times[0], times[-1], sum(times) / len(times), p99)


def _series(name: str, tags: Mapping[str, str]) -> _Series:
    return name, tuple(sorted(tags.items()))
