"""Ragged data, pure functions on tensors, and the door to the compiled core."""

from monolith.ops.ragged import Ragged

__all__ = ["Ragged"]
