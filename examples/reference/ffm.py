"""Train a field-aware factorization machine that was written for the reference system.

    monolith train examples/reference/ffm.py --set train.steps=200

Its imports are changed, and operations of TensorFlow are those of PyTorch. Data are made up.
"""

import itertools

import numpy as np
import torch

from monolith.data import Columns, RecordParser
from monolith.model_registry import RegisterSingleTaskModel, SingleTaskModelParams
from monolith.native_training import entry, feature
from monolith.native_training.input import generate_ffm_example, slot_to_key
from monolith.native_training.native_task import EstimatorSpec, ModeKeys, NativeTask

NUM_SLOTS = 6
FFM_SLOTS = [(0, 3, 16), (0, 4, 16), (1, 5, 16), (2, 3, 16), (2, 5, 16)]


def parse_examples(examples):
    names = [slot_to_key(i) for i in range(NUM_SLOTS)]
    batch = RecordParser("tf_example", Columns(names, labels=["label"]))(examples)
    return {"label": batch.label, **batch.features}


class FFMTask(NativeTask):
    """Predict a click from dot products of slices, and biases of the first three slots."""

    def create_input_fn(self, mode):
        def input_fn():
            np.random.seed(0)
            examples = [generate_ffm_example([5] * NUM_SLOTS, label_high=2) for _ in range(256)]
            size = self.p.train.per_replica_batch_size
            batches = [parse_examples(examples[i : i + size]) for i in range(0, 256, size)]
            return itertools.cycle(batches) if mode == ModeKeys.TRAIN else batches

        return input_fn

    def create_model_fn(self):
        def model_fn(features, mode, config):
            columns = []
            for i in range(NUM_SLOTS):
                slot = self.ctx.create_feature_slot(
                    feature.FeatureSlotConfig(
                        name=slot_to_key(i),
                        has_bias=True,
                        bias_optimizer=entry.FtrlOptimizer(0.01, initial_accumulator_value=1e-6),
                        default_vec_optimizer=entry.AdagradOptimizer(0.1),
                        slot_id=i,
                    )
                )
                columns.append(feature.FeatureColumn(slot, slot_to_key(i)))
            dots = []
            for user, item, dim in FFM_SLOTS:
                user_slice = columns[user].feature_slot.add_feature_slice(dim)
                item_slice = columns[item].feature_slot.add_feature_slice(dim)
                users = columns[user].embedding_lookup(user_slice)
                items = columns[item].embedding_lookup(item_slice)
                dots.append(torch.sum(users * items, dim=1, keepdim=True))
            biases = [column.get_bias() for column in columns[: NUM_SLOTS // 2]]
            logits = torch.stack(dots + biases).sum(0).reshape(-1)
            pred = torch.sigmoid(logits)
            if mode == ModeKeys.PREDICT:
                return EstimatorSpec(mode, predictions=pred)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, features["label"])
            if mode == ModeKeys.EVAL:
                return EstimatorSpec(mode, predictions=pred, loss=loss)
            rows = [column.get_all_embeddings_concat() for column in columns]
            gradients = torch.autograd.grad(loss, rows)
            train_op = self.ctx.apply_embedding_gradients(zip(gradients, rows, strict=True))
            return EstimatorSpec(mode, loss=loss, train_op=train_op)

        return model_fn


@RegisterSingleTaskModel
class FFMParams(SingleTaskModelParams):
    """Train in batches of 64."""

    def task(self):
        params = FFMTask.params()
        params.train.per_replica_batch_size = 64
        return params
