"""A click model in one file; change it to fit your data.

monolith train ranker.py                                              made-up clicks
monolith train ranker.py --data train=clicks/ --data eval=held_out/   Parquet files of your own
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from torch import nn

import monolith as ml

DIM = 16
# A mean loss gives one row a small gradient, so the accumulator starts with a small value too.
ADAGRAD = ml.Adagrad(0.05, initial_accumulator_value=1e-6)


@dataclass
class RankerSettings(ml.TaskSettings):
    """Settings of the task, in addition to those of `ml.TaskSettings`; `--set` changes them."""

    batch_size: int = 1024
    hidden: int = 64


class Ranker(ml.Task):
    """Predicts clicks from user, item and history."""

    Settings = RankerSettings

    features = (
        ml.Feature("user_id", dim=DIM, optimizer=ADAGRAD, expiry="90d"),
        ml.Feature("item_id", dim=DIM, optimizer=ADAGRAD),
        ml.Feature("history", shares="item_id", combiner="mean", max_length=50),
    )
    dense = ("price", "hour")
    label = "click"

    def source(self, mode: ml.Mode) -> ml.data.Pipeline:
        """Read the Parquet files of `--data`, or made-up clicks without `--data`."""
        path = self.settings.data.get(mode)
        if path is None:
            samples = ml.data.arrow_table(made_up_clicks(seed=0 if mode == "train" else 1))
        else:
            samples = ml.data.parquet(path)
        if mode == "train" and not samples.is_stream:
            samples = samples.shuffle(100_000)
        return samples.batch(self.settings.batch_size)

    def build(self) -> nn.Module:
        """Build the dense model."""
        hidden = self.settings.hidden
        width = len(self.features) * DIM + len(self.dense)
        return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def loss(
        self, model: nn.Module, inputs: ml.Inputs, batch: ml.data.Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return loss and prediction.

        `inputs.matrix` has all features and dense columns, `inputs.pooled["user_id"]` one feature.
        """
        logit = model(inputs.matrix).squeeze(1)
        return nn.functional.binary_cross_entropy_with_logits(logit, batch.label), logit.sigmoid()


def made_up_clicks(seed: int, num: int = 400_000) -> pa.Table:
    """Generate clicks: some users click more, some items get more clicks, evenings have more."""
    random = np.random.default_rng(seed)
    user, item = random.integers(0, 5_000, num), random.integers(0, 1_000, num)
    hour = random.integers(0, 24, num)
    logit = 1.5 * np.sin(user) + 1.5 * np.cos(item) + 1.0 * (hour > 17) - 1.5
    click = random.random(num) < 1 / (1 + np.exp(-logit))
    lengths = random.integers(0, 4, num)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    history = random.integers(0, 1_000, offsets[-1])
    return pa.table(
        {
            "user_id": user * 1_000_003,  # any int64 is an id
            "item_id": item,
            "history": pa.ListArray.from_arrays(offsets, history),
            "price": random.random(num, dtype=np.float32),
            "hour": (hour / 24).astype(np.float32),
            "click": click.astype(np.float32),
        }
    )
