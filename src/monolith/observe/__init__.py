"""What a run tells about itself: counters and timers."""

from monolith.observe.metrics import MemorySink, MetricsSink, NullSink, TimeSummary

__all__ = ["MemorySink", "MetricsSink", "NullSink", "TimeSummary"]
