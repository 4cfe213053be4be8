"""`OnlineHook`: scores each batch before it is learned, and knows how old the newest one is."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from monolith.data import Batch, Batches
from monolith.data.stream.kafka import LATE
from monolith.errors import InvalidArgumentError
from monolith.observe.metrics import MetricsSink
from monolith.train.driver import Hook, StepContext, StepResults
from monolith.train.figures import StreamFigures, WindowScores, label_of, share_read
from monolith.train.online.online_source import OnlineBatches
from monolith.train.online.score_windows import AllWindows, SampleWindows, Scored, TimeWindows
from monolith.train.settings import SCORE_SAMPLES, SCORE_SECONDS

if TYPE_CHECKING:
    from monolith.train.inputs import Trainee


class OnlineHook(Hook):
    """The hook that scores the predictions of each step, which the step has not learned from.

    It comes before the hook that reports figures. The scores of a window go to the sink when the
    window ends.

    Args:
        trainee: The task with its settings.
        sink: Sink of the scores.
        batches: Function that returns the iterator of the batches, which may be another one after a
            recovery.
        clock: Seconds since 1970.

    Attributes:
        windows: Windows of the scores; None without any.
    """

    def __init__(
        self,
        trainee: "Trainee",
        sink: MetricsSink,
        batches: Callable[[], Iterator[Batch]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._labels, self._sink, self._batches = trainee.columns.labels, sink, batches
        self._clock, self._newest = clock, -math.inf
        self._is_stream = getattr(batches(), "is_stream", False)
        self.windows = _windows(trainee, is_stream=self._is_stream, clock=clock)

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Add the samples of the step to the windows."""
        for part in results.value.parts:
            self._newest = max(self._newest, part.batch.event_time or -math.inf)
            self._score(part.batch, part.prediction, ctx.run.global_step or 0)

    def _score(self, batch: Batch, prediction: Any, step: int) -> None:
        label = label_of(batch, self._labels)
        if self.windows is None or label is None:
            return
        for scores in self.windows.add(Scored(prediction, label, batch.weight, batch.time)):
            self._write(scores, step)

    def _write(self, scores: WindowScores, step: int) -> None:
        for name, value in scores.scores.items():
            self._sink.gauge(f"progressive/{name}", value, {"window": scores.kind})
        self._sink.gauge("progressive/samples", scores.num_samples, {"window": scores.kind})
        self._sink.flush(step)

    def figures(self) -> Mapping[str, Any]:
        """Return the figures of the source and of the windows, by field of `Figures`."""
        return {
            "share": share_read(self._batches()),
            "windows": {} if self.windows is None else dict(self.windows.last),
            "stream": self._stream_figures() if self._is_stream else None,
        }

    def _stream_figures(self) -> StreamFigures:
        opened = self._batches()
        batches = opened.stream_batches if isinstance(opened, OnlineBatches) else opened
        age = None if math.isinf(self._newest) else max(0.0, self._clock() - self._newest)
        if not isinstance(batches, Batches):
            return StreamFigures(age, None, 0, 0)
        num_late = batches.num_skipped.get(LATE, 0)
        num_bad = sum(batches.num_skipped.values()) - num_late
        return StreamFigures(age, batches.lag, num_late, num_bad)


def _windows(
    trainee: "Trainee", *, is_stream: bool, clock: Callable[[], float]
) -> AllWindows | None:
    settings = trainee.settings
    size, seconds = settings.score_samples, settings.score_seconds
    size = SCORE_SAMPLES * is_stream if size is None else size
    seconds = SCORE_SECONDS * is_stream if seconds is None else seconds
    windows: list[SampleWindows | TimeWindows] = []
    if size:
        windows.append(SampleWindows(size, trainee.new_meter()))
    if seconds:
        windows.append(TimeWindows(seconds, trainee.new_meter(), clock))
    return AllWindows(windows) if windows else None


def check_scores(trainee: "Trainee", *, has_ranks: bool) -> None:
    """Refuse windows of scores of a rank, which sees its own samples only.

    Raises:
        InvalidArgumentError: The settings ask for windows, and the run has ranks.
    """
    settings = trainee.settings
    if has_ranks and (settings.score_samples or settings.score_seconds):
        raise InvalidArgumentError(
            "[Trainer] expected no score_samples and score_seconds with ranks, got "
            f"{settings.score_samples} and {settings.score_seconds}; the figures of each report "
            "are those of all ranks"
        )
