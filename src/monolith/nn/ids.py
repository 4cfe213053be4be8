"""Ids as the modules take them."""

from monolith.embedding.ids import as_keys

__all__ = ["as_keys"]
