"""Ids of many features, sorted by table and shard, and where the row of each will be.

    a: [10, 11] [10]   table t1           lists           rows of the ids
    b: [20, 21] []     table t1           t1:0  10 | 20   a -> (t1:0, 0) (t1:1, 0)  (t1:0, 0)
    2 shards, id mod 2                    t1:1  11 | 21   b -> (t1:0, 1) (t1:1, 1)

A list holds the ids of one table that belong to one shard: those of its first feature, then those
of the next. Features and tables are numbered in the order of their names.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from monolith.ops.cutting import cut_rows
from monolith.ops.host import host_int64
from monolith.ops.layout_config import FeatureConfigs
from monolith.ops.list_places import BY_SHARD
from monolith.ops.ragged import Ragged
from monolith.ops.shard_pass import BatchIds, shard_ids
from monolith.ops.tensor_checks import check_threads

__all__ = ["SHARED", "ShardedFids", "sharding_sparse_fids"]

SHARED = 1 << 31  # the bit of nfl_offset that says: one cell for the whole batch
_WHERE = "[sharding_sparse_fids]"
_VERSIONS = (1, 2, 3, 4, 5)


@dataclass(frozen=True, slots=True, eq=False)
class ShardedFids:
    """The ids of a batch by table and shard; made by `sharding_sparse_fids`.

    Lists are numbered table * ps_num + shard, in version 4 shard * num_tables + table.

    Attributes:
        version: what `fid_offset` counts, and how rows are handed in.
        ps_num: number of shards.
        table_names: sorted.
        batch_size: number of examples.
        fids: the ids of all lists, one list after another; int64.
        fid_sizes: ids of each list; int64 (num_lists,).
        row_splits: of every list where the ids of each feature begin and end, one list after
            another; int64.
        row_splits_sizes: entries of each list in `row_splits`; int64 (num_lists,).
        emb_size: floats in the rows of each list; int64 (num_lists,).
        fid_offset: of each id in the order feature, example, position: index1 << 32 | index2;
            int64, the bits of an unsigned number.
        feature_offset: where each cell (feature, example) begins in `fid_offset`, and their number;
            int32 (num_cells + 1,).
        nfl_offset: where each feature begins in `feature_offset`; `SHARED` is set where one cell
            stands for the whole batch; int64 (num_features + 1,).
        cuts: where the rows of each index1 are: number of the tensor, first float, floats; int64
            (num_index1, 3).
    """

    version: int
    ps_num: int
    table_names: tuple[str, ...]
    batch_size: int
    fids: torch.Tensor
    fid_sizes: torch.Tensor
    row_splits: torch.Tensor
    row_splits_sizes: torch.Tensor
    emb_size: torch.Tensor
    fid_offset: torch.Tensor
    feature_offset: torch.Tensor
    nfl_offset: torch.Tensor
    cuts: torch.Tensor

    @property
    def keys(self) -> list[str]:
        """Names of the lists: "table:shard"."""
        pairs = [(table, shard) for table in self.table_names for shard in range(self.ps_num)]
        if self.version == BY_SHARD:
            pairs = [(table, s) for s in range(self.ps_num) for table in self.table_names]
        return [f"{table}:{shard}" for table, shard in pairs]

    @property
    def fid_list(self) -> list[torch.Tensor]:
        """The ids of each list; views."""
        return _cut(self.fids, self.fid_sizes)

    @property
    def fid_list_row_splits(self) -> list[torch.Tensor]:
        """Of each list, where the ids of each feature of the table begin and end; views."""
        return _cut(self.row_splits, self.row_splits_sizes)

    @property
    def shard_fids(self) -> list[torch.Tensor]:
        """Version 4: the ids of each shard, table by table; views."""
        return _cut(self.fids, self.fid_list_shard_row_lenth)

    @property
    def fid_list_table_row_length(self) -> torch.Tensor:
        """Version 4: ids of each (shard, table)."""
        return self.fid_sizes

    @property
    def fid_list_shard_row_lenth(self) -> torch.Tensor:
        """Version 4: ids of each shard."""
        return self.fid_sizes.view(self.ps_num, -1).sum(1)

    @property
    def fid_list_emb_row_lenth(self) -> torch.Tensor:
        """Version 4: floats of each (shard, table)."""
        return self.emb_size


def sharding_sparse_fids(
    features: Mapping[str, Ragged],
    configs: FeatureConfigs,
    *,
    batch_size: int,
    ps_num: int,
    shared: Iterable[str] = (),
    unique: bool = True,
    version: int = 5,
    num_threads: int | None = None,
) -> ShardedFids:
    """Group the ids of a batch for the shards of their tables; a shard is the floor remainder.

    A feature of the configs that is not in the batch counts as a shared one without ids.

    Args:
        features: ids by feature, int64; `batch_size` rows each, one row if shared.
        configs: tables and widths of the features.
        batch_size: number of examples.
        ps_num: number of shards; 0 counts as 1.
        shared: names of features with one row for the whole batch.
        unique: equal ids of a feature share a place in the list.
        version: 1: index1 is the list, index2 the row in it. 2: index1 is the list and the
            feature, index2 the row among the feature's. 3, 5: index1 is the list, index2 the
            float at which the row begins. 4: like 3, lists in the order (shard, table).
        num_threads: None: those of torch, one if there are few ids.

    Raises:
        TypeError: a feature is no `Ragged` of int64.
        ValueError: a feature or a shared name is unknown, has another number of rows, or an
            option is out of its range.

    Example:
        >>> from monolith.ops import FeatureConfig
        >>> configs = FeatureConfigs({name: FeatureConfig("t1", (3,)) for name in ("a", "b")})
        >>> sharded = sharding_sparse_fids(
        ...     {"a": Ragged.from_lists([[10, 11], [10]]), "b": Ragged.from_lists([[20, 21], []])},
        ...     configs,
        ...     batch_size=2,
        ...     ps_num=2,
        ... )
        >>> dict(zip(sharded.keys, (fids.tolist() for fids in sharded.fid_list)))
        {'t1:0': [10, 20], 't1:1': [11, 21]}
        >>> [(code >> 32, code & 0xFFFFFFFF) for code in sharded.fid_offset.tolist()]
        [(0, 0), (1, 0), (0, 0), (0, 3), (1, 3)]
    """
    if ps_num < 0:
        raise ValueError(f"{_WHERE} expected ps_num of at least 0, got {ps_num}")
    ps_num, shared = max(1, ps_num), frozenset(shared)
    columns = _columns(features, configs, shared, batch_size)
    names = configs.feature_names
    if version not in _VERSIONS or ps_num >= SHARED // max(1, len(names)):
        raise ValueError(
            f"{_WHERE} expected a version of {_VERSIONS} and few enough shards, got version "
            f"{version} and {ps_num} shards"
        )
    ids = BatchIds(
        [column.values for column in columns],
        [column.row_splits for column in columns],
        names,
        [name not in features or name in shared for name in names],
        batch_size,
        ps_num,
        unique,
        version,
        check_threads(_WHERE, num_threads),
    )
    tensors = shard_ids(ids, configs.table_order)
    return ShardedFids(version, ps_num, configs.table_names, batch_size, *tensors)


def _columns(
    features: Mapping[str, Ragged],
    configs: FeatureConfigs,
    shared: frozenset[str],
    batch_size: int,
) -> list[Ragged]:
    """The ids of the features in their order; refuses wrong names and types."""
    known = configs.feature_configs
    for kind, names in (("features", features), ("shared features", shared)):
        unknown = sorted([name for name in names if name not in known])
        if unknown:
            raise ValueError(
                f"{_WHERE} expected {kind} of the configs, got {unknown[0]!r}; leave it out"
            )
    if batch_size < 0:
        raise ValueError(f"{_WHERE} expected batch_size of at least 0, got {batch_size}")
    empty = Ragged._unchecked(host_int64([]), host_int64([0, 0]))
    columns = [features.get(name, empty) for name in configs.feature_names]
    for name, column in zip(configs.feature_names, columns, strict=True):
        if not isinstance(column, Ragged):
            raise TypeError(
                f"{_WHERE} expected feature {name!r} as a Ragged, got {type(column).__name__}"
            )
    return columns


def _cut(numbers: torch.Tensor, sizes: torch.Tensor) -> list[torch.Tensor]:
    return cut_rows(numbers, sizes, sizes.shape[0], "[ShardedFids] expected {} ids or splits")
