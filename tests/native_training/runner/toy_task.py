"""A small embedding task of the registry."""

import torch

from monolith.model_registry import RegisterSingleTaskModel, SingleTaskModelParams
from monolith.native_training.native_task import EstimatorSpec, NativeTask
from monolith.native_training.slots import FeatureColumn, FeatureSlotConfig
from monolith.ops import Ragged
from monolith.table import Zeros
from monolith.train import Mode


class Toy(NativeTask):
    """Predicts 1 for the ids 0 to 7, by a slot of dim 2 and a linear layer."""

    def __init__(self, params):
        super().__init__(params)
        self.layer = torch.nn.Linear(2, 1)
        self.sizes, self.num_preprocessed = [], 0

    @classmethod
    def params(cls):
        params = super().params()
        params.define("gradient_multiplier", 1.0, "factor of the gradients of rows")
        params.train.define("end_date", "20260101", "last day of the data")
        params.train.define("num_batches", 4, "batches of an epoch")
        params.train.per_replica_batch_size = 4
        return params

    def create_input_fn(self, mode):
        size = self.p.train.per_replica_batch_size
        self.sizes.append(size)
        ids = Ragged.from_lists([[number % 8] for number in range(size)])
        batch = {"id": ids, "label": torch.ones(size)}
        return lambda: [batch] * self.p.train.num_batches

    def create_model_fn(self):
        def model_fn(features, mode, config):
            slot = self.ctx.create_feature_slot(
                FeatureSlotConfig("id", default_vec_initializer=Zeros())
            )
            rows = FeatureColumn(slot, "id").embedding_lookup(slot.add_feature_slice(2))
            score = self.layer(rows).squeeze(1)
            if mode == Mode.PREDICT:
                return EstimatorSpec(mode, score)
            return EstimatorSpec(mode, score, ((score - features["label"]) ** 2).mean())

        return model_fn

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)


class Preprocessed(Toy):
    """Its features are another column until they are preprocessed."""

    def process_features_for_cpu_test(self, features):
        self.num_preprocessed += 1
        return features


@RegisterSingleTaskModel
class ToyParams(SingleTaskModelParams):
    def task(self):
        return Toy.params()
