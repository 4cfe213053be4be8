"""Import path of the reference system; see `monolith.nn.slots` and `monolith.nn.slot_factories`."""

from monolith.nn.slot_factories import CollectingFactory as DummyFeatureFactory
from monolith.nn.slot_factories import EmbeddingsFactory as FeatureFactoryFromEmbeddings
from monolith.nn.slot_factories import FeatureFactory
from monolith.nn.slot_tables import SlotTable as TableConfig
from monolith.nn.slots import (
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
