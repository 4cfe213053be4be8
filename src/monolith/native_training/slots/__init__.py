"""Feature slots, slices and columns of the reference system."""

from monolith.native_training.slots.slot_factories import (
    CollectingFactory,
    EmbeddingsFactory,
    FeaturesFactory,
)
from monolith.native_training.slots.slot_tables import features_of
from monolith.native_training.slots.slots import (
    FeatureColumn,
    FeatureSlice,
    FeatureSlot,
    FeatureSlotConfig,
)

__all__ = [
    "CollectingFactory",
    "EmbeddingsFactory",
    "FeatureColumn",
    "FeatureSlice",
    "FeatureSlot",
    "FeatureSlotConfig",
    "FeaturesFactory",
    "features_of",
]
