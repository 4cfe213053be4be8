"""A run that records summaries: a program for a test that kills it, `recorded.py FOLDER`."""

import sys

import torch

from monolith.native_training.summary.summary_ops import feature_insight_data, nas_data
from monolith.observe import TensorBoardSink
from monolith.train import Hook, Trainer, TrainSettings
from tests.train.tasks import Clicks, clicks

NAS, INSIGHT = "gating/monolith_nas_weight", "fi_train/monolith_feature_insight"
LOG_EVERY = 3


class Recorded(Clicks):
    """Records the weights of the model, and what its two features contribute.

    Attributes:
        weights: Weights of the model at each step.
    """

    def __init__(self, num_batches=8):
        super().__init__(clicks(num_batches))
        self.weights = []

    def loss(self, model, inputs, batch):
        nas_data(model.weight[0, :2], ["user", "item"], [4, 4])
        rows = inputs.pooled.joined
        weight = model.weight[:, :8].T
        feature_insight_data(rows, ["user", "item"], [4, 4], weight, label=batch.label)
        self.weights.append(model.weight[0, :2].tolist())
        return super().loss(model, inputs, batch)


class Tell(Hook):
    """Prints the number of each step, and waits after `last` to be killed."""

    def __init__(self, last):
        self._last = last

    def after_run(self, ctx, results):
        print(ctx.run.global_step, flush=True)
        if ctx.run.global_step == self._last:
            sys.stdin.read()


if __name__ == "__main__":
    torch.set_num_threads(1)
    sink = TensorBoardSink(sys.argv[1])
    with Trainer(Recorded(), TrainSettings(log_every=LOG_EVERY), metrics=sink) as trainer:
        trainer.fit(hooks=[Tell(5)])
