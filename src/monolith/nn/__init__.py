"""Modules with embedding tables: drop-ins for those of `torch.nn` (docs/drop_in.md); features."""

from monolith.nn.embedding import Embedding
from monolith.nn.embedding_bag import EmbeddingBag
from monolith.nn.feature import Feature
from monolith.nn.features import Embedded, Features

__all__ = [
    "Embedded",
    "Embedding",
    "EmbeddingBag",
    "Feature",
    "Features",
]
