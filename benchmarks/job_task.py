"""The task of the stage `job`: 26 features with a model that computes next to nothing, or an MLP.

`monolith ps benchmarks.job_task.Light` loads it, and so do the workers (`job_worker.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

import monolith as ml
from benchmarks.click_model import NUM_DENSE, NUM_FEATURES, Sizes
from benchmarks.servers import Scores, batches_of


@dataclass
class LightSettings(ml.TaskSettings):
    """Sizes of the task.

    Args:
        rows: Ids of each feature.
        dim: Width of the rows.
        is_click: Whether the model is the MLP 429-256-64-1 of `click_model.py`, at dim 16.
        num_bulk: Number of elements of one further dense parameter.
    """

    rows: int = 200_000
    dim: int = 16
    is_click: bool = False
    num_bulk: int = 0


class Endless:
    """The batches of a task again and again, in the same order each time."""

    def __init__(self, batches: list[ml.data.Batch]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[ml.data.Batch]:
        while True:
            yield from self._batches


class LightModel(nn.Module):
    """The dense part.

    Args:
        settings: Sizes of the task.
    """

    def __init__(self, settings: LightSettings) -> None:
        super().__init__()
        width = NUM_FEATURES * settings.dim + NUM_DENSE
        layers = (nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1))
        self.layers = nn.Sequential(*layers) if settings.is_click else None
        self.bulk = nn.Parameter(torch.zeros(settings.num_bulk)) if settings.num_bulk else None

    def forward(self, inputs: ml.train.Inputs) -> torch.Tensor:
        """Return a score for each sample."""
        if self.layers is None:
            score = inputs.pooled.joined.mean(1)
        else:
            score = self.layers(torch.cat([inputs.pooled.joined, inputs.dense], 1)).squeeze(1)
        return score if self.bulk is None else score + self.bulk.mean()


class Light(ml.Task):
    """26 features and a light model."""

    dense = [f"dense_{i}" for i in range(NUM_DENSE)]
    Settings = LightSettings

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        self.features = [  # type: ignore[misc]
            ml.Feature(f"feature_{i}", dim=self.settings.dim, optimizer=ml.Adagrad(0.05))
            for i in range(NUM_FEATURES)
        ]

    def batches(self) -> list[ml.data.Batch]:
        """Return the batches of the source."""
        return batches_of(Sizes(self.settings.rows, self.settings.batch_size, threads=1))

    def source(self, mode: object) -> Any:
        return Endless(self.batches())

    def build(self) -> nn.Module:
        return LightModel(self.settings)

    def loss(self, model: nn.Module, inputs: ml.train.Inputs, batch: ml.data.Batch) -> Scores:
        score = model(inputs)
        if self.settings.is_click:
            loss = nn.functional.binary_cross_entropy_with_logits(score, batch.label)
        else:
            loss = (score - batch.label).square().mean()
        return loss, score.detach().sigmoid()


def num_distinct(task: Light, every: int = 1) -> float:
    """Return the mean number of distinct ids of a batch, over all features.

    Args:
        task: The task.
        every: Distance of the batches that are looked at.
    """
    counts = [
        sum(len(np.unique(ids.values.numpy())) for ids in batch.features.values())
        for batch in task.batches()[::every]
    ]
    return sum(counts) / len(counts)
