"""Observation of a run: counters, timers and learning figures."""

from monolith.observe.learning import Auc, LogLoss, Mean, Throughput
from monolith.observe.metrics import MemorySink, MetricsSink, NullSink, TimeSummary

__all__ = [
    "Auc",
    "LogLoss",
    "Mean",
    "MemorySink",
    "MetricsSink",
    "NullSink",
    "Throughput",
    "TimeSummary",
]
