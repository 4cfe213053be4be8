"""A ranking model on clicks whose ids never end, as a task file.

Example: monolith train examples/clicks_task.py --set days=30
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import monolith as ml
from monolith.ops import Ragged

# The file may be started from anywhere; `examples` itself lies one level up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from examples.clicks import BATCH, FEATURES, SEED, STEPS_PER_DAY, Clicks

DIM, HIDDEN = 16, 64
EXPIRY_DAYS = 7
SECONDS_PER_STEP = 86_400 // STEPS_PER_DAY
START_SECONDS = 1_700_000_000  # time of the first step
# Of a loss that is a mean: a row steps as by the sum over the clicks of its id.
ADAGRAD = ml.Adagrad(0.2, initial_accumulator_value=0.1 / BATCH**2)


@dataclass
class RankerSettings(ml.TaskSettings):
    """What `--set` can change."""

    batch_size: int = BATCH
    days: int = 30
    stream_seed: int = SEED


class DotLayers(nn.Module):
    """Pooled features, the dot product of each pair of them, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.triu_indices(len(FEATURES), len(FEATURES), offset=1)
        width = len(FEATURES) * DIM + len(self.first)
        self.mlp = nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def forward(self, joined: torch.Tensor) -> torch.Tensor:
        """Logits of joined features, (batch, features * dim)."""
        pooled = joined.view(-1, len(FEATURES), DIM)
        dots = (pooled @ pooled.mT)[:, self.first, self.second]  # (batch, pairs)
        logits: torch.Tensor = self.mlp(torch.cat([joined, dots], 1))
        return logits.squeeze(1)


class Ranker(ml.Task):
    """Click prediction; a row goes when its id was not seen for a week."""

    Settings = RankerSettings
    features = tuple(
        ml.Feature(name, dim=DIM, optimizer=ADAGRAD, expiry=EXPIRY_DAYS) for name in FEATURES
    )
    label = "click"

    def source(self, mode: ml.Mode) -> Iterable[ml.data.Batch]:
        """Return batches of the files of `--data`; without files, those of the stream."""
        settings = self.settings
        if mode not in settings.data:
            return self._stream(mode)
        columns = ml.data.Columns(FEATURES, labels=["click"], time="time")
        return ml.data.parquet(settings.data[mode], columns=columns).batch(settings.batch_size)

    def _stream(self, mode: ml.Mode) -> Iterator[ml.data.Batch]:
        """Yield batches that are two hours apart; those of eval are of another seed."""
        settings = self.settings
        stream = Clicks(settings.stream_seed + (mode != "train"))
        for step, clicks in zip(range(settings.days * STEPS_PER_DAY), stream, strict=False):
            ids = {name: _ragged(*clicks.features[name]) for name in FEATURES}
            time = torch.full((len(clicks.labels),), START_SECONDS + step * SECONDS_PER_STEP)
            yield ml.data.Batch(ids, labels={"click": clicks.labels}, time=time)

    def build(self) -> nn.Module:
        """The dense model."""
        return DotLayers()

    def loss(
        self, model: nn.Module, inputs: ml.Inputs, batch: ml.data.Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss and prediction."""
        logit = model(inputs.pooled.joined)
        return nn.functional.binary_cross_entropy_with_logits(logit, batch.label), logit.sigmoid()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Of the dense model."""
        return torch.optim.Adam(model.parameters(), lr=0.003)


def _ragged(ids: torch.Tensor, offsets: torch.Tensor) -> Ragged:
    return Ragged(ids, torch.cat([offsets, torch.tensor([len(ids)])]))
