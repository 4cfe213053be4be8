"""Figures of a run: loss, metrics, rate, rows, memory, staleness; and the hook that sums them."""

import contextlib
import logging
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from monolith.data import Batch
from monolith.nn import Features
from monolith.train.driver import Hook, Run, StepContext, StepResults

if TYPE_CHECKING:
    from monolith.train.inputs import Trainee
    from monolith.train.read_ahead import StepReader

_log = logging.getLogger(__name__)

_SAMPLES_AT_ONCE = 1024


class Metric(Protocol):
    """A number of predictions and labels that come batch by batch, as `monolith.observe` has it."""

    def update(
        self,
        predictions: torch.Tensor,
        labels: torch.Tensor,
        *,
        weights: torch.Tensor | None = None,
    ) -> None:
        """Take the predictions and labels of a batch.

        Raises:
            ValueError: it is not defined for them.
        """

    @property
    def value(self) -> float | None:
        """Of all batches so far; None while it is not defined."""


@dataclass(frozen=True)
class Figures:
    """What a run says of itself.

    Attributes:
        step: steps of all calls of `fit` so far.
        num_samples: since the last report.
        loss: mean over these samples.
        metrics: by name, over these samples; those that have a value.
        samples_per_second: since the last report, evaluations left out.
        num_rows: of all tables.
        num_refused: ids that admission or a budget refused, counted by the tables.
        num_evicted: rows that expiry or a budget removed.
        memory_bytes: resident memory of the process.
        staleness: most updates, in steps, that a lookup had not seen since the last report.
        staleness_bound: the bound on that.
        prefetch: steps ahead, as it is now.
        share: of the source that is read, 0 to 1; None where the source does not know its size.
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
    share: float | None = None


class ReportHook(Hook):
    """A hook that is also told the figures."""

    def report(self, figures: Figures) -> None:
        """Called every `TrainSettings.log_every` steps, and at the end of a run."""


class Meter:
    """Sums up losses and metrics between two reports.

    Args:
        make_metrics: gives new metrics by name.
        is_lenient: metrics that refuse predictions or labels are left out from then on, with a
            warning.
        seconds: gives the time.
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
        """Begin anew."""
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
        """A batch."""
        num = len(prediction)
        self.num_samples += num
        self._loss += loss * num
        if label is None or not self._metrics:
            return
        self._pending.append((prediction, label) if weight is None else (prediction, label, weight))
        self._num_pending += num
        if self._num_pending >= _SAMPLES_AT_ONCE:
            self._update()

    def _update(self) -> None:
        """Give the metrics what is pending: of many small batches at once, which is cheaper."""
        groups = [
            [each for each in self._pending if len(each) == size]  # without and with weights
            for size in (2, 3)
        ]
        self._pending, self._num_pending = [], 0
        try:
            for group in filter(None, groups):
                prediction, label, *weight = (torch.cat(c) for c in zip(*group, strict=True))
                for metric in self._metrics.values():
                    metric.update(prediction, label, weights=weight[0] if weight else None)
        except ValueError as error:
            if not self._is_lenient:
                raise
            names = ", ".join(self._metrics)
            _log.warning("%s are left out: %s; choose others in Task.metrics", names, error)
            self._make_metrics, self._metrics = dict, {}

    @property
    def loss(self) -> float:
        """Mean over samples; NaN without any."""
        return self._loss / self.num_samples if self.num_samples else float("nan")

    def values(self) -> dict[str, float]:
        """Of the metrics that have one."""
        self._update()
        found = {name: metric.value for name, metric in self._metrics.items()}
        return {name: value for name, value in found.items() if value is not None}

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What is done inside does not count as time of the samples."""
        begin = self._seconds()
        yield
        self._begin += self._seconds() - begin

    @property
    def samples_per_second(self) -> float:
        """Since the last report, or since a restore after it; pauses do not count."""
        num_samples = self.num_samples - self._num_before
        return num_samples / max(self._seconds() - self._begin, 1e-9)

    def state_dict(self) -> dict[str, Any]:
        """What was summed up; of metrics, if they have `state_dict` too."""
        self._update()
        return {
            "num_samples": self.num_samples,
            "staleness": self.staleness,
            "loss": self._loss,
            "metrics": {
                name: _packed(metric.state_dict())
                for name, metric in self._metrics.items()
                if hasattr(metric, "state_dict")
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another one was; metrics that had no state begin anew."""
        self.reset()
        self.num_samples = self._num_before = state["num_samples"]
        self.staleness, self._loss = state["staleness"], state["loss"]
        for name, inner in state["metrics"].items():
            metric: Any = self._metrics.get(name)
            if hasattr(metric, "load_state_dict"):
                lists = {key: numbers.tolist() for key, numbers in inner["lists"].items()}
                metric.load_state_dict({**inner["rest"], **lists})


