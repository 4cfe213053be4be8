"""Measure how long the shards take for lookups, and write the times to a sink."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from monolith.cluster.call_host import Call
from monolith.cluster.transport import Pending, Transport
from monolith.observe.metrics import MetricsSink, NullSink

LOOKUP_TIME = "embedding_lookup"
"""Timer in microseconds between sending a lookup and having its answer; tags model_name, ps."""

_LOOKUPS = frozenset({"lookup", "pull"})


def timed(
    transports: Iterable[Transport], sink: MetricsSink | None, model_name: str = ""
) -> list[Transport]:
    """Return the transports to the shards, which measure lookups if there is a sink.

    Args:
        transports: one per shard, in order.
        sink: takes the times; None measures nothing.
        model_name: a tag of the times.
    """
    if sink is None or isinstance(sink, NullSink):
        return list(transports)
    return [TimedTransport(inner, i, model_name, sink) for i, inner in enumerate(transports)]


class TimedTransport(Transport):
    """A transport that measures the lookups through it.

    Args:
        inner: the way to the shard.
        shard: its number.
        model_name: whose lookups these are.
        sink: takes the times.
    """

    def __init__(self, inner: Transport, shard: int, model_name: str, sink: MetricsSink) -> None:
        self._inner, self._sink, self.device = inner, sink, inner.device
        self.timeout_seconds, self.num_tries = inner.timeout_seconds, inner.num_tries
        self._tags = {"model_name": model_name, "ps": str(shard)}

    def send(self, call: Call) -> Pending:
        """Send the call; a lookup is measured until its answer is here, told when it is taken."""
        if call.verb not in _LOOKUPS:
            return self._inner.send(call)
        start = time.perf_counter()
        return _Timed(self._inner.send(call), start, self)

    def record(self, seconds: float) -> None:
        """Write the time of a lookup to the sink."""
        self._sink.time(LOOKUP_TIME, seconds * 1e6, self._tags)


class _Timed:
    """An answer on its way, when it was asked for, and when it came."""

    def __init__(self, inner: Pending, start: float, transport: TimedTransport) -> None:
        self._inner, self._start, self._transport = inner, start, transport
        self._end: float | None = None
        inner.add_done_callback(self._stop)

    def _stop(self, _: object) -> None:
        self._end = time.perf_counter()

    def add_done_callback(self, tell: Callable[[Any], object], /) -> None:
        """Call `tell` when the answer is here."""
        self._inner.add_done_callback(tell)

    def result(self, timeout: float | None = None) -> Any:
        """The answer; an error is not measured."""
        answer = self._inner.result(timeout)
        # A future wakes its waiters before it calls back.
        end = time.perf_counter() if self._end is None else self._end
        self._transport.record(end - self._start)
        return answer
