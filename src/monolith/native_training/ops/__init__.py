"""Hold operations on tensors: ids by shard, rows by id, layouts, packing."""

from monolith.native_training.ops.aligned import aligned_flat_concat, aligned_flat_split
from monolith.native_training.ops.layout import (
    flatten_layout,
    fused_embedding_to_layout,
    fused_embedding_to_layout_grad,
    nest_layout,
)
from monolith.native_training.ops.layout_config import (
    FeatureConfig,
    FeatureConfigs,
    OutConfig,
    OutType,
    ParserContext,
    PoolingType,
    ShardingSparseFidsOpParams,
    SliceConfig,
)
from monolith.native_training.ops.mapping import (
    fused_gather_embeddings_by_input,
    fused_gather_embeddings_by_input_gradient,
    gather_embeddings_by_input,
    gather_embeddings_by_input_gradient_back_prop,
    map_id_to_embedding,
    map_id_to_embedding_gradient_back_prop,
)
from monolith.native_training.ops.nested_ragged import NestedRagged, maybe_squeeze_3d_tensor
from monolith.native_training.ops.nested_tensors import NestedTensors
from monolith.native_training.ops.offset_fill import (
    fill_with_offset_map,
    fill_with_offset_map_gradient,
)
from monolith.native_training.ops.packing import pack_tensors, unpack_tensors
from monolith.native_training.ops.reshape import StaticReshapeNBuilder, static_reshape
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
from monolith.native_training.ops.sharding import SHARED, ShardedFids, sharding_sparse_fids
from monolith.native_training.ops.split import (
    FusedReorder,
    fused_reorder_by_indices,
    gen_seq_mask,
    normalize_merged_split,
    ragged_split_by_indices,
    reorder_by_indices,
    split_by_indices,
)
from monolith.native_training.ops.typed_packing import (
    get_keyed_shape,
    get_typed_keyed_shape,
    merge_dicts,
    pack_typed_keyed_tensors,
    split_tensors_with_type,
    unpack_packed_tensors,
)
from monolith.native_training.ops.unique import unique_key_with_value_and_offset

__all__ = [
    "FeatureConfig",
    "FeatureConfigs",
    "FusedReorder",
    "NestedRagged",
    "NestedTensors",
    "OutConfig",
    "OutType",
    "ParserContext",
    "PoolingType",
    "SHARED",
    "ShardedFids",
    "ShardingSparseFidsOpParams",
    "SliceConfig",
    "StaticReshapeNBuilder",
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
    "get_keyed_shape",
    "get_typed_keyed_shape",
    "map_id_to_embedding",
    "map_id_to_embedding_gradient_back_prop",
    "maybe_squeeze_3d_tensor",
    "merge_dicts",
    "nest_layout",
    "normalize_merged_split",
    "pack_tensors",
    "pack_typed_keyed_tensors",
    "ragged_split_by_indices",
    "reduce_mean",
    "reduce_sqrtn",
    "reduce_sum",
    "reorder_by_indices",
    "sharding_sparse_fids",
    "split_by_indices",
    "split_tensors_with_type",
    "static_reshape",
    "unique_key_with_value_and_offset",
    "unpack_packed_tensors",
    "unpack_tensors",
]
