"""Observation of a run: measurements and their sinks, and learning figures."""

from monolith.observe.buffered_sink import TimeSummary
from monolith.observe.json_lines import JsonLinesSink
from monolith.observe.learning import Auc, Calibration, LogLoss, Mean, Throughput
from monolith.observe.metrics import MemorySink, MetricsSink, MultiSink, NullSink
from monolith.observe.summaries import TensorSummaries, TensorSummary

__all__ = [
    "Auc",
    "Calibration",
    "JsonLinesSink",
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
