"""Learning figures of a model over streams of batches, in bounded memory.

Values are arrays, CPU or GPU tensors, or lists. A metric without samples is None, never NaN.
Objects are not thread-safe; `merge` joins the objects of several threads or processes.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Float32 stays float32, because its logarithms are several times as fast.
_Floats = NDArray[np.floating[Any]]

_LEAST = 1e-7  # predictions are clipped to [_LEAST, 1 - _LEAST]
_MAX_LOGIT = math.log((1 - _LEAST) / _LEAST)  # 16.1
_NUM_MARKS = 64  # number of marks in a window of time


class Mean:
    """Weighted mean of numbers.

    Example:
        >>> mean = Mean()
        >>> mean.update([1.0, 4.0], weights=[2.0, 1.0])
        >>> mean.value, Mean().value
        (2.0, None)
    """

    def __init__(self) -> None:
        self._total = self._weight = 0.0

    def update(self, values: ArrayLike, *, weights: ArrayLike | None = None) -> None:
        """Add numbers, with weight 1 unless `weights` is given."""
        numbers = _float_array(values)
        counts = _weights(self, weights, numbers.size)
        self._total += _sum(numbers if counts is None else numbers * counts)
        self._weight += numbers.size if counts is None else _sum(counts)

    @property
    def value(self) -> float | None:
        """Mean so far; None while the weight is 0."""
        return self._total / self._weight if self._weight else None

    def merge(self, other: "Mean") -> None:
        """Add all numbers of another mean."""
        self._total += other._total
        self._weight += other._weight

    def state_dict(self) -> dict[str, Any]:
        """Return the sums as plain numbers."""
        return {"total": self._total, "weight": self._weight}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the sums by those of a saved state."""
        self._total, self._weight = float(state["total"]), float(state["weight"])


class LogLoss:
    """Weighted mean of -log p(label); predictions are clipped to at least 1e-7 from 0 and 1.

    Example:
        >>> loss = LogLoss()
        >>> loss.update([0.5, 0.5], [0, 1])
        >>> round(loss.value, 4)
        0.6931
    """

    def __init__(self) -> None:
        self._mean = Mean()

    def update(
        self, predictions: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None
    ) -> None:
        """Add samples.

        Args:
            predictions: probabilities of label 1; (n,).
            labels: labels, 0 or 1; (n,).
            weights: weights of the samples, at least 0, or None for 1; (n,).

        Raises:
            ValueError: a value is outside its range, or the lengths differ.
        """
        chances, is_positive = _clipped_samples(self, predictions, labels)
        counts = _weights(self, weights, len(chances))
        self._mean.update(-np.log(np.where(is_positive, chances, 1 - chances)), weights=counts)

    @property
    def value(self) -> float | None:
        """Loss so far; None without samples."""
        return self._mean.value

    def merge(self, other: "LogLoss") -> None:
        """Add all samples of another loss."""
        self._mean.merge(other._mean)

    def state_dict(self) -> dict[str, Any]:
        """Return the sums as plain numbers."""
        return self._mean.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the sums by those of a saved state."""
        self._mean.load_state_dict(state)


class Calibration:
    """Sum of predictions over sum of labels: above 1, the model predicts too many positives.

    Example:
        >>> calibration = Calibration()
        >>> calibration.update([0.5, 0.25, 0.75], [0, 0, 1])
        >>> calibration.value, Calibration().value
        (1.5, None)
    """

    def __init__(self) -> None:
        self._predicted = self._positive = 0.0

    def update(
        self, predictions: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None
    ) -> None:
        """Add samples; arguments and errors are those of `LogLoss.update`."""
        chances, is_positive = _samples(self, predictions, labels)
        counts = _weights(self, weights, len(chances))
        self._predicted += _sum(chances if counts is None else chances * counts)
        self._positive += _sum(is_positive if counts is None else is_positive * counts)

    @property
    def value(self) -> float | None:
        """Calibration so far; None while label 1 has no weight."""
        return self._predicted / self._positive if self._positive else None

    def merge(self, other: "Calibration") -> None:
        """Add all samples of another calibration."""
        self._predicted += other._predicted
        self._positive += other._positive

    def state_dict(self) -> dict[str, Any]:
        """Return the sums as plain numbers."""
        return {"predicted": self._predicted, "positive": self._positive}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the sums by those of a saved state."""
        self._predicted, self._positive = float(state["predicted"]), float(state["positive"])


