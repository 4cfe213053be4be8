"""Ragged tensors, feature ids, and access to the compiled core."""

from monolith.ops import fids
from monolith.ops.ragged import Ragged
from monolith.ops.ragged_columns import RaggedColumns

__all__ = [
    "Ragged",
    "RaggedColumns",
    "fids",
]
