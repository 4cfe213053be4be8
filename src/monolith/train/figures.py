"""Figures of a run, such as loss, metrics, rate and rows, and the hook that reports them."""

import contextlib
import logging
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch

from monolith.cluster import RemoteServers, Servers
from monolith.data import Batch, Batches
from monolith.nn import Features
from monolith.observe.alerts import AlertRule, Alerts
from monolith.observe.metrics import MetricsSink
from monolith.train.driver import Hook, Run, StepContext, StepResults

if TYPE_CHECKING:
    from monolith.train.inputs import Trainee
    from monolith.train.read_ahead import StepReader

_log = logging.getLogger(__name__)

_SAMPLES_AT_ONCE = 1024
_IDLE_SECONDS = 1.0  # least time between two reports of a stream that waits


class Metric(Protocol):
    """A figure of predictions and labels, updated batch by batch; see `monolith.observe`."""

    def update(
        self,
        predictions: torch.Tensor,
        labels: torch.Tensor,
        *,
        weights: torch.Tensor | None = None,
    ) -> None:
        """Add the predictions and labels of a batch.

        Raises:
            ValueError: The metric is not defined for these predictions or labels.
        """

    @property
    def value(self) -> float | None:
        """Return the figure over all batches so far; None while the figure is undefined."""


@dataclass(frozen=True)
class WindowScores:
    """The progressive scores of a window that has ended; see `monolith.train.online`.

    Attributes:
        kind: Kind of the window: "samples", or "time".
        number: Number of the window: from 0, or that of its interval since 1970.
        num_samples: Number of its samples.
        scores: Metrics by name; metrics without a value are left out.
    """

    kind: str
    number: int
    num_samples: int
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class StreamFigures:
    """How far a run is behind its stream, at the time of a report.

    Attributes:
        freshness_seconds: Time from the newest event that is trained until now; None without times.
        lag: Number of messages that are there and not read; None if unknown.
        num_late: Number of samples that came too late, since the process began to read.
        num_bad: Number of messages and samples that could not be read, likewise.
    """

    freshness_seconds: float | None
    lag: int | None
    num_late: int
    num_bad: int


@dataclass(frozen=True)
class Figures:
    """The figures of a report: losses, metrics and speed since the last report, and table sizes.

    Attributes:
        step: Number of steps so far, over all calls of `fit`.
        num_samples: Number of samples since the last report.
        loss: Mean loss per sample since the last report.
        metrics: Metrics since the last report by name; metrics without a value are left out.
        samples_per_second: Samples per second since the last report; evaluations do not count.
        num_rows: Number of rows of all tables.
        num_admitted: Number of ids that got a row, as the tables count them.
        num_refused: Number of ids that admission or a budget refused.
        num_evicted: Number of rows that expiry or a budget removed.
        memory_bytes: Resident memory of the process in bytes.
        staleness: Largest number of steps since the last report whose updates were missed: own ones
            by a lookup, or those of any worker of a job by the dense parameters.
        staleness_bound: Largest number of own updates that a lookup may miss; none bounds a job of
            several workers.
        prefetch: Number of steps read ahead at the time of the report.
        share: Share of the source that is read, 0 to 1; None if the size is unknown.
        windows: Kind -> progressive scores of the last window that has ended.
        stream: How far the run is behind its stream; None without a stream.
    """

    step: int
    num_samples: int
    loss: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    samples_per_second: float = 0.0
    num_rows: int = 0
    num_admitted: int = 0
    num_refused: int = 0
    num_evicted: int = 0
    memory_bytes: int = 0
    staleness: int = 0
    staleness_bound: int = 0
    prefetch: int = 0
    share: float | None = None
    windows: Mapping[str, WindowScores] = field(default_factory=dict)
    stream: StreamFigures | None = None


class ReportHook(Hook):
    """A hook that also receives the figures of the run."""

    def report(self, figures: Figures) -> None:
        """Receive the figures every `TrainSettings.log_every` steps and at the end of a run."""


