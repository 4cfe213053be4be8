"""Progressive scores: metrics of predictions that were made before their samples were learned.

A window ends after a number of samples, or where the time of the samples enters the next interval:

    samples   |--------- 1,000 ---------|--------- 1,000 ---------|-- ...
    time      |-- 12:00 --|-- 12:01 --|- 12:02 -|-- 12:03 --|-- ...       by event time

Windows do not depend on batches: a batch over the end of a window is divided there. So a run that
was killed and resumed has the windows of a run that was not.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from monolith.train.figures import Meter, WindowScores

_log = logging.getLogger(__name__)

SAMPLES, TIME = "samples", "time"
"""Kinds of windows."""


class Scored(NamedTuple):
    """Samples of a step with their predictions, a row for each sample."""

    prediction: torch.Tensor
    label: torch.Tensor
    weight: torch.Tensor | None = None
    time: torch.Tensor | None = None

    def rows(self, start: int, end: int) -> "Scored":
        """Return some of the samples."""
        weight = None if self.weight is None else self.weight[start:end]
        times = None if self.time is None else self.time[start:end]
        return Scored(self.prediction[start:end], self.label[start:end], weight, times)


class ScoreWindows(Protocol):
    """Windows of one kind: `SampleWindows` or `TimeWindows`."""

    kind: str

    def add(self, scored: Scored) -> list[WindowScores]:
        """Add the samples of a step; return the windows that have ended."""

    def state_dict(self) -> dict[str, Any]:
        """Return the window under way, for `flatten_state`."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the window of a state; begin a new one if its size was another one."""


class SampleWindows:
    """Windows of a number of samples.

    Args:
        size: Number of samples of a window.
        meter: Meter of the samples of the window under way.
    """

    kind = SAMPLES

    def __init__(self, size: int, meter: Meter) -> None:
        self._size, self._meter, self._number = size, meter, 0

    def add(self, scored: Scored) -> list[WindowScores]:
        """See `ScoreWindows`."""
        ended, start, num = [], 0, len(scored.prediction)
        while start < num:
            end = min(num, start + self._size - self._meter.num_samples)
            _add(self._meter, scored.rows(start, end))
            start = end
            if self._meter.num_samples == self._size:
                ended.append(_take(self.kind, self._number, self._meter))
                self._number += 1
        return ended

    def state_dict(self) -> dict[str, Any]:
        """See `ScoreWindows`."""
        return {"size": self._size, "number": self._number, "meter": self._meter.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `ScoreWindows`."""
        self._meter.reset()
        self._number = 0
        if _fits(self.kind, state, self._size):
            self._number = state["number"]
            self._meter.load_state_dict(state["meter"])


class TimeWindows:
    """Windows of some seconds of event time, or of the clock for samples without a time.

    Time is the newest event time so far, which the clock bounds: samples that come late are in the
    window under way, and a time in the future does not end windows ahead of the clock. An interval
    without samples has no window.

    Args:
        seconds: Length of a window; windows begin at its multiples since 1970.
        meter: Meter of the samples of the window under way.
        clock: Seconds since 1970.
    """

    kind = TIME

    def __init__(
        self, seconds: float, meter: Meter, clock: Callable[[], float] = time.time
    ) -> None:
        self._seconds, self._meter, self._clock = seconds, meter, clock
        self._newest, self._number = -math.inf, 0

    def add(self, scored: Scored) -> list[WindowScores]:
        """See `ScoreWindows`."""
        ended = []
        for number, start, end in self._intervals(scored):
            if self._meter.num_samples and number != self._number:
                ended.append(_take(self.kind, self._number, self._meter))
            self._number = number
            _add(self._meter, scored.rows(start, end))
        return ended

    def _intervals(self, scored: Scored) -> list[tuple[int, int, int]]:
        """Return the number of each interval, with the samples from one row to another in it."""
        num = len(scored.prediction)
        if not num:
            return []
        now = self._clock()
        times = torch.tensor([now] * num) if scored.time is None else scored.time.double()
        newest = times.double().clamp(max=now).cummax(0).values.clamp(min=self._newest)
        self._newest = newest[-1].item()
        intervals = (newest / self._seconds).floor().long()
        numbers, counts = torch.unique_consecutive(intervals, return_counts=True)
        ends = counts.cumsum(0).tolist()
        return list(zip(numbers.tolist(), [0, *ends], ends, strict=False))

    def state_dict(self) -> dict[str, Any]:
        """See `ScoreWindows`."""
        return {
            "size": self._seconds,
            "newest": self._newest,
            "number": self._number,
            "meter": self._meter.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `ScoreWindows`."""
        self._meter.reset()
        self._newest = state["newest"]
        if _fits(self.kind, state, self._seconds):
            self._number = state["number"]
            self._meter.load_state_dict(state["meter"])


def _add(meter: Meter, scored: Scored) -> None:
    meter.add(0.0, scored.prediction, scored.label, scored.weight)


def _take(kind: str, number: int, meter: Meter) -> WindowScores:
    scores = WindowScores(kind, number, meter.num_samples, meter.values())
    meter.reset()
    return scores


def _fits(kind: str, state: Mapping[str, Any], size: float) -> bool:
    """Whether a saved window is one of this size."""
    if state["size"] != size:
        text = "scores by %s begin a new window of %s: that of the checkpoint is one of %s"
        _log.warning(text, kind, size, state["size"])
    return bool(state["size"] == size)


class AllWindows:
    """The windows of all kinds of a run, and their last scores.

    Args:
        windows: Windows of each kind.

    Attributes:
        last: Kind -> scores of the last window that has ended.
    """

    def __init__(self, windows: Sequence[ScoreWindows]) -> None:
        self._windows = windows
        self.last: dict[str, WindowScores] = {}

    def add(self, scored: Scored) -> list[WindowScores]:
        """Add the samples of a step; return the windows that have ended."""
        ended = [scores for windows in self._windows for scores in windows.add(scored)]
        self.last |= {scores.kind: scores for scores in ended}
        return ended

    def state_dict(self) -> dict[str, Any]:
        """Return the windows under way by kind, for `flatten_state`."""
        return {windows.kind: windows.state_dict() for windows in self._windows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the windows of a state."""
        for windows in self._windows:
            if windows.kind in state:
                windows.load_state_dict(state[windows.kind])
