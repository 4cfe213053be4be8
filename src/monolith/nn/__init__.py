"""Modules with embedding tables: drop-ins for those of `torch.nn` (docs/drop_in.md); features."""

from monolith.nn.embedding import Embedding
from monolith.nn.embedding_bag import EmbeddingBag
from monolith.nn.feature import Feature
from monolith.nn.features import Embedded, Features
from monolith.nn.slot_factories import CollectingFactory, EmbeddingsFactory, FeaturesFactory
from monolith.nn.slot_tables import features_of
from monolith.nn.slots import FeatureColumn, FeatureSlice, FeatureSlot, FeatureSlotConfig

__all__ = [
    "CollectingFactory",
    "Embedded",
    "Embedding",
    "EmbeddingBag",
    "EmbeddingsFactory",
    "Feature",
    "FeatureColumn",
    "FeatureSlice",
    "FeatureSlot",
    "FeatureSlotConfig",
    "Features",
    "FeaturesFactory",
    "features_of",
]
