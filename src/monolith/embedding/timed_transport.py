"""Lookup times of the shards, told to a sink."""

import time
from typing import Any

from monolith.embedding.call_host import Call
from monolith.embedding.transport import Pending, Transport
from monolith.observe import MetricsSink

__all__ = ["LOOKUP_TIME", "TimedTransport"]

LOOKUP_TIME = "embedding_lookup"
"""Timer in microseconds between sending a lookup and having its answer; tags model_name, ps."""


class TimedTransport(Transport):
    """A transport that measures the lookups through it.

    Args:
        inner: the way to the shard.
        shard: its number.
        model_name: whose lookups these are.
        sink: takes the times.
    """

    def __init__(self, inner: Transport, shard: int, model_name: str, sink: MetricsSink) -> None:
        self._inner, self._sink = inner, sink
        self._tags = {"model_name": model_name, "ps": str(shard)}

    def send(self, call: Call) -> Pending:
        """Send the call; a lookup is measured when its answer is taken."""
        if call.verb != "lookup":
            return self._inner.send(call)
        start = time.perf_counter()
        return _Timed(self._inner.send(call), start, self)

    def record(self, start: float) -> None:
        """A lookup that was sent at `start` has its answer."""
        self._sink.time(LOOKUP_TIME, (time.perf_counter() - start) * 1e6, self._tags)


class _Timed:
    """An answer on its way, and when it was asked for."""

    def __init__(self, inner: Pending, start: float, transport: TimedTransport) -> None:
        self._inner, self._start, self._transport = inner, start, transport

    def result(self, timeout: float | None = None) -> Any:
        """The answer; an error is not measured."""
        answer = self._inner.result(timeout)
        self._transport.record(self._start)
        return answer
