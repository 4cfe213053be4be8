"""DLRM: 13 numbers through layers, 26 rows of 16, dot products of all pairs, layers, a click.

    13 numbers -> 512 -> 256 -> 64 -> 16 --+-- 27 vectors -> 351 dot products --+
    26 ids -> a row of 16 each ------------+                                     +-> 512 -> 256 -> 1
                                           +-- the 16 of the numbers -----------+

Example: .venv/bin/python examples/dlrm.py      made-up samples, whose label can be learned
         .venv/bin/python examples/dlrm.py logs/ held_out/
         monolith train examples/dlrm.py --data train=logs/ --data eval=held_out/
Parquet files have columns dense_0 to dense_12, feature_0 to feature_25, and label.
"""

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

# Started as a file, Python looks for modules beside it; `examples` itself lies one level up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import monolith as ml
from examples.run import path_of, run_task

NUM_DENSE, NUM_FEATURES, DIM = 13, 26, 16
BOTTOM = (NUM_DENSE, 512, 256, 64, DIM)
TOP = (DIM + NUM_FEATURES * (NUM_FEATURES + 1) // 2, 512, 256, 1)


def layers(widths: Sequence[int]) -> list[nn.Module]:
    """Linear layers with ReLU after each."""
    pairs = itertools.pairwise(widths)
    return [layer for i, o in pairs for layer in (nn.Linear(i, o), nn.ReLU())]


class Dlrm(nn.Module):
    """Naumov et al., "Deep Learning Recommendation Model for Personalization and
    Recommendation Systems", 2019, with the dot interaction."""

    pairs: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(*layers(BOTTOM))
        self.top = nn.Sequential(*layers(TOP)[:-1])
        num = NUM_FEATURES + 1
        row, column = torch.tril_indices(num, num, -1)
        self.register_buffer("pairs", row * num + column, persistent=False)

    def forward(self, dense: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Logits.

        Args:
            dense: (batch, NUM_DENSE).
            rows: of all features side by side, (batch, NUM_FEATURES * DIM).
        """
        numbers = self.bottom(dense)
        vectors = torch.cat([numbers, rows], 1).view(len(rows), -1, DIM)  # (batch, 27, DIM)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        dots = products.index_select(1, self.pairs)  # each pair once, (batch, 351)
        logits: torch.Tensor = self.top(torch.cat([numbers, dots], 1)).squeeze(1)
        return logits


class Ranker(ml.Task):
    """Clicks from 13 numbers and 26 ids."""

    features = [
        ml.Feature(f"feature_{i}", dim=DIM, optimizer=ml.Adagrad(0.05)) for i in range(NUM_FEATURES)
    ]
    dense = [f"dense_{i}" for i in range(NUM_DENSE)]
    label = "label"

    def source(self, mode: ml.Mode) -> ml.data.Pipeline:
        if self.settings.data:
            source = ml.data.parquet(path_of(self, mode))
        else:  # made up; 20,000 others to evaluate
            seed, num_samples = (0, 100_000) if mode is ml.Mode.TRAIN else (1, 20_000)
            source = ml.data.synthetic(num_samples, vocabulary=1_000, seed=seed)
        if mode is ml.Mode.TRAIN:
            source = source.shuffle(100_000)
        return source.batch(self.settings.batch_size)

    def build(self) -> nn.Module:
        return Dlrm()

    def predict(self, model: nn.Module, inputs: ml.Inputs, batch: ml.data.Batch) -> torch.Tensor:
        return self.logits(model, inputs).sigmoid()

    def loss(
        self, model: nn.Module, inputs: ml.Inputs, batch: ml.data.Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.logits(model, inputs)
        return binary_cross_entropy_with_logits(logits, batch.label), logits.sigmoid()

    def logits(self, model: nn.Module, inputs: ml.Inputs) -> torch.Tensor:
        """Of each sample."""
        logits: torch.Tensor = model(inputs.dense, inputs.pooled.joined)
        return logits


if __name__ == "__main__":
    run_task(Ranker, sys.argv[1:])
