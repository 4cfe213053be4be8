"""Give `NestedTensors`: nested tensors as a flat list, and back."""

from monolith.native_training.ops.nested_tensors import (
    NestedTensors,
    _convert_ragged_to_tensors,
    _convert_tensors_to_ragged,
    _flatten_to_ragged,
    _iterate,
    _ragged_to_flatten,
)

__all__ = [
    "NestedTensors",
    "_convert_ragged_to_tensors",
    "_convert_tensors_to_ragged",
    "_flatten_to_ragged",
    "_iterate",
    "_ragged_to_flatten",
]
