"""Observation of a run: measurements and their sinks, and learning figures."""

from monolith.observe.buffered_sink import TimeSummary
from monolith.observe.json_lines import JsonLinesSink
from monolith.observe.learning import Auc, Calibration, LogLoss, Mean, Throughput
from monolith.observe.metrics import MemorySink, MetricsSink, MultiSink, NullSink
from monolith.observe.prometheus import PrometheusSink
from monolith.observe.summaries import TensorSummaries, TensorSummary
from monolith.observe.tensorboard import TensorBoardSink

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
    "PrometheusSink",
    "TensorBoardSink",
    "TensorSummaries",
    "TensorSummary",
    "Throughput",
    "TimeSummary",
]