class Auc:
    """Area under the ROC curve, from counts of predictions by their log-odds.

    Log-odds from -16.1 to 16.1 are divided into `num_bins` equal bins, of 0.0005 each by default.
    Two predictions in one bin count as equal, half right; all other pairs are exact. So the exact
    AUC differs from `value` by at most `max_error`: half of the share of pairs (one sample of each
    label) that lie in one bin.

    Args:
        num_bins: number of bins, of 16 bytes each.

    Example:
        >>> auc = Auc()
        >>> auc.update([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
        >>> auc.value, auc.max_error, Auc().value
        (0.75, 0.0, None)
    """

    def __init__(self, *, num_bins: int = 1 << 16) -> None:
        if not 2 <= num_bins <= 1 << 24:
            raise ValueError(f"[Auc] expected num_bins in [2, {1 << 24}], got {num_bins}")
        self._num_bins = num_bins
        self._counts = np.zeros((2, num_bins))  # weights by label and bin

    def update(
        self, predictions: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None
    ) -> None:
        """Add samples; arguments and errors are those of `LogLoss.update`."""
        chances, is_positive = _clipped_samples(self, predictions, labels)
        counts = _weights(self, weights, len(chances))
        logits = np.log(chances / (1 - chances))
        places = (logits + _MAX_LOGIT) * (self._num_bins / (2 * _MAX_LOGIT))
        bins = np.minimum(places.astype(np.int64), self._num_bins - 1)
        bins += is_positive * self._num_bins
        np.add.at(self._counts.reshape(-1), bins, 1.0 if counts is None else counts)

    @property
    def value(self) -> float | None:
        """AUC so far; None while a label has no weight."""
        negatives, positives = self._counts
        below = np.cumsum(negatives) - negatives / 2
        return self._share_of_pairs(_sum(positives * below))

    @property
    def max_error(self) -> float | None:
        """Largest difference between `value` and the exact AUC; None while `value` is None."""
        negatives, positives = self._counts
        return self._share_of_pairs(_sum(positives * negatives) / 2)

    def _share_of_pairs(self, pairs: float) -> float | None:
        negatives, positives = self._counts.sum(axis=1).tolist()
        return pairs / (negatives * positives) if negatives and positives else None

    def merge(self, other: "Auc") -> None:
        """Add all samples of another AUC; raises ValueError if the numbers of bins differ."""
        if other._num_bins != self._num_bins:
            raise ValueError(f"[Auc] expected {self._num_bins} bins, got {other._num_bins}")
        self._counts += other._counts

    def state_dict(self) -> dict[str, Any]:
        """Return the bins that are not empty, as plain lists."""
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in self.state_arrays().items()
        }

    def state_arrays(self) -> dict[str, Any]:
        """Return the state with new arrays in place of lists, which takes a tenth of the time."""
        (bins,) = np.nonzero(self._counts.any(axis=0))
        return {
            "num_bins": self._num_bins,
            "bins": bins,
            "negatives": self._counts[0, bins],
            "positives": self._counts[1, bins],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the counts by those of a saved state; raises ValueError if the bins differ."""
        if state["num_bins"] != self._num_bins:
            raise ValueError(f"[Auc] expected {self._num_bins} bins, got {state['num_bins']}")
        self._counts[:] = 0
        self._counts[:, state["bins"]] = state["negatives"], state["positives"]


class Throughput:
    """Samples per second: of the last seconds, and since the start.

    Args:
        window_seconds: length of the window of `recent`, kept to 1/64 of it.
        clock: function that returns seconds; only differences count.

    Example:
        >>> seconds = iter([0.0, 1.0, 1.0, 1.0])
        >>> rate = Throughput(clock=lambda: next(seconds))
        >>> rate.update(512)
        >>> rate.recent, rate.overall
        (512.0, 512.0)
    """

    def __init__(
        self, *, window_seconds: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if not window_seconds > 0:
            raise ValueError(f"[Throughput] expected window_seconds > 0, got {window_seconds}")
        self._window, self._clock = window_seconds, clock
        self._start, self.num_samples = clock(), 0
        self._marks = deque([(self._start, 0)])  # time, and number of samples before that time

    def update(self, num_samples: int) -> None:
        """Count samples that were processed since the last call."""
        self.num_samples += num_samples
        now = self._clock()
        if now - self._marks[-1][0] >= self._window / _NUM_MARKS:
            self._marks.append((now, self.num_samples))
        self._forget(now)

    @property
    def recent(self) -> float | None:
        """Samples per second in the window; None before any time has passed."""
        now = self._clock()
        self._forget(now)
        start, before = self._marks[0]
        return (self.num_samples - before) / (now - start) if now > start else None

    @property
    def overall(self) -> float | None:
        """Samples per second since the start; None before any time has passed."""
        seconds = self._clock() - self._start
        return self.num_samples / seconds if seconds > 0 else None

    def _forget(self, now: float) -> None:
        """Drop marks until the first one is the last mark before the window."""
        while len(self._marks) > 1 and self._marks[1][0] <= now - self._window:
            self._marks.popleft()


def _float_array(values: Any) -> _Floats:
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.numpy() if values.itemsize > 2 else values.float().numpy()  # bfloat16
    array = np.asarray(values).reshape(-1)
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


def _sum(values: NDArray[Any]) -> float:
    return float(values.sum(dtype=np.float64))


def _weights(metric: object, weights: Any, num_values: int) -> NDArray[np.float64] | None:
    if weights is None:
        return None
    counts = _float_array(weights).astype(np.float64, copy=False)
    where = f"[{type(metric).__name__}]"
    if len(counts) != num_values:
        raise ValueError(f"{where} expected {num_values} weights, got {len(counts)}")
    if len(counts) and not 0 <= counts.min() <= counts.max() < math.inf:
        raise ValueError(
            f"{where} expected finite weights of at least 0, got from {counts.min()} to "
            f"{counts.max()}"
        )
    return counts


def _samples(metric: object, predictions: Any, labels: Any) -> tuple[_Floats, NDArray[np.bool_]]:
    """Return the predictions, and whether each label is 1."""
    chances, numbers = _float_array(predictions), _float_array(labels)
    where = f"[{type(metric).__name__}]"
    if len(chances) != len(numbers):
        raise ValueError(f"{where} expected {len(chances)} labels, got {len(numbers)}")
    if not len(chances):
        return chances, numbers > 0
    if not 0 <= chances.min() <= chances.max() <= 1:  # false for NaN too
        raise ValueError(
            f"{where} expected predictions in [0, 1], got from {chances.min()} to {chances.max()}"
        )
    is_positive = numbers != 0
    if not (is_positive == numbers).all():
        wrong = numbers[is_positive != numbers][0]
        raise ValueError(f"{where} expected labels 0 and 1, got {wrong}")
    return chances, is_positive


def _clipped_samples(
    metric: object, predictions: Any, labels: Any
) -> tuple[_Floats, NDArray[np.bool_]]:
    """Return the predictions clipped for the logarithm, and whether each label is 1."""
    chances, is_positive = _samples(metric, predictions, labels)
    return np.clip(chances, _LEAST, 1 - _LEAST), is_positive
