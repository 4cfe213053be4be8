"""A small set of slots that the tests of factories share."""

import torch

from monolith.native_training.slots import FeatureColumn, FeatureSlotConfig
from monolith.ops import Ragged
from monolith.table import Zeros
from monolith.table.optimizers import SGD

IDS = Ragged.from_lists([[1], [], [2, 3, 4]])
ROWS = torch.tensor([[1.0, 2.0], [2.0, 3.0], [3.0, 5.0], [10.0, 11.0]])

PLAIN = FeatureSlotConfig(
    "s", default_vec_initializer=Zeros(), default_vec_optimizer=SGD(1.0), slot_id=1
)


def two_slices(factory, combiner=None, config=PLAIN):
    """A column over a slot with two slices of one weight, and both of them looked up."""
    slot = factory.create_feature_slot(config)
    slices = [slot.add_feature_slice(1), slot.add_feature_slice(1)]
    column = FeatureColumn(slot, "a", combiner)
    return column, [column.embedding_lookup(each) for each in slices]
