"""Give feature slots, slices and columns, and the factories of slots."""

from monolith.native_training.slots.slot_factories import CollectingFactory as DummyFeatureFactory
from monolith.native_training.slots.slot_factories import (
    EmbeddingsFactory as FeatureFactoryFromEmbeddings,
)
from monolith.native_training.slots.slot_factories import FeatureFactory
from monolith.native_training.slots.slot_tables import SlotTable as TableConfig
from monolith.native_training.slots.slots import (
    DEFAULT_EXPIRE_TIME,
    FeatureColumn,
    FeatureSlice,
    FeatureSlot,
    FeatureSlotConfig,
)

__all__ = [
    "DEFAULT_EXPIRE_TIME",
    "DummyFeatureFactory",
    "FeatureColumn",
    "FeatureColumnV1",
    "FeatureFactory",
    "FeatureFactoryFromEmbeddings",
    "FeatureSlice",
    "FeatureSlot",
    "FeatureSlotConfig",
    "TableConfig",
]

FeatureColumnV1 = FeatureColumn
