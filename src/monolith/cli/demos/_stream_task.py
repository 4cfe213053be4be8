"""Clicks of a stream, and a count of how often each of them was trained.

monolith train clicks.py --stream tail:clicks --checkpoints saves --save-seconds 3
"""

import torch
from torch import nn

import monolith as ml
from monolith.table import Zeros

DIM = 8
COLUMNS = ml.data.Columns(["user", "item", "event"], labels=["click"], time="time")
RATE = ml.Adagrad(0.1, initial_accumulator_value=1e-5)


class Clicks(ml.Task):
    """Predicts clicks; the row of an event is minus the number of times that it was trained."""

    features = (
        ml.Feature("user", dim=DIM, optimizer=RATE),
        ml.Feature("item", dim=DIM, optimizer=RATE),
        ml.Feature("event", dim=1, optimizer=ml.SGD(1.0), initializer=Zeros()),
    )
    label = "click"

    def source(self, mode: ml.Mode) -> ml.data.Pipeline:
        """Read JSON lines of `--stream`, or of the files of `--data`."""
        path = self.settings.data[mode]
        return ml.data.jsonl(path, columns=COLUMNS).batch(self.settings.batch_size)

    def build(self) -> nn.Module:
        """Build the dense model."""
        return nn.Sequential(nn.Linear(2 * DIM, 32), nn.ReLU(), nn.Linear(32, 1))

    def loss(
        self, model: nn.Module, inputs: ml.Inputs, batch: ml.data.Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return loss and prediction."""
        logit = model(torch.cat([inputs.pooled["user"], inputs.pooled["item"]], 1)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logit, batch.label)
        count = inputs.pooled["event"].sum()  # its gradient is 1, and its value changes nothing
        return loss + (count - count.detach()), logit.sigmoid()
