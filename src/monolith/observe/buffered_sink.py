"""What sinks that write to a file or answer a reader have in common."""

import math
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from typing_extensions import Self

_MAX_RECENT = 4096  # of each timer, for quantiles

Series = tuple[str, tuple[tuple[str, str], ...]]  # name, sorted tags


class TimeSummary(NamedTuple):
    """Summary of the times of an interval, in microseconds; NaN without times."""

    num_times: int
    minimum: float
    maximum: float
    mean: float
    p99: float


class Times:
    """Times of a series in microseconds: sums over all, and the last 4096 for quantiles."""

    __slots__ = ("maximum", "minimum", "num_times", "recent", "total")

    def __init__(self) -> None:
        self.num_times, self.total = 0, 0.0
        self.minimum, self.maximum = math.inf, -math.inf
        self.recent: deque[float] = deque(maxlen=_MAX_RECENT)

    def add(self, microseconds: float) -> None:
        """Add a time."""
        self.num_times += 1
        self.total += microseconds
        if microseconds < self.minimum:
            self.minimum = microseconds
        if microseconds > self.maximum:
            self.maximum = microseconds
        self.recent.append(microseconds)

    def summary(self) -> TimeSummary:
        """Return the summary of at least one time; p99 is that of the last 4096."""
        mean = self.total / self.num_times
        p99 = quantile(sorted(self.recent), 0.99)
        return TimeSummary(self.num_times, self.minimum, self.maximum, mean, p99)


class Interval(NamedTuple):
    """Measurements of an interval by series.

    Attributes:
        gauges: Gauges that were set in the interval.
        counters: Totals of all counters since the start.
        times: Times of the interval.
    """

    gauges: dict[Series, float]
    counters: dict[Series, float]
    times: dict[Series, Times]


class BufferedSink(ABC):
    """Base class of sinks: keeps measurements until the sink writes them. Thread-safe.

    A sink is closed when its `with` block ends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[Series, float] = {}
        self._gauges: dict[Series, float] = {}
        self._times: dict[Series, Times] = {}
        self._has_news = False  # whether anything came since the last interval

    def count(self, name: str, number: float, tags: Mapping[str, str]) -> None:
        """Add to a counter."""
        series = series_of(name, tags)
        with self._lock:
            self._counters[series] = self._counters.get(series, 0.0) + number
            self._has_news = True

    def gauge(self, name: str, value: float, tags: Mapping[str, str]) -> None:
        """Replace the value of a gauge."""
        series = series_of(name, tags)
        with self._lock:
            self._gauges[series] = value
            self._has_news = True

    def time(self, name: str, microseconds: float, tags: Mapping[str, str]) -> None:
        """Record a time."""
        series = series_of(name, tags)
        with self._lock:
            times = self._times.get(series)
            if times is None:
                times = self._times[series] = Times()
            times.add(microseconds)
            self._has_news = True

    @abstractmethod
    def close(self) -> None:
        """Write what is left and free what the sink holds. Safe to call again."""

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _take(self) -> Interval:
        """Return the interval that ends now, and begin the next one."""
        with self._lock:
            self._has_news = False
            interval = Interval(self._gauges, self._counters.copy(), self._times)
            self._gauges, self._times = {}, {}
        return interval


def series_of(name: str, tags: Mapping[str, str]) -> Series:
    """Return the key of a name and its tags; the order of the tags does not count."""
    return name, tuple(sorted(tags.items())) if tags else ()


def label(series: Series) -> str:
    """Return the name of a series with its tags.

    Example:
        >>> label(series_of("rows", {"table": "user", "shard": "0"}))
        'rows/shard=0,table=user'
    """
    name, tags = series
    return f"{name}/{','.join(f'{key}={value}' for key, value in tags)}" if tags else name


def quantile(ordered: list[float], share: float) -> float:
    """Return the smallest number that at least this share of the numbers does not exceed.

    Example:
        >>> quantile([1.0, 2.0, 3.0, 4.0], 0.5)
        2.0
    """
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: NaN and infinities become None, objects their text.

    Example:
        >>> plain({"loss": float("nan"), "steps": (1, 2), "kind": int})
        {'loss': None, 'steps': [1, 2], 'kind': "<class 'int'>"}
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if getattr(value, "ndim", None) == 0:  # a number of NumPy, or a tensor with one element
        return plain(value.item())
    return str(value)