ALERT_FIGURES = (
    *("loss", "samples_per_second", "staleness", "lost_pushes", "num_rows", "num_refused"),
    *("num_evicted", "memory_bytes"),
)
"""Names of the figures that alerts know, beside the metrics of a task."""


class AlertsHook(ReportHook):
    """The hook that looks for alerts at each report of figures.

    Args:
        alerts: The alerts.
        lost_pushes: Function that returns the number of pushes of this process that were lost.
    """

    def __init__(self, alerts: Alerts, lost_pushes: Callable[[], int]) -> None:
        self._alerts, self._lost_pushes = alerts, lost_pushes

    def report(self, figures: Figures) -> None:
        """Look at the figures."""
        values = {name: getattr(figures, name, 0.0) for name in ALERT_FIGURES}
        values["lost_pushes"] = self._lost_pushes()
        self._alerts.check(figures.step, {**values, **figures.metrics})


def alert_hooks(
    rules: Sequence[AlertRule], sink: MetricsSink, servers: Servers | None
) -> list[Hook]:
    """Return the hook that looks for alerts; an empty list without rules.

    Args:
        rules: Rules over the figures.
        sink: Sink that counts the alerts.
        servers: Servers of the run, whose lost pushes are a figure; None without servers.
    """

    def lost_pushes() -> int:
        return servers.lost_pushes if isinstance(servers, RemoteServers) else 0

    return [AlertsHook(Alerts(rules, sink), lost_pushes)] if rules else []


