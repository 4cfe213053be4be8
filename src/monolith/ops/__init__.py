"""Ragged data, pure functions on tensors, and the door to the compiled core."""

from monolith.ops import fids
from monolith.ops.nested_ragged import NestedRagged, maybe_squeeze_3d_tensor
from monolith.ops.nested_tensors import NestedTensors
from monolith.ops.packing import pack_tensors, unpack_tensors
from monolith.ops.ragged import Ragged
from monolith.ops.reshape import StaticReshapeNBuilder, static_reshape
from monolith.ops.rowids import fused_value_rowids
from monolith.ops.typed_packing import (
    get_keyed_shape,
    get_typed_keyed_shape,
    merge_dicts,
    pack_typed_keyed_tensors,
    split_tensors_with_type,
    unpack_packed_tensors,
)

__all__ = [
    "NestedRagged",
    "NestedTensors",
    "Ragged",
    "StaticReshapeNBuilder",
    "fids",
    "fused_value_rowids",
    "get_keyed_shape",
    "get_typed_keyed_shape",
    "maybe_squeeze_3d_tensor",
    "merge_dicts",
    "pack_tensors",
    "pack_typed_keyed_tensors",
    "split_tensors_with_type",
    "static_reshape",
    "unpack_packed_tensors",
    "unpack_tensors",
]
