"""A small task of the reference system's kind, whose parts tests replace."""

import torch

from monolith.native_training.slots import FeatureColumn, FeatureSlotConfig
from monolith.native_training.tasks.native_task import ModelSpec, NativeTask
from monolith.ops import Ragged
from monolith.table import Zeros
from monolith.table.optimizers import SGD
from monolith.train import Mode, Trainer, TrainSettings

SLOT = FeatureSlotConfig("s", default_vec_initializer=Zeros(), default_vec_optimizer=SGD(1.0))


def columns(label=1.0):
    ids = Ragged.from_lists([[1], [2, 2]])
    return {"a": ids, "label": torch.full((2,), label), "price": torch.ones(2)}


class Score(NativeTask):
    """The loss is the sum of the weights of the ids: its gradient is 1 for each of them."""

    def __init__(self, params):
        super().__init__(params)
        self.calls = []  # (mode, names of the columns)
        self.scale, self.heads, self.with_op, self.hooks_made = 1.0, None, False, ()
        self.batches = [columns(), columns()]

    def create_input_fn(self, mode):
        return lambda: self.batches

    def lookup(self):
        slot = self.ctx.create_feature_slot(SLOT)
        column = FeatureColumn(slot, "a")
        return column, column.embedding_lookup(slot.add_feature_slice(1)).squeeze(1)

    def create_model_fn(self):
        def model_fn(features, mode, config):
            self.calls.append((str(mode), sorted(features)))
            column, score = self.lookup()
            predictions = self.heads(score) if self.heads else score
            if mode == Mode.PREDICT:
                return ModelSpec(mode, predictions)
            loss, op = score.sum(), None
            if mode == Mode.TRAIN and self.with_op:
                rows = column.get_all_embeddings_concat()
                (gradient,) = torch.autograd.grad(loss, [rows])
                op = self.ctx.apply_embedding_gradients([(gradient, rows)], self.scale)
            return ModelSpec(mode, predictions, loss, op, self.hooks_made)

        return model_fn


def made(cls=Score, **attributes):
    task = cls.params().instantiate()
    for name, value in attributes.items():
        setattr(task, name, value)
    return task


def trained(task, steps=None):
    """The trainer after its run."""
    trainer = Trainer(task, TrainSettings(steps=steps))
    trainer.fit()
    return trainer


def weights(trainer):
    return trainer.features.tables["a"].lookup(torch.tensor([1, 2])).flatten().tolist()
