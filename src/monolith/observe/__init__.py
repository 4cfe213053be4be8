"""Observation of a run: measurements and their sinks, and learning figures."""

from monolith.observe.learning import Auc, Calibration, LogLoss, Mean, Throughput
from monolith.observe.metrics import MemorySink, MetricsSink, MultiSink, NullSink, TimeSummary
from monolith.observe.summaries import TensorSummaries, TensorSummary

__all__ = [
    "Auc",
    "Calibration",
    "LogLoss",
    "Mean",
    "MemorySink",
    "MetricsSink",
    "MultiSink",
    "NullSink",
    "TensorSummaries",
    "TensorSummary",
    "Throughput",
    "TimeSummary",
]
