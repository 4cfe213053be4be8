"""From features to tables and layouts: what a partitioned table is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monolith.native_training.ops.layout_config import (
    FeatureConfig,
    FeatureConfigs,
    OutConfig,
    ShardingSparseFidsOpParams,
)
from monolith.native_training.slots.combiners import Combiner, pooling_of
from monolith.native_training.tables.entry_config import HashTableConfigInstance
from monolith.native_training.tables.table_merge import merge_feature_config

_OWNER = "PartitionedHashTable"


@dataclass(frozen=True)
class FeatureSpec:
    """One feature.

    Args:
        config: what its rows are.
        slice_dims: widths of the slices of a row, in order.
        combiner: how the rows of an example are combined.
    """

    config: HashTableConfigInstance
    slice_dims: Sequence[int]
    combiner: Combiner


def gen_feature_configs(
    num_ps: int,
    features: Mapping[str, FeatureSpec],
    out_configs: Mapping[str, OutConfig],
    *,
    ids_carry_slot: bool = False,
    use_native_multi_hash_table: bool = True,
    unique: bool = True,
    transfer_float16: bool = False,
    enable_gpu_emb: bool = False,
    use_gpu: bool = False,
) -> ShardingSparseFidsOpParams:
    """Feature configs, and how their ids are sharded.

    Args:
        num_ps: number of servers; 0 means one local shard.
        features: by name.
        out_configs: the outputs of the layout, by name.
        ids_carry_slot: ids are fids; then features with equal configs share a table.
        use_native_multi_hash_table: writes by id take the raw path; not with float16 transfer.
        unique: equal ids of a feature travel once.
        transfer_float16: rows and gradients travel as float16.
        enable_gpu_emb: refused: there are no tables on accelerators yet.
        use_gpu: refused: layouts are made on the CPU.

    Raises:
        NotImplementedError: a capability is missing.
        ValueError: slices do not fill a row of their table; or an output cannot be made of its
            slices, of FIRSTN and another pooling for example.
    """
    merged = merge_feature_config(
        {name: feature.config for name, feature in features.items()}, ids_carry_slot=ids_carry_slot
    )
    configs = {}
    for name, feature in features.items():
        dim = sum(part.dim_size for part in feature.config.table_config.entry_config.segments)
        if sum(feature.slice_dims) != dim:
            raise ValueError(
                f"[{_OWNER}.gen_feature_configs] expected slices of {dim} columns, the row of the "
                f"table, got {list(feature.slice_dims)} (feature {name!r})"
            )
        configs[name] = FeatureConfig(
            merged.feature_to_sub_table_name[name],
            feature.slice_dims,
            pooling_of(feature.combiner),
            feature.combiner.max_seq_length,
        )
    params = ShardingSparseFidsOpParams(
        num_ps,
        FeatureConfigs(configs, out_configs),
        use_native_multi_hash_table=use_native_multi_hash_table and not transfer_float16,
        unique=unique,
        transfer_float16=transfer_float16,
        sub_table_name_to_config=merged.sub_table_name_to_config,
        enable_gpu_emb=enable_gpu_emb,
        use_gpu=use_gpu,
    )
    check_capabilities(params)
    return params


def check_capabilities(params: ShardingSparseFidsOpParams) -> None:
    """Refuse by name what is not there."""
    for option, capability in (
        ("enable_gpu_emb", "tables on an accelerator"),
        ("use_gpu", "layouts on an accelerator"),
    ):
        if getattr(params, option):
            raise NotImplementedError(
                f"[{_OWNER}] expected {option}=False, got True; {capability} are not built"
            )
