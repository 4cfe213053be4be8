"""Give the ops of the reference system that other code calls by name; all take tensors.

The import loads the compiled core and has no fallback; see `monolith.ops.compiled`.
"""

from monolith.ops.compiled import load_native

load_native()  # before the modules that need the core, for a clear error

from monolith.native_training.ops.segment import monolith_fused_value_rowids  # noqa: E402
from monolith.native_training.optimizers.dense_updates import (  # noqa: E402
    resource_apply_adamom,
    resource_apply_rmsprop,
)
from monolith.native_training.static_reshape_op import (  # noqa: E402
    static_reshape as monolith_static_reshape_n,
)
from monolith.native_training.tables.touched_key_set import (  # noqa: E402
    monolith_touched_key_set,
    monolith_touched_key_set_insert,
    monolith_touched_key_set_steal,
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
