"""Give the ops on ids and rows: split by shard, distinct keys, pooling, layouts."""

from monolith.native_training.ops.aligned import aligned_flat_concat, aligned_flat_split
from monolith.native_training.ops.layout import (
    flatten_layout,
    fused_embedding_to_layout,
    fused_embedding_to_layout_grad,
    nest_layout,
)
from monolith.native_training.ops.mapping import (
    fused_gather_embeddings_by_input,
    fused_gather_embeddings_by_input_gradient,
    gather_embeddings_by_input,
    gather_embeddings_by_input_gradient_back_prop,
    map_id_to_embedding,
    map_id_to_embedding_gradient_back_prop,
)
from monolith.native_training.ops.offset_fill import (
    fill_with_offset_map,
    fill_with_offset_map_gradient,
)
from monolith.native_training.ops.segment import (
    first_n,
    fused_reduce_and_split,
    fused_reduce_sum_and_split,
    fused_sorted_segment_sum,
    fused_value_rowids,
    reduce_mean,
    reduce_sqrtn,
    reduce_sum,
)
from monolith.native_training.ops.split import (
    FusedReorder,
    fused_reorder_by_indices,
    gen_seq_mask,
    normalize_merged_split,
    ragged_split_by_indices,
    reorder_by_indices,
    split_by_indices,
)
from monolith.native_training.ops.unique import unique_key_with_value_and_offset

__all__ = [
    "FusedReorder",
    "aligned_flat_concat",
    "aligned_flat_split",
    "fill_with_offset_map",
    "fill_with_offset_map_gradient",
    "first_n",
    "flatten_layout",
    "fused_embedding_to_layout",
    "fused_embedding_to_layout_grad",
    "fused_gather_embeddings_by_input",
    "fused_gather_embeddings_by_input_gradient",
    "fused_reduce_and_split",
    "fused_reduce_sum_and_split",
    "fused_reorder_by_indices",
    "fused_sorted_segment_sum",
    "fused_value_rowids",
    "gather_embeddings_by_input",
    "gather_embeddings_by_input_gradient_back_prop",
    "gen_seq_mask",
    "map_id_to_embedding",
    "map_id_to_embedding_gradient_back_prop",
    "nest_layout",
    "normalize_merged_split",
    "ragged_split_by_indices",
    "reduce_mean",
    "reduce_sqrtn",
    "reduce_sum",
    "reorder_by_indices",
    "split_by_indices",
    "unique_key_with_value_and_offset",
]
