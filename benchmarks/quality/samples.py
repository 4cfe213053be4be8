"""Samples of the demo's stream with a time each, and how well they were predicted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from examples.clicks import BATCH, FEATURES, Clicks
from examples.clicks_task import SECONDS_PER_STEP
from monolith.ops import Ragged

Floats = npt.NDArray[np.float64]
Ids = dict[str, Ragged]


@dataclass(frozen=True)
class Samples:
    """Samples in the order of their times.

    Attributes:
        ids: Ids of each feature.
        labels: 1 where clicked, float32 (n,).
        chances: The true probability of each click, float32 (n,).
        times: Seconds since the start of the stream, ascending, (n,).
    """

    ids: Ids
    labels: torch.Tensor
    chances: torch.Tensor
    times: Floats

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, start: int, stop: int) -> "Samples":
        """Return the samples from `start` up to `stop`."""
        ids = {name: _rows(column, start, stop) for name, column in self.ids.items()}
        labels, chances = self.labels[start:stop], self.chances[start:stop]
        return Samples(ids, labels, chances, self.times[start:stop])

    def take(self, places: torch.Tensor) -> "Samples":
        """Return the samples at some places, in the order of the places."""
        ids = {name: _take(column, places) for name, column in self.ids.items()}
        return Samples(ids, self.labels[places], self.chances[places], self.times[places.numpy()])


def _rows(column: Ragged, start: int, stop: int) -> Ragged:
    splits = column.row_splits[start : stop + 1]
    return Ragged(column.values[int(splits[0]) : int(splits[-1])], splits - splits[0])


def _take(column: Ragged, places: torch.Tensor) -> Ragged:
    lengths = column.lengths[places]
    splits = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    shifts = torch.repeat_interleave(column.offsets[places] - splits[:-1], lengths)
    return Ragged(column.values[shifts + torch.arange(len(shifts))], splits)


def join(parts: Sequence[Samples]) -> Samples:
    """Return the samples of all parts, one part after the other."""
    ids = {
        name: Ragged.from_lengths(
            torch.cat([part.ids[name].values for part in parts]),
            torch.cat([part.ids[name].lengths for part in parts]),
        )
        for name in FEATURES
    }
    labels = torch.cat([part.labels for part in parts])
    chances = torch.cat([part.chances for part in parts])
    return Samples(ids, labels, chances, np.concatenate([part.times for part in parts]))


def timed_stream(seed: int, drift: float) -> Iterator[Samples]:
    """Yield the steps of the demo's stream; the samples of a step arrive evenly at random times."""
    random = np.random.default_rng([seed, 1])  # of its own, so that the stream is the demo's
    for step, clicks in enumerate(Clicks(seed, drift=drift)):
        times = np.sort(random.uniform(0, SECONDS_PER_STEP, BATCH)) + step * SECONDS_PER_STEP
        ids = {name: Ragged.from_offsets(*clicks.features[name]) for name in FEATURES}
        yield Samples(ids, clicks.labels, clicks.chances, times)


def exact_auc(scores: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Return the share of pairs, a click and a non-click, in which the click has the higher score.

    A pair of equal scores counts as half.

    Example:
        >>> exact_auc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]), exact_auc([1, 1], [0, 1])
        (0.75, 0.5)
    """
    is_click = np.asarray(labels) > 0.5
    _, places, counts = np.unique(np.asarray(scores), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]  # from 1; equal scores share their mean
    num_clicks = int(is_click.sum())
    num_pairs = num_clicks * (len(ranks) - num_clicks)
    return float((ranks[is_click].sum() - num_clicks * (num_clicks + 1) / 2) / num_pairs)


def log_loss(logits: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Return the mean negative log-likelihood of the labels.

    Example:
        >>> round(log_loss([0.0, 0.0], [0, 1]), 4)
        0.6931
    """
    scores = np.asarray(logits, np.float64)
    return float(np.mean(np.logaddexp(0, scores) - np.asarray(labels) * scores))