class Meter:
    """The sums of losses and metrics between two reports.

    Args:
        make_metrics: Function that returns new metrics by name.
        is_lenient: Whether metrics that refuse predictions or labels are dropped with a warning,
            instead of an error.
        seconds: Clock that returns seconds.

    Attributes:
        num_samples: Number of samples since the last `reset`.
        staleness: Largest staleness of a step since the last `reset`.
    """

    def __init__(
        self,
        make_metrics: Callable[[], Mapping[str, Metric]],
        *,
        is_lenient: bool = False,
        seconds: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._make_metrics, self._is_lenient, self._seconds = make_metrics, is_lenient, seconds
        self.reset()

    def reset(self) -> None:
        """Clear the sums, make new metrics and restart the clock."""
        self.num_samples, self.staleness, self._loss = 0, 0, 0.0
        self._begin, self._num_before = self._seconds(), 0
        self._metrics = self._make_metrics()
        self._pending: list[tuple[torch.Tensor, ...]] = []
        self._num_pending = 0

    def add(
        self,
        loss: float,
        prediction: torch.Tensor,
        label: torch.Tensor | None,
        weight: torch.Tensor | None = None,
    ) -> None:
        """Add a batch.

        Args:
            loss: Mean loss of the batch.
            prediction: Predictions, a row for each sample; with width 0, the task has none, and
                the metrics are left out with a warning.
            label: Labels, a row for each sample; None adds nothing to the metrics.
            weight: Weights of the samples, (batch,).

        Raises:
            ValueError: A metric refuses the batch and the meter is not lenient.
        """
        num = len(prediction)
        self.num_samples += num
        self._loss += loss * num
        if label is None or not self._metrics:
            return
        if prediction.dim() == 2 and not prediction.shape[1]:
            self._leave_out("the task has no predictions")
            return
        self._pending.append((prediction, label) if weight is None else (prediction, label, weight))
        self._num_pending += num
        if self._num_pending >= _SAMPLES_AT_ONCE:
            self._update()

    def _joined(self) -> list[tuple[torch.Tensor, ...]]:
        """Return the pending batches as one without and one with weights, of those that exist."""
        groups = [[batch for batch in self._pending if len(batch) == size] for size in (2, 3)]
        return [
            tuple(torch.cat(column) for column in zip(*group, strict=True))
            for group in groups
            if group
        ]

    def _update(self) -> None:
        # One update for many small batches is cheaper than one for each.
        batches = self._joined()
        self._pending, self._num_pending = [], 0
        try:
            for prediction, label, *weight in batches:
                for metric in self._metrics.values():
                    metric.update(prediction, label, weights=weight[0] if weight else None)
        except ValueError as error:
            if not self._is_lenient:
                raise
            self._leave_out(error)

    def _leave_out(self, reason: object) -> None:
        names = ", ".join(self._metrics)
        _log.warning("%s are left out: %s; choose others in Task.metrics", names, reason)
        self._make_metrics, self._metrics = dict, {}

    @property
    def loss(self) -> float:
        """Mean loss per sample; NaN without samples."""
        return self._loss / self.num_samples if self.num_samples else float("nan")

    def values(self) -> dict[str, float]:
        """Return the values of the metrics by name; metrics without a value are left out."""
        self._update()
        values = {name: metric.value for name, metric in self._metrics.items()}
        return {name: value for name, value in values.items() if value is not None}

    def merge(self, other: "Meter") -> None:
        """Add the sums of another meter of the same metrics; a metric without `merge` is left out.

        Args:
            other: The meter, which is not used afterwards.
        """
        self._update()
        other._update()
        self.num_samples += other.num_samples
        self.staleness, self._loss = max(self.staleness, other.staleness), self._loss + other._loss
        lacking = [name for name, m in self._metrics.items() if not hasattr(m, "merge")]
        if lacking:
            _log.warning("%s are left out: they have no merge", ", ".join(lacking))
            self._metrics = {n: m for n, m in self._metrics.items() if n not in lacking}
        for name, metric in self._metrics.items():
            if name in other._metrics:
                metric.merge(other._metrics[name])  # type: ignore[attr-defined]

    def take_sums(self, other: "Meter") -> None:
        """Take the sums and metrics of another meter; the clock of this one goes on."""
        self.num_samples, self.staleness = other.num_samples, other.staleness
        self._loss, self._metrics = other._loss, other._metrics
        self._pending, self._num_pending = [], 0

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock of `samples_per_second` until the block ends."""
        begin = self._seconds()
        yield
        self._begin += self._seconds() - begin

    @property
    def samples_per_second(self) -> float:
        """Samples per second since the last report or restore; pauses do not count."""
        num_samples = self.num_samples - self._num_before
        return num_samples / max(self._seconds() - self._begin, 1e-9)

    @property
    def seconds(self) -> float:
        """Seconds since the last report; pauses do not count."""
        return self._seconds() - self._begin

    def state_dict(self) -> dict[str, Any]:
        """Return the sums, the states of the metrics that have `state_dict`, and pending batches.

        The meter stays as it is, so that its sums do not depend on whether a run is saved. A metric
        with `state_arrays` returns large lists as arrays there.
        """
        return {
            "num_samples": self.num_samples,
            "staleness": self.staleness,
            "loss": self._loss,
            "metrics": {
                name: _packed(getattr(metric, "state_arrays", metric.state_dict)())
                for name, metric in self._metrics.items()
                if hasattr(metric, "state_dict")
            },
            "pending": [list(batch) for batch in self._joined()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the sums of another meter; metrics without a state have the pending batches only."""
        self.reset()
        self.num_samples = self._num_before = state["num_samples"]
        self.staleness, self._loss = state["staleness"], state["loss"]
        for name, inner in state["metrics"].items():
            metric: Any = self._metrics.get(name)
            if hasattr(metric, "load_state_dict"):
                lists = {key: numbers.tolist() for key, numbers in inner["lists"].items()}
                metric.load_state_dict({**inner["rest"], **lists})
        # Older checkpoints have no pending batches.
        self._pending = [tuple(batch) for batch in state.get("pending", ())]
        self._num_pending = sum(len(prediction) for prediction, *_ in self._pending)


def _packed(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a metric's state with lists of numbers as tensors, which take fewer bytes on disk."""
    tensors = {key: _tensor(value) for key, value in state.items()}
    return {
        "lists": {key: tensor for key, tensor in tensors.items() if tensor is not None},
        "rest": {key: state[key] for key, tensor in tensors.items() if tensor is None},
    }


def _tensor(value: Any) -> torch.Tensor | None:
    """Return an array, or a list of ints or floats, as a tensor; None for any other value."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    types = {type(number) for number in value} if isinstance(value, list) else set()
    if types not in ({int}, {float}):
        return None
    return torch.tensor(value, dtype=torch.int64 if types == {int} else torch.float64)


class TableCounts(NamedTuple):
    """The counts of all tables together; see `Figures`."""

    num_rows: int
    num_admitted: int
    num_refused: int
    num_evicted: int


def table_counts(features: Features) -> TableCounts:
    """Return the counts of all tables together."""
    stats = features.pending.engine.stats().values()
    return TableCounts(
        num_rows=sum(s["num_rows"] for s in stats),
        num_admitted=sum(s["num_inserted"] for s in stats),
        num_refused=sum(s["num_refused"] for s in stats),
        num_evicted=sum(s["num_evicted"] + s["num_evicted_for_budget"] for s in stats),
    )


def memory_bytes() -> int:
    """Return the resident memory of the process; its peak on systems without `/proc`."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def label_of(batch: Batch, names: Sequence[str]) -> torch.Tensor | None:
    """Return the labels: (batch,) for one name, (batch, num_labels) for several, None for none."""
    if len(names) == 1:
        return batch.labels[names[0]]
    return torch.stack([batch.labels[name] for name in names], 1) if names else None


def share_read(batches: Iterator[Batch]) -> float | None:
    """Return the share of the source that is read, with batches read ahead; None if unknown."""
    done, total = batches.progress if isinstance(batches, Batches) else (0, 0)
    return done / total if total else None


class FiguresHook(Hook):
    """The hook that sums the results of steps and reports figures to every `ReportHook`.

    Tables and memory are counted at a report only.

    Args:
        trainee: The task with its tables, model and settings.
        meter: Meter that sums losses and metrics.
        reader: Reader of the run, whose capacity is a figure.
        hooks: Hooks of the run.
        source: Function that returns the figures of the source, and of windows, by field.

    Attributes:
        meter: Meter with the sums since the last report.
        last: The last figures; None before the first report.
    """

    def __init__(
        self,
        trainee: "Trainee",
        meter: Meter,
        reader: "StepReader[Any]",
        hooks: Sequence[Hook],
        source: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._trainee, self._reader, self._source = trainee, reader, source
        self._listeners = [hook for hook in hooks if isinstance(hook, ReportHook)]
        self.meter = meter
        self.last: Figures | None = None

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Add a step; report every `log_every` steps."""
        meter, labels = self.meter, self._trainee.columns.labels
        for part in results.value.parts:
            batch = part.batch
            meter.add(part.loss, part.prediction, label_of(batch, labels), batch.weight)
        meter.staleness = max(meter.staleness, results.value.staleness)
        every, step = self._trainee.settings.log_every, ctx.run.global_step or 0
        if every and step % every == 0:
            self._report(step)

    def idle(self, ctx: StepContext) -> None:
        """Report the samples of a stream that waits: the next ones may be long in coming."""
        is_new = self.meter.num_samples and self.meter.seconds >= _IDLE_SECONDS
        if is_new and self._source()["stream"] is not None:
            self._report(ctx.run.global_step or 0)

    def end(self, run: Run) -> None:
        """Report the remaining samples; a run without a step has figures, but no report."""
        step = run.global_step or 0
        if self.meter.num_samples:
            self._report(step)
        elif self.last is None:
            self.last = self.figures(step)

    def _report(self, step: int) -> None:
        self.last = self.figures(step)
        for listener in self._listeners:
            listener.report(self.last)
        self.meter.reset()

    def figures(self, step: int) -> Figures:
        """Return the figures since the last report."""
        meter, bound = self.meter, self._trainee.settings.staleness_bound
        return Figures(
            step=step,
            num_samples=meter.num_samples,
            loss=meter.loss,
            metrics=meter.values(),
            samples_per_second=meter.samples_per_second,
            **table_counts(self._trainee.features)._asdict(),
            memory_bytes=memory_bytes(),
            staleness=meter.staleness,
            staleness_bound=bound,
            prefetch=self._reader.capacity,
            **self._source(),
        )
