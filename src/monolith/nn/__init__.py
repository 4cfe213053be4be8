"""Modules with embedding tables: drop-ins for those of `torch.nn` (docs/drop_in.md)."""

from monolith.nn.embedding import Embedding
from monolith.nn.embedding_bag import EmbeddingBag

__all__ = ["Embedding", "EmbeddingBag"]
