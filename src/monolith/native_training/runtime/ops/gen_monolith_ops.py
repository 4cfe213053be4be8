"""Give the ops of `gen_monolith_ops_base`, which take tensors."""

from monolith.native_training.runtime.ops.gen_monolith_ops_base import (
    monolith_fused_value_rowids,
    monolith_static_reshape_n,
    monolith_touched_key_set,
    monolith_touched_key_set_insert,
    monolith_touched_key_set_steal,
    resource_apply_adamom,
    resource_apply_rmsprop,
)

__all__ = [
    "monolith_fused_value_rowids",
    "monolith_static_reshape_n",
    "monolith_touched_key_set",
    "monolith_touched_key_set_insert",
    "monolith_touched_key_set_steal",
    "resource_apply_adamom",
    "resource_apply_rmsprop",
]
