"""Hold feature slots, slices and columns, and the factories that make them."""

from monolith.native_training.slots.layout_factories import (
    CollectingLayoutFactory,
    EmbeddingLayoutFactory,
)
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
    "CollectingLayoutFactory",
    "EmbeddingLayoutFactory",
    "EmbeddingsFactory",
    "FeatureColumn",
    "FeatureSlice",
    "FeatureSlot",
    "FeatureSlotConfig",
    "FeaturesFactory",
    "features_of",
]
