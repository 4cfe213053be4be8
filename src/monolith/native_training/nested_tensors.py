"""Give `NestedTensors`: nested tensors as a flat list, and back."""

from monolith.native_training.ops.nested_tensors import NestedTensors, _iterate

__all__ = [
    "NestedTensors",
    "_iterate",
]
