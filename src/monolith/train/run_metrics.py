"""Write the measurements of a run to a sink; docs/metrics.md lists their names."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from monolith.checkpoint import Saved
from monolith.nn import Features
from monolith.observe.metrics import MetricsSink, MultiSink, NullSink
from monolith.observe.summaries import SUMMARIES, TensorSummaries
from monolith.train.driver import Coordinator, Run, StepContext, StepResults
from monolith.train.figures import (
    Figures,
    ReportHook,
    StreamFigures,
    TableCounts,
    table_counts,
)

if TYPE_CHECKING:
    from monolith.train.step.step_stages import Stages

_log = logging.getLogger(__name__)

METRICS = "metrics"
"""Metadata of the run of a trainer: the sink of its measurements."""

_MAX_TIMES = 1024  # times of steps that wait for a report
_BYTES_SECONDS = 1.0  # least time between two sums over the memory of all tables


class MetricsHook(ReportHook):
    """The hook that writes figures, counts, times and tensors of a run to a sink.

    Measurements go to the sink at each report of figures, which ends an interval of the sink. The
    sink is flushed and not closed.

    Args:
        sink: Sink of the measurements.
        run: Run, whose metadata have the tensors of the model's code if the sink writes tensors.
        features: Features with the tables.
        stages: Stages of the steps, which are timed from now on.
        exchange: Function that returns counters of what ranks have exchanged; None without ranks.
        clock: Clock that returns seconds; only differences count.
    """

    def __init__(
        self,
        sink: MetricsSink,
        run: Run,
        features: Features,
        stages: "Stages",
        exchange: "Callable[[], Mapping[str, int]] | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._next_bytes = clock, clock() + _BYTES_SECONDS
        self._sink, self._run, self._features, self._stages = sink, run, features, stages
        self._tensors = TensorSummaries() if getattr(sink, "writes_tensors", False) else None
        self._exchange = dict if exchange is None else exchange
        self._counts = self._counters(table_counts(features))
        self._num_recoveries = run.num_recoveries
        self._num_steps = self._num_samples = 0  # since the last report
        self._step_seconds: list[float] = []  # that the sink has not got
        self._seconds = dict.fromkeys((stage.name for stage in stages.all), 0.0)
        stages.start_timing()

    @contextmanager
    def recording(self, unreported: Callable[[], Figures]) -> Iterator[None]:
        """Collect tensors until the block ends; an error of the block is written and flushed.

        Args:
            unreported: Function that returns the figures since the last report; they are written if
                the block fails.
        """
        if self._tensors is not None:
            self._run.metadata[SUMMARIES] = self._tensors
        self._restart()  # the sink may have later steps of an earlier run
        self._sink.event("run_started", {"step": self._step})
        try:
            yield
        except BaseException as error:
            self._write_failure(error, unreported)
            raise
        finally:
            self._run.metadata.pop(SUMMARIES, None)

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Write a recovery at once, because the run may fail before the next report."""
        if num_new := run.num_recoveries - self._num_recoveries:
            self._num_recoveries = run.num_recoveries
            self._sink.count("run/recoveries", num_new, {})
            self._sink.event("run_recovered", {"step": self._step})

    def note_restore(self) -> None:
        """Note that the state is that of a checkpoint; rows of the checkpoint are no new rows."""
        self._counts = self._counters(table_counts(self._features))
        self._restart()

    def _restart(self) -> None:
        if hasattr(self._sink, "restart"):
            self._sink.restart(self._step)

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Keep the time of the step until the next report, when calls of the sink are cheaper."""
        self._num_samples += sum([len(part.batch) for part in results.value.parts])
        self._num_steps += 1
        seconds = self._stages.step.seconds
        self._step_seconds.append(seconds - self._seconds["step"])
        self._seconds["step"] = seconds
        if len(self._step_seconds) == _MAX_TIMES:
            self._write_step_times()

    def report(self, figures: Figures) -> None:
        """Write the figures, and end an interval of the sink."""
        sink = self._sink
        gauges = {
            "train/loss": figures.loss,
            **{f"train/{name}": value for name, value in figures.metrics.items()},
            "train/samples_per_second": figures.samples_per_second,
            "train/staleness": figures.staleness,
            "tables/rows": figures.num_rows,
            "process/memory_bytes": figures.memory_bytes,
            **self._stage_times(),
        }
        if figures.share is not None:
            gauges["run/share"] = figures.share
        if figures.stream is not None:
            gauges |= _stream_gauges(figures.stream)
        for name, value in gauges.items():
            sink.gauge(name, value, {})
        if self._clock() >= self._next_bytes:
            self._write_bytes()
        for name, number in self._new_counts(figures).items():
            sink.count(name, number, {})
        self._write_step_times()
        self._num_steps = self._num_samples = 0
        for tensor in self._tensors.take() if self._tensors is not None else ():
            sink.write_tensor(tensor, figures.step)  # type: ignore[attr-defined]
        sink.flush(figures.step)

    def finish(self, result: "FitResult") -> None:
        """Write that the run has ended, and flush the sink."""
        self._write_bytes()
        self._sink.event(
            "run_ended",
            {
                "step": self._step,
                "ended": result.ended,
                "num_steps": result.num_steps,
                "num_samples": result.num_samples,
                "seconds": result.seconds,
            },
        )
        self._sink.flush(self._step)

    @property
    def _step(self) -> int:
        return self._run.global_step or 0

    def _write_step_times(self) -> None:
        for seconds in self._step_seconds:
            self._sink.time("step/time", seconds * 1e6, {})
        self._step_seconds.clear()

    def _write_bytes(self) -> None:
        reports = self._features.pending.engine.memory_reports().values()
        num_bytes = sum(report["total_bytes"] for report in reports)
        self._sink.gauge("tables/bytes", num_bytes, {})
        self._next_bytes = self._clock() + _BYTES_SECONDS

    def _stage_times(self) -> dict[str, float]:
        """Return the seconds of each stage per step since the last report."""
        times = {}
        for stage in self._stages.all:
            if stage is not self._stages.step:
                before, self._seconds[stage.name] = self._seconds[stage.name], stage.seconds
                seconds = self._seconds[stage.name] - before
                times[f"step/{stage.name}_seconds"] = seconds / max(self._num_steps, 1)
        return times

    def _new_counts(self, figures: Figures) -> dict[str, int]:
        """Return the numbers to add to the counters."""
        counts = self._counters(figures)
        before, self._counts = self._counts, counts
        # A restore during the run may set the counters of the tables back.
        numbers = {name: max(0, number - before[name]) for name, number in counts.items()}
        return {
            "run/steps": self._num_steps,
            "run/samples": self._num_samples,
            "run/recoveries": 0,  # readers see the counter before the first recovery
            **numbers,
        }

    def _counters(self, counts: TableCounts | Figures) -> dict[str, int]:
        return {
            "tables/admitted": counts.num_admitted,
            "tables/refused": counts.num_refused,
            "tables/evicted": counts.num_evicted,
            **self._exchange(),
        }

    def _write_failure(self, error: BaseException, unreported: Callable[[], Figures]) -> None:
        """Write the figures since the last report and the error."""
        try:
            if self._num_steps:
                self.report(unreported())
        except Exception:
            _log.exception("the figures before the error of the run are lost")
        fields = {"step": self._step, "error": type(error).__name__, "text": str(error)}
        self._sink.event("run_failed", fields)
        self._sink.flush(self._step)


def _stream_gauges(stream: StreamFigures) -> dict[str, float]:
    gauges: dict[str, float] = {"stream/late": stream.num_late, "stream/bad": stream.num_bad}
    if stream.freshness_seconds is not None:
        gauges["stream/freshness_seconds"] = stream.freshness_seconds
    if stream.lag is not None:
        gauges["stream/lag"] = stream.lag
    return gauges


def write_evaluation(
    sink: MetricsSink, figures: Mapping[str, float], *, step: int, seconds: float
) -> None:
    """Write the figures of an evaluation after a step, which ends an interval of the sink."""
    for name, value in figures.items():
        sink.gauge(f"eval/{name}", value, {})
    sink.time("eval/time", seconds * 1e6, {})
    sink.flush(step)


@dataclass(frozen=True)
class SaveCounts:
    """The numbers of saves of a `fit`.

    Attributes:
        num_saved: Number of complete checkpoints.
        num_full: Number of these with all rows; the others are links.
        num_compacted: Number of links of which full checkpoints were made.
        num_skipped: Number of due saves that were left out, because the one before was being
            written.
        num_waits: Number of due saves for which the run waited for the one before.
        num_failed: Number of saves that failed or were abandoned.
        pause_seconds: Sum of the times for which saves and waits stopped the training.
    """

    num_saved: int = 0
    num_full: int = 0
    num_compacted: int = 0
    num_skipped: int = 0
    num_waits: int = 0
    num_failed: int = 0
    pause_seconds: float = 0.0


@dataclass(frozen=True)
class FitResult:
    """The result of a `fit`.

    Attributes:
        ended: Reason of the end: "end of data", "steps", "early stop", "interrupted" (Ctrl-C),
            "terminated" (SIGTERM) or "stopped" (by a hook).
        num_steps: Number of steps of the run.
        num_samples: Number of samples of the run.
        seconds: Duration of the run.
        figures: Last figures of the run.
        evaluations: Step -> figures of the evaluation after that step.
        prefetch: Number of steps read ahead at the end of the run; with "auto", the choice.
        num_recoveries: Number of recoveries from an `AbortedError`.
        saves: Numbers of checkpoints that were saved, skipped and so on.
    """

    ended: str
    num_steps: int
    num_samples: int
    seconds: float
    figures: Figures
    evaluations: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    prefetch: int = 0
    num_recoveries: int = 0
    saves: SaveCounts = field(default_factory=SaveCounts)


class SaveMetrics:
    """Counts the saves of a `fit`, and writes them to its sink.

    Args:
        sink: Sink of the measurements.

    Attributes:
        counts: The counts so far.
    """

    def __init__(self, sink: MetricsSink) -> None:
        self._sink, self.counts = sink, SaveCounts()

    def begin(self) -> None:
        """Write zeros, so that readers see the counters before the first of their saves."""
        checkpoints = ("checkpoints", "checkpoints_skipped", "checkpoints_failed")
        for name in (*checkpoints, "compactions", "compactions_failed"):
            self._sink.count(f"run/{name}", 0, {})

    def saved(self, saved: Saved, *, step: int, seconds: float, pause_seconds: float) -> None:
        """Count a complete checkpoint; see `write_save`."""
        self._add(num_saved=1, num_full=saved.is_full, pause_seconds=pause_seconds)
        if saved.is_full:
            self._sink.count("run/checkpoints_full", 1, {"reason": str(saved.reason)})
        write_save(
            self._sink,
            saved.prefix,
            step=step,
            seconds=seconds,
            pause_seconds=pause_seconds,
            num_bytes=saved.num_bytes,
        )

    def compacted(self, saved: Saved) -> None:
        """Count a full checkpoint that was made of links."""
        self._add(num_compacted=1)
        self._sink.count("run/compactions", 1, {})
        self._sink.event("checkpoint_compacted", {"path": saved.prefix})

    def compaction_failed(self, error: Exception) -> None:
        """Count links of which no full checkpoint could be made."""
        self._sink.count("run/compactions_failed", 1, {})
        fields = {"error": type(error).__name__, "text": str(error)}
        self._sink.event("compaction_failed", fields)

    def skipped(self, step: int, running_step: int) -> None:
        """Count a save that was left out while the checkpoint of another step was written."""
        self._add(num_skipped=1)
        self._sink.count("run/checkpoints_skipped", 1, {})
        self._sink.event("checkpoint_skipped", {"step": step, "running_step": running_step})

    def waited(self, seconds: float) -> None:
        """Count a wait of the run for a save."""
        self._add(num_waits=1, pause_seconds=seconds)
        self._sink.time("run/checkpoint_wait", seconds * 1e6, {})

    def failed(self, step: int, error: Exception) -> None:
        """Count a save that failed or was abandoned."""
        self._add(num_failed=1)
        self._sink.count("run/checkpoints_failed", 1, {})
        fields = {"step": step, "error": type(error).__name__, "text": str(error)}
        self._sink.event("checkpoint_failed", fields)

    def _add(self, **numbers: float) -> None:
        counts = {name: getattr(self.counts, name) + number for name, number in numbers.items()}
        self.counts = replace(self.counts, **counts)


def write_save(
    sink: MetricsSink,
    prefix: str,
    *,
    step: int,
    seconds: float,
    pause_seconds: float,
    num_bytes: int,
) -> None:
    """Write that a checkpoint was saved; the next flush of the sink writes it out.

    Args:
        sink: Sink of the measurements.
        prefix: Prefix of the checkpoint.
        step: Step of the checkpoint.
        seconds: Time of the writing.
        pause_seconds: Time for which the save stopped the training.
        num_bytes: Number of written bytes.
    """
    sink.count("run/checkpoints", 1, {})
    sink.count("run/checkpoint_bytes", num_bytes, {})
    sink.time("run/checkpoint_time", seconds * 1e6, {})
    sink.time("run/checkpoint_pause", pause_seconds * 1e6, {})
    fields = {"step": step, "path": prefix, "seconds": seconds}
    sink.event(
        "checkpoint_saved", {**fields, "pause_seconds": pause_seconds, "num_bytes": num_bytes}
    )


def lenient_sink(sink: MetricsSink | None) -> MultiSink | NullSink:
    """Return a sink whose failures do not end a run."""
    if sink is None:
        return NullSink()
    verbs = ("count", "gauge", "time", "event", "flush", "close")
    if isinstance(sink, type) or not all(callable(getattr(sink, verb, None)) for verb in verbs):
        raise TypeError(
            f"[Trainer] expected metrics as a sink with {', '.join(verbs)}, got {sink!r}; make "
            "one, such as monolith.observe.TensorBoardSink(folder)"
        )
    return sink if isinstance(sink, MultiSink | NullSink) else MultiSink([sink])
