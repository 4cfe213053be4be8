"""Counters, gauges, timers and events: measured code writes to a sink and does not know its reader.

A sink opens everything in its constructor, so that a port in use or an unwritable folder is an
error at the start of a run. Tags are names and values that tell series of one name apart.
"""

import logging
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from monolith.observe.buffered_sink import BufferedSink, Series, TimeSummary, quantile, series_of

if TYPE_CHECKING:
    from monolith.observe.summaries import TensorSummary

_log = logging.getLogger(__name__)

_MAX_AGE_SECONDS = 900.0  # longest interval of a summary
_MAX_TIMES = 100_000  # of each timer; the oldest are dropped first
_MAX_RECORDS = 10_000  # of each gauge, and of the events and tensors; the oldest are dropped first


class MetricsSink(Protocol):
    """Receives measurements. Thread-safe; `count`, `gauge` and `time` do not wait for a reader.

    A sink may also have `write_tensor(summary, step)` and a true attribute `writes_tensors`, and
    `restart(step)`, which says that a run goes on after a step that may be an earlier one.
    """

    def count(self, name: str, number: float, tags: Mapping[str, str]) -> None:
        """Add to a counter."""

    def gauge(self, name: str, value: float, tags: Mapping[str, str]) -> None:
        """Replace the value of a gauge."""

    def time(self, name: str, microseconds: float, tags: Mapping[str, str]) -> None:
        """Record a time."""

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Record something that happened once, such as a save, with fields that JSON can hold."""

    def flush(self, step: int) -> None:
        """End an interval at a step: write what came since the last call."""

    def close(self) -> None:
        """Write what is left and free what the sink holds. Safe to call again."""


class NullSink:
    """Drops all measurements."""

    def count(self, name: str, number: float, tags: Mapping[str, str]) -> None:
        """Drop the measurement."""

    def gauge(self, name: str, value: float, tags: Mapping[str, str]) -> None:
        """Drop the measurement."""

    def time(self, name: str, microseconds: float, tags: Mapping[str, str]) -> None:
        """Drop the measurement."""

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Drop the event."""

    def flush(self, step: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class MultiSink:
    """Passes every measurement on to several sinks.

    A sink that fails does not stop the run, and does not keep measurements from the other sinks.
    The first exception of a sink is logged with its traceback; `close` logs how many there were.
    The sink is still called, because a disk that was full may have room later.

    Args:
        sinks: Sinks, called in this order; `close` closes them.

    Example:
        >>> first, second = MemorySink(), MemorySink()
        >>> sink = MultiSink([first, second])
        >>> sink.gauge("rows", 7.0, {})
        >>> first.value("rows", {}), second.value("rows", {})
        (7.0, 7.0)
    """

    def __init__(self, sinks: Iterable[MetricsSink]) -> None:
        self._sinks = tuple(sinks)
        self._lock = threading.Lock()
        self._num_failures: dict[int, int] = defaultdict(int)  # by place in the list
        self._is_closed = False

    @property
    def writes_tensors(self) -> bool:
        """Whether any sink has `write_tensor`."""
        return any(_writes_tensors(sink) for sink in self._sinks)

    def count(self, name: str, number: float, tags: Mapping[str, str]) -> None:
        """Add to a counter of every sink."""
        self._call_all("count", name, number, tags)

    def gauge(self, name: str, value: float, tags: Mapping[str, str]) -> None:
        """Replace the value of a gauge of every sink."""
        self._call_all("gauge", name, value, tags)

    def time(self, name: str, microseconds: float, tags: Mapping[str, str]) -> None:
        """Record a time in every sink."""
        self._call_all("time", name, microseconds, tags)

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Record an event in every sink."""
        self._call_all("event", name, fields)

    def write_tensor(self, summary: "TensorSummary", step: int) -> None:
        """Write a tensor to every sink that has `write_tensor`."""
        self._call_all("write_tensor", summary, step)

    def restart(self, step: int) -> None:
        """Tell every sink that has `restart` that a run goes on after a step."""
        self._call_all("restart", step)

    def flush(self, step: int) -> None:
        """End an interval of every sink."""
        self._call_all("flush", step)

    def close(self) -> None:
        """Close every sink and log how often each one failed. Safe to call again."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._call_all("close")
        for i, number in self._num_failures.items():
            _log.warning("%s failed %d times", type(self._sinks[i]).__name__, number)

    def _call_all(self, verb: str, *arguments: Any) -> None:
        for i, sink in enumerate(self._sinks):
            if _has_verb(sink, verb):
                try:
                    getattr(sink, verb)(*arguments)
                except Exception:
                    self._log_failure(i)

    def _log_failure(self, i: int) -> None:
        with self._lock:
            self._num_failures[i] += 1
            is_first = self._num_failures[i] == 1
        if is_first:
            _log.exception("%s failed; the run goes on", type(self._sinks[i]).__name__)


def _has_verb(sink: MetricsSink, verb: str) -> bool:
    """Whether a sink has a verb, of which two are optional; a sink that lacks another one fails."""
    if verb == "write_tensor":
        return _writes_tensors(sink)
    return verb != "restart" or hasattr(sink, verb)


def _writes_tensors(sink: MetricsSink) -> bool:
    return getattr(sink, "writes_tensors", False)


class MemorySink(BufferedSink):
    """Keeps measurements in memory: counters for ever, times for 15 minutes.

    Of each gauge the values of the last 10,000 flushes are kept, and the last 10,000 events and
    tensors.

    Args:
        clock: function that returns seconds; only differences count.

    Example:
        >>> sink = MemorySink()
        >>> for microseconds in (10.0, 30.0):
        ...     sink.time("embedding_lookup", microseconds, {"ps": "0"})
        >>> sink.summary("embedding_lookup", {"ps": "0"})
        TimeSummary(num_times=2, minimum=10.0, maximum=30.0, mean=20.0, p99=30.0)
    """

    writes_tensors = True

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._times_of: dict[Series, deque[tuple[float, float]]] = {}
        self._history: dict[Series, deque[tuple[int, float]]] = {}
        self._events: deque[tuple[str, dict[str, Any]]] = deque(maxlen=_MAX_RECORDS)
        self._tensors: deque[tuple[int, TensorSummary]] = deque(maxlen=_MAX_RECORDS)

    def time(self, name: str, microseconds: float, tags: Mapping[str, str]) -> None:
        """Record a time."""
        series, now = series_of(name, tags), self._clock()
        with self._lock:
            times = self._times_of.setdefault(series, deque(maxlen=_MAX_TIMES))
            times.append((now, microseconds))
            while times[0][0] < now - _MAX_AGE_SECONDS:
                times.popleft()

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Keep an event."""
        with self._lock:
            self._events.append((name, dict(fields)))

    def write_tensor(self, summary: "TensorSummary", step: int) -> None:
        """Keep a tensor."""
        with self._lock:
            self._tensors.append((step, summary))

    def flush(self, step: int) -> None:
        """Add the gauges that were set since the last call to the history, under this step."""
        interval = self._take()
        with self._lock:
            for series, value in interval.gauges.items():
                history = self._history.setdefault(series, deque(maxlen=_MAX_RECORDS))
                history.append((step, value))

    def close(self) -> None:
        """Do nothing; the measurements stay readable."""

    def value(self, name: str, tags: Mapping[str, str]) -> float | None:
        """Return the value of a gauge; None if it was never set."""
        series = series_of(name, tags)
        with self._lock:
            if series in self._gauges:
                return self._gauges[series]
            history = self._history.get(series)
            return history[-1][1] if history else None

    def history(self, name: str, tags: Mapping[str, str]) -> list[tuple[int, float]]:
        """Return the steps and values of a gauge, one pair for each flush that wrote the gauge."""
        with self._lock:
            return list(self._history.get(series_of(name, tags), ()))

    @property
    def names(self) -> frozenset[str]:
        """Names of all counters, gauges and timers so far."""
        with self._lock:
            kinds = (self._counters, self._gauges, self._history, self._times_of)
            return frozenset(name for series in kinds for name, _ in series)

    @property
    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """Events by name and fields, oldest first."""
        with self._lock:
            return list(self._events)

    @property
    def tensors(self) -> list[tuple[int, "TensorSummary"]]:
        """Tensors with their steps, oldest first."""
        with self._lock:
            return list(self._tensors)

    def total(self, name: str, tags: Mapping[str, str]) -> float:
        """Return the counter of a name and tags."""
        with self._lock:
            return self._counters.get(series_of(name, tags), 0.0)

    def summary(
        self, name: str, tags: Mapping[str, str], interval_seconds: float = _MAX_AGE_SECONDS
    ) -> TimeSummary:
        """Summarize the times of a name and tags over the last seconds, at most 900."""
        since = self._clock() - interval_seconds
        with self._lock:
            series = self._times_of.get(series_of(name, tags), ())
            times = sorted(microseconds for at, microseconds in series if at >= since)
        if not times:
            return TimeSummary(0, math.nan, math.nan, math.nan, math.nan)
        mean = sum(times) / len(times)
        return TimeSummary(len(times), times[0], times[-1], mean, quantile(times, 0.99))
