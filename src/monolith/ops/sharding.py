"""Ids of many features, sorted by table and shard, and where the row of each will be.

    a: [10, 11] [10]   table t1           lists           rows of the ids
    b: [20, 21] []     table t1           t1:0  10 | 20   a -> (t1:0, 0) (t1:1, 0)  (t1:0, 0)
    2 shards, id mod 2                    t1:1  11 | 21   b -> (t1:0, 1) (t1:1, 1)

A list holds the ids of one table that belong to one shard: those of its first feature, then those
of the next. Features and tables are numbered in the order of their names.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from monolith.ops.host import host_empty, host_int64
from monolith.ops.layout_config import FeatureConfigs
from monolith.ops.list_places import BY_SHARD, ListPlaces
from monolith.ops.native import load_native
from monolith.ops.ragged import Ragged
from monolith.ops.tensor_checks import check_tensor, check_threads, default_threads

__all__ = ["SHARED", "ShardedFids", "sharding_sparse_fids"]

SHARED = 1 << 31  # the bit of nfl_offset that says: one cell for the whole batch
_WHERE = "[sharding_sparse_fids]"
_VERSIONS = (1, 2, 3, 4, 5)
_MAX_IDS = 1 << 31
_MAX_PLACE = 1 << 32


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
        return list(torch.split(self.fids, self.fid_sizes.tolist()))

    @property
    def fid_list_row_splits(self) -> list[torch.Tensor]:
        """Of each list, where the ids of each feature of the table begin and end; views."""
        return list(torch.split(self.row_splits, self.row_splits_sizes.tolist()))

    @property
    def shard_fids(self) -> list[torch.Tensor]:
        """Version 4: the ids of each shard, table by table; views."""
        return list(torch.split(self.fids, self.fid_list_shard_row_lenth.tolist()))

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
    if version not in _VERSIONS or ps_num >= SHARED // max(1, len(configs.feature_names)):
        raise ValueError(
            f"{_WHERE} expected a version of {_VERSIONS} and few enough shards, got version "
            f"{version} and {ps_num} shards"
        )
    native = load_native()
    values = [column.values for column in columns]
    sizes = [ids.numel() for ids in values]
    threads = check_threads(_WHERE, num_threads) or default_threads(sum(sizes))
    addresses = [ids.data_ptr() for ids in values]
    codes = host_empty(sum(sizes), dtype=torch.int64)
    counts = np.empty((len(columns), ps_num), dtype=np.int64)
    native.count_rows(
        addresses, sizes, ps_num, unique, codes.data_ptr(), counts.ctypes.data, threads
    )
    lists = ListPlaces(configs.table_order, counts, version)
    if lists.largest >= _MAX_PLACE:
        raise ValueError(
            f"{_WHERE} expected fewer than {_MAX_PLACE} floats in the rows of a table and shard, "
            f"got {lists.largest}; use more shards"
        )
    fids = host_empty(int(counts.sum()), dtype=torch.int64)
    places = lists.places()
    native.place_rows(
        addresses, sizes, ps_num, places.ctypes.data, fids.data_ptr(), codes.data_ptr(), threads
    )
    names = configs.feature_names
    is_shared = [name not in features or name in shared for name in names]
    feature_offset, nfl_offset = _cells(columns, is_shared, sizes)
    return ShardedFids(
        version,
        ps_num,
        configs.table_names,
        batch_size,
        fids,
        *lists.tensors(),
        codes,
        feature_offset,
        nfl_offset,
        torch.from_numpy(lists.cuts()),
    )


def _columns(
    features: Mapping[str, Ragged],
    configs: FeatureConfigs,
    shared: frozenset[str],
    batch_size: int,
) -> list[Ragged]:
    """The ids of the features in their order; refuses wrong names, dtypes and numbers of rows."""
    known = configs.feature_configs
    for kind, names in (("features", features), ("shared features", shared)):
        unknown = sorted(name for name in names if name not in known)
        if unknown:
            raise ValueError(
                f"{_WHERE} expected {kind} of the configs, got {unknown[0]!r}; leave it out"
            )
    if batch_size < 0:
        raise ValueError(f"{_WHERE} expected batch_size of at least 0, got {batch_size}")
    empty = Ragged(host_int64([]), host_int64([0, 0]))
    columns = []
    for name in configs.feature_names:
        column = features.get(name, empty)
        if not isinstance(column, Ragged):
            raise TypeError(
                f"{_WHERE} expected feature {name!r} as a Ragged, got {type(column).__name__}"
            )
        values = check_tensor(_WHERE, f"feature {name!r}", column.values, torch.int64, 1)
        num_rows = 1 if name in shared or name not in features else batch_size
        if column.num_rows != num_rows:
            kind = "1 row, it is shared" if name in shared else f"{num_rows} rows"
            raise ValueError(
                f"{_WHERE} expected feature {name!r} with {kind}, got {column.num_rows}"
            )
        splits = check_tensor(_WHERE, f"row_splits of {name!r}", column.row_splits, torch.int64, 1)
        columns.append(Ragged._unchecked(values, splits))
    total = sum(column.values.numel() for column in columns)
    if total >= _MAX_IDS:
        raise ValueError(f"{_WHERE} expected fewer than {_MAX_IDS} ids in a batch, got {total}")
    return columns


def _cells(
    columns: list[Ragged], is_shared: list[bool], sizes: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """`feature_offset` and `nfl_offset`."""
    num_cells = np.array([column.num_rows for column in columns], dtype=np.int64)
    first_cells = np.concatenate(([0], np.cumsum(num_cells)))
    first_ids = np.concatenate(([0], np.cumsum(np.array(sizes, dtype=np.int64))))
    none = host_int64([])
    splits = torch.cat([none, *(column.row_splits for column in columns)]).numpy()
    splits = splits + np.repeat(first_ids[:-1], num_cells + 1)
    last_of_column = np.cumsum(num_cells + 1) - 1  # the first of the next one, or the end
    cells = np.append(np.delete(splits, last_of_column), first_ids[-1]).astype(np.int32)
    first_cells[-1] += 1
    first_cells[:-1] |= np.array(is_shared, dtype=np.int64) << 31
    return torch.from_numpy(cells), torch.from_numpy(first_cells)
