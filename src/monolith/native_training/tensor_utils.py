"""Give the packing of dictionaries of tensors."""

from monolith.native_training.ops.nested_ragged import maybe_squeeze_3d_tensor
from monolith.native_training.ops.packing import pack_tensors, unpack_tensors
from monolith.native_training.ops.typed_packing import (
    get_keyed_shape,
    get_typed_keyed_shape,
    merge_dicts,
    pack_typed_keyed_tensors,
    split_tensors_with_type,
    unpack_packed_tensors,
)

__all__ = [
    "get_keyed_shape",
    "get_typed_keyed_shape",
    "maybe_squeeze_3d_tensor",
    "merge_dicts",
    "pack_tensors",
    "pack_typed_keyed_tensors",
    "split_tensors_with_type",
    "unpack_packed_tensors",
    "unpack_tensors",
]
