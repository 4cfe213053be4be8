"""Ragged data, pure functions on tensors, and the door to the compiled core."""

from monolith.ops.layout import (
    flatten_layout,
    fused_embedding_to_layout,
    fused_embedding_to_layout_grad,
    nest_layout,
)
from monolith.ops.layout_config import (
    FeatureConfig,
    FeatureConfigs,
    OutConfig,
    OutType,
    ParserContext,
    PoolingType,
    ShardingSparseFidsOpParams,
    SliceConfig,
)
from monolith.ops.mapping import (
    fused_gather_embeddings_by_input,
    fused_gather_embeddings_by_input_gradient,
    gather_embeddings_by_input,
    gather_embeddings_by_input_gradient_back_prop,
    map_id_to_embedding,
    map_id_to_embedding_gradient_back_prop,
)
from monolith.ops.ragged import Ragged
from monolith.ops.segment import (
    first_n,
    fused_reduce_and_split,
    fused_reduce_sum_and_split,
    fused_sorted_segment_sum,
    reduce_mean,
    reduce_sqrtn,
    reduce_sum,
)
from monolith.ops.sharding import (
    SHARED,
    ShardedFids,
    sharding_sparse_fids,
)
from monolith.ops.split import (
    FusedReorder,
    fused_reorder_by_indices,
    gen_seq_mask,
    normalize_merged_split,
    ragged_split_by_indices,
    reorder_by_indices,
    split_by_indices,
)
from monolith.ops.unique import (
    fill_with_offset_map,
    unique_key_with_value_and_offset,
)

__all__ = [
    "FeatureConfig",
    "FeatureConfigs",
    "FusedReorder",
    "OutConfig",
    "OutType",
    "ParserContext",
    "PoolingType",
    "Ragged",
    "SHARED",
    "ShardedFids",
    "ShardingSparseFidsOpParams",
    "SliceConfig",
    "fill_with_offset_map",
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
    "sharding_sparse_fids",
    "split_by_indices",
    "unique_key_with_value_and_offset",
]
