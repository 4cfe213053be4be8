"""Give `fused_value_rowids`, the row of each value of a ragged tensor."""

from monolith.native_training.ops.segment import fused_value_rowids as fused_value_rowids