def _packed(state: Mapping[str, Any]) -> dict[str, Any]:
    """A metric's state with lists of numbers as tensors: a checkpoint has them in fewer bytes."""
    kinds = {key: _kind(value) for key, value in state.items()}
    return {
        "lists": {key: torch.tensor(state[key], dtype=kind) for key, kind in kinds.items() if kind},
        "rest": {key: state[key] for key, kind in kinds.items() if kind is None},
    }


def _kind(value: Any) -> torch.dtype | None:
    """The dtype of a list of numbers; None of anything else."""
    types = {type(number) for number in value} if isinstance(value, list) else set()
    if types == {int}:
        return torch.int64
    return torch.float64 if types == {float} else None


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


def label_of(batch: Batch, names: Sequence[str]) -> torch.Tensor | None:
    """Return the labels, (batch,); (batch, num_labels) of several; None without a name."""
    if len(names) == 1:
        return batch.labels[names[0]]
    return torch.stack([batch.labels[name] for name in names], 1) if names else None


class FiguresHook(Hook):
    """Sums up the results of steps, and reports them to every hook that is a `ReportHook`.

    Counts of tables and memory are taken at a report only.

    Args:
        trainee: the task and what its training changes.
        meter: sums the losses and metrics.
        reader: its capacity is a figure.
        hooks: hooks of the run.
        share: returns the share of the source that is read; None if unknown.

    Attributes:
        meter: sums since the last report.
        last: the last figures; None before the first report.
    """

    def __init__(
        self,
        trainee: "Trainee",
        meter: Meter,
        reader: "StepReader[Any]",
        hooks: Sequence[Hook],
        share: Callable[[], float | None],
    ) -> None:
        self._trainee, self._reader, self._share = trainee, reader, share
        self._listeners = [hook for hook in hooks if isinstance(hook, ReportHook)]
        self.meter = meter
        self._num_reported = -self.meter.num_samples  # a restored meter has those of another run
        self.last: Figures | None = None

    @property
    def num_samples(self) -> int:
        """Samples of the run so far."""
        return self._num_reported + self.meter.num_samples

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

    def end(self, run: Run) -> None:
        """Report the rest; a run without a step has figures, but nothing to report."""
        step = run.global_step or 0
        if self.meter.num_samples:
            self._report(step)
        elif self.last is None:
            self.last = self._figures(step)

    def _report(self, step: int) -> None:
        self.last = self._figures(step)
        self._num_reported += self.meter.num_samples
        for listener in self._listeners:
            listener.report(self.last)
        self.meter.reset()

    def _figures(self, step: int) -> Figures:
        meter, bound = self.meter, self._trainee.settings.staleness_bound
        rows, refused, evicted = table_counts(self._trainee.features)
        return Figures(
            step=step,
            num_samples=meter.num_samples,
            loss=meter.loss,
            metrics=meter.values(),
            samples_per_second=meter.samples_per_second,
            num_rows=rows,
            num_refused=refused,
            num_evicted=evicted,
            memory_bytes=memory_bytes(),
            staleness=meter.staleness,
            staleness_bound=bound,
            prefetch=self._reader.capacity,
            share=self._share(),
        )
