"""Train a small field-aware factorization machine: an example of a `NativeTask`."""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from monolith.data import Columns, RecordParser
from monolith.native_training.slots.slots import FeatureColumn, FeatureSlotConfig
from monolith.native_training.tasks.ffm_data import generate_ffm_example, slot_to_key
from monolith.native_training.tasks.native_task import ModelSpec, NativeTask, ServingReceiver
from monolith.native_training.util.instantiable_params import InstantiableParams
from monolith.table.optimizers import FTRL, SGD
from monolith.train.task import Mode

NUM_SLOTS = 6
VOCAB_SIZES = (5, 5, 5, 5, 5, 5)
NUM_EXAMPLES = 64
FFM_SLOT = ((0, 3, 16), (0, 4, 16), (1, 5, 16), (2, 3, 16), (2, 5, 16))
"""Slot of a user, slot of an item, and the width of their slices, of each dot product."""


def parse_example(example: Sequence[bytes]) -> dict[str, Any]:
    """Columns of serialized `tf.train.Example`: a label, and ids of each slot.

    Example:
        >>> parse_example([generate_ffm_example(VOCAB_SIZES)])["label"]
        tensor([0.])
    """
    slots = [slot_to_key(i) for i in range(NUM_SLOTS)]
    batch = RecordParser("tf_example", Columns(slots, labels=["label"]))(example)
    return {"label": batch.label, **batch.features}


class FFMTask(NativeTask):
    """Predicts a click from dot products of slices of user and item, and biases of users.

    The data are 64 examples drawn by NumPy's global generator, which is seeded with 0; training
    goes over them again and again. Records of deep insight have the numbers of the samples as
    users.

    Attributes:
        clock: seconds since 1970, of the records.
    """

    clock: Callable[[], float] = staticmethod(time.time)

    @classmethod
    def params(cls) -> InstantiableParams:
        """Return the parameters of a `NativeTask`, and `label_high`."""
        params = super().params()
        params.define("label_high", 1, "Labels are below it: 1 for zeros only, 2 for binary ones.")
        return params

    def create_input_fn(self, mode: Mode) -> Callable[[], Iterable[Mapping[str, Any]]]:
        """Batches of `train.per_replica_batch_size`, parsed once; without end in training."""

        def input_fn() -> Iterable[Mapping[str, Any]]:
            np.random.seed(0)
            high = self.p.label_high
            examples = [
                generate_ffm_example(VOCAB_SIZES, label_high=high) for _ in range(NUM_EXAMPLES)
            ]
            size = self.p.train.per_replica_batch_size or NUM_EXAMPLES
            # Parsed and in memory: there is nothing that could be fetched ahead.
            parsed = [
                parse_example(examples[at : at + size]) for at in range(0, NUM_EXAMPLES, size)
            ]
            return itertools.cycle(parsed) if mode == Mode.TRAIN else parsed

        return input_fn

    def create_model_fn(self) -> Callable[[dict[str, Any], Mode, Any], ModelSpec]:
        """The machine."""
        return self._model

    def create_serving_input_receiver_fn(self) -> Callable[[], ServingReceiver]:
        """One input, `instances`: serialized examples."""
        return lambda: ServingReceiver(
            ("instances",), lambda request: parse_example(request["instances"])
        )

    def _model(self, features: dict[str, Any], mode: Mode, config: Any) -> ModelSpec:
        slots = [
            self.ctx.create_feature_slot(
                FeatureSlotConfig(
                    slot_to_key(i),
                    has_bias=True,
                    bias_optimizer=FTRL(initial_accumulator_value=1e-6, beta=1.0),
                    default_vec_optimizer=SGD(),
                    slot_id=i,
                )
            )
            for i in range(NUM_SLOTS)
        ]
        columns = [FeatureColumn(slot, slot.name) for slot in slots]
        out = torch.stack([column.get_bias() for column in columns[: NUM_SLOTS // 2]]).sum(0)
        out = out.squeeze(1)
        for user, item, dim in FFM_SLOT:
            users, items = (
                columns[i].embedding_lookup(slots[i].add_feature_slice(dim)) for i in (user, item)
            )
            out = out + (users * items).sum(1)
        prediction = out.sigmoid()
        if mode == Mode.PREDICT:
            return ModelSpec(mode, prediction)
        # The same as the cross-entropy of the prediction, without its logarithm of 0.
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            out, features["label"], reduction="sum"
        )
        if mode == Mode.EVAL:
            return ModelSpec(mode, prediction, loss)
        rows = [column.get_all_embeddings_concat() for column in columns]
        gradients = torch.autograd.grad(loss, rows)
        apply = self.ctx.apply_embedding_gradients(zip(gradients, rows, strict=True))
        return ModelSpec(mode, prediction, loss, [apply, *self._records(features, prediction)])

    def _records(
        self, features: dict[str, Any], prediction: torch.Tensor
    ) -> list[Callable[[], Any]]:
        size = len(prediction)
        users = {
            "uid": torch.arange(size),
            "req_time": torch.full((size,), int(self.clock())),
            "sample_rate": torch.ones(size),
        }
        return self.deep_insight_actions({**features, **users}, features["label"], prediction)


class FFMParams:
    """The parameters of `FFMTask` in batches of 64."""

    def task(self) -> InstantiableParams:
        """These parameters."""
        params = FFMTask.params()
        params.train.per_replica_batch_size = 64
        return params
