"""Figures of a run: loss, metrics, rate, rows, memory, staleness."""

import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from monolith.nn import Features
from monolith.util.hooks import Hook

__all__ = ["Figures", "Meter", "Metric", "ReportHook", "memory_bytes", "table_counts"]


class Metric(Protocol):
    """A number of predictions and labels that come batch by batch."""

    def update(self, prediction: torch.Tensor, label: torch.Tensor) -> None:
        """Take the predictions and labels of a batch."""

    def value(self) -> float:
        """Of all batches since the last `reset`; NaN where it is not defined."""

    def reset(self) -> None:
        """Begin anew."""


@dataclass(frozen=True)
class Figures:
    """What a run says of itself.

    Attributes:
        step: steps of all calls of `fit` so far.
        num_samples: since the last report.
        loss: mean over these samples.
        metrics: by name, over these samples.
        samples_per_second: since the last report.
        num_rows: of all tables.
        num_refused: ids that admission or a budget refused, counted by the tables.
        num_evicted: rows that expiry or a budget removed.
        memory_bytes: resident memory of the process.
        staleness: most updates, in steps, that a lookup had not seen since the last report.
        staleness_bound: the bound on that.
        prefetch: steps ahead, as it is now.
    """

    step: int
    num_samples: int
    loss: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    samples_per_second: float = 0.0
    num_rows: int = 0
    num_refused: int = 0
    num_evicted: int = 0
    memory_bytes: int = 0
    staleness: int = 0
    staleness_bound: int = 0
    prefetch: int = 0


class ReportHook(Hook):
    """A hook that is also told the figures."""

    def report(self, figures: Figures) -> None:
        """Called every `TrainSettings.log_every` steps, and at the end of a run."""


class Meter:
    """Sums up losses and metrics between two reports.

    Args:
        metrics: by name.
        seconds: gives the time.
    """

    def __init__(
        self, metrics: Mapping[str, Metric], seconds: Callable[[], float] = time.perf_counter
    ) -> None:
        self._metrics, self._seconds = metrics, seconds
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.num_samples, self.staleness, self._loss = 0, 0, 0.0
        self._begin = self._seconds()
        for metric in self._metrics.values():
            metric.reset()

    def add(self, loss: float, prediction: torch.Tensor, label: torch.Tensor | None) -> None:
        """A batch."""
        num = len(prediction)
        self.num_samples += num
        self._loss += loss * num
        if label is not None:
            for metric in self._metrics.values():
                metric.update(prediction, label)

    @property
    def loss(self) -> float:
        """Mean over samples; NaN without any."""
        return self._loss / self.num_samples if self.num_samples else float("nan")

    def values(self) -> dict[str, float]:
        """Of the metrics."""
        return {name: metric.value() for name, metric in self._metrics.items()}

    @property
    def samples_per_second(self) -> float:
        """Since the last report."""
        return self.num_samples / max(self._seconds() - self._begin, 1e-9)


def table_counts(features: Features) -> tuple[int, int, int]:
    """Rows, refused and evicted of all tables."""
    stats = [table.stats() for table in features.tables.values()]
    evicted = sum(s["num_evicted"] + s["num_evicted_for_budget"] for s in stats)
    return sum(s["num_rows"] for s in stats), sum(s["num_refused"] for s in stats), evicted


def memory_bytes() -> int:
    """Resident memory of the process; where the system does not tell, the most it has had."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
