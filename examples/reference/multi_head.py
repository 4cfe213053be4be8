"""Train a model of two heads that was written for the reference system.

    monolith train examples/reference/multi_head.py --set train.steps=200
    monolith train examples/reference/multi_head.py --set params.enable_fused_layout=true

Its imports are changed, operations of TensorFlow are those of PyTorch, and layers are made in the
constructor. Data are made up.
"""

import itertools

import torch

from monolith.base_model import EstimatorSpec, MonolithModel, get_sigmoid_loss_and_pred
from monolith.native_training.entry import AdagradOptimizer, RandomUniformInitializer
from monolith.native_training.native_task import ModeKeys
from monolith.ops import Ragged

NUM_USERS, NUM_ITEMS = 200, 100


class ClicksAndLikes(MonolithModel):
    """Predict whether a user clicks an item, and whether the user likes the item."""

    @classmethod
    def params(cls):
        params = super().params()
        params.train.per_replica_batch_size = 256
        params.metrics.deep_insight_target = "ctr,like"
        params.metrics.disable_native_metrics = False
        params.clip_norm = 100.0
        params.dense_weight_decay = 1e-4
        return params

    def __init__(self, params):
        super().__init__(params)
        self.bottom = torch.nn.Sequential(torch.nn.Linear(25, 32), torch.nn.ReLU())
        self.towers = torch.nn.ModuleList(torch.nn.Linear(32, 1) for _ in range(2))

    def input_fn(self, mode):
        random = torch.Generator().manual_seed(0)
        batches = [self.make_batch(random) for _ in range(8)]
        return itertools.cycle(batches) if mode == ModeKeys.TRAIN else batches[:2]

    def make_batch(self, random):
        n = self.batch_size
        users = torch.randint(NUM_USERS, (n,), generator=random)
        items = torch.randint(NUM_ITEMS, (n,), generator=random)
        seen = torch.randint(NUM_ITEMS, (n, 3), generator=random)
        clicks = ((users + items) % 3 == 0).float()
        likes = ((users + seen[:, 0]) % 2 == 0).float()
        return {
            "f_user": Ragged.from_lists(users[:, None].tolist()),
            "f_item": Ragged.from_lists(items[:, None].tolist()),
            "f_seen": Ragged.from_lists(seen.tolist()),
            "hour": torch.rand(n, 1, generator=random),
            "click": clicks,
            "like": likes,
        }

    def model_fn(self, features, mode):
        for name in ("f_user", "f_item"):
            self.create_embedding_feature_column(name, occurrence_threshold=0)
        self.create_embedding_feature_column("f_seen", shared_name="f_item", combiner="reduce_mean")
        options = {
            "initializer": RandomUniformInitializer(-0.1, 0.1),
            "optimizer": AdagradOptimizer(0.1),
        }
        vectors = self.lookup_embedding_slice(
            ["f_user", "f_item", "f_seen"], "vec", slice_dim=8, out_type="concat", **options
        )
        bias = self.lookup_embedding_slice(
            {"f_user": 1, "f_item": 1}, "bias", out_type="add_n", **options
        )
        hidden = self.bottom(torch.cat([vectors, features["hour"]], dim=1))
        losses, preds = [], {}
        for head, tower, label in zip(("ctr", "like"), self.towers, ("click", "like"), strict=True):
            loss, preds[head] = get_sigmoid_loss_and_pred(
                name=head,
                logits=tower(hidden) + bias,
                label=features.get(label),
                batch_size=self.batch_size,
                sample_bias=self.train.sample_bias,
                mode=mode,
            )
            losses.append(loss)
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(label=None, pred=preds)
        self.add_loss(losses[1:])
        return EstimatorSpec(
            label={"ctr": features["click"], "like": features["like"]},
            pred=preds,
            loss=losses[0],
            optimizer=lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
        )
