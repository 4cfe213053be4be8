"""Train a model without embeddings that was written for the reference system.

    monolith train examples/reference/no_slots.py --set train.steps=200

Its imports are changed, operations of TensorFlow are those of PyTorch, and the layer is made in the
constructor. Data are made up.
"""

import torch

from monolith.core.hyperparams import Params
from monolith.native_training.native_task import EstimatorSpec, ModeKeys, NativeTask


class Prices(NativeTask):
    """Predict a price from three numbers."""

    @classmethod
    def params(cls):
        params = super().params()
        params.train.per_replica_batch_size = 32
        layer = Params()
        layer.define("units", 16, "Width of the hidden layer.")
        params.define("layer", layer, "The dense model.")
        return params

    def __init__(self, params):
        super().__init__(params)
        units = params.layer.units
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(3, units), torch.nn.ReLU(), torch.nn.Linear(units, 1)
        )

    def create_input_fn(self, mode):
        def input_fn():
            random = torch.Generator().manual_seed(0)
            while True:
                x = torch.rand(self.p.train.per_replica_batch_size, 3, generator=random)
                yield {"x": x, "label": x @ torch.tensor([1.0, -2.0, 3.0])}
                if mode != ModeKeys.TRAIN:
                    return

        return input_fn

    def create_model_fn(self):
        def model_fn(features, mode, config):
            price = self.layers(features["x"]).squeeze(1)
            if mode == ModeKeys.PREDICT:
                return EstimatorSpec(mode, predictions=price)
            loss = torch.nn.functional.mse_loss(price, features["label"])
            return EstimatorSpec(mode, predictions=price, loss=loss)

        return model_fn
