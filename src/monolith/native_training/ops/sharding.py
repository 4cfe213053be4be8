"""Shard the feature ids of a batch, and find their places in lists."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from monolith.native_training.ops.graph_ops import cut_rows, graph_op, unknown_size
from monolith.native_training.ops.layout_config import FeatureConfigs
from monolith.native_training.ops.layout_pass import Int64s, TableOrder
from monolith.native_training.ops.tensor_checks import (
    check_tensor,
    check_threads,
    default_threads,
    host_empty,
    host_int64,
)
from monolith.ops.compiled import load_native
from monolith.ops.ragged import Ragged, check_splits

BY_SHARD = 4  # the version whose lists lie in the order (shard, table)


class ListPlaces:
    """Place the rows of every feature and shard; arrays are (features in table order, shards).

    Args:
        order: the features of each table.
        counts: rows of each feature in each shard.  # (num_features, num_shards)
        version: of the result.
    """

    def __init__(self, order: TableOrder, counts: Int64s, version: int) -> None:
        self._order, self._version = order, version
        self._counts = counts[order.features]
        self._rows_before = order.before(self._counts)
        floats = self._counts * order.dims[:, None]
        self._floats_before = order.before(floats)
        self._row_totals = order.totals(self._counts)  # (num_tables, num_shards)
        self._float_totals = order.totals(floats)  # (num_tables, num_shards)
        self._floats = floats

    @property
    def largest(self) -> int:
        """Floats of the largest list."""
        return int(self._float_totals.max(initial=0))

    def _in_order(self, by_list: Int64s) -> Int64s:
        """Reorder (tables, shards) to the order of the lists."""
        flat: Int64s = np.ravel(by_list.T if self._version == BY_SHARD else by_list)
        return flat

    def _begins(self, sizes: Int64s) -> Int64s:
        """Return where each list begins if they lie one after another; (num_tables, num_shards)."""
        flat = self._in_order(sizes)
        begins: Int64s = np.cumsum(flat) - flat
        if self._version == BY_SHARD:
            begins = begins.reshape(sizes.T.shape).T
        return begins.reshape(sizes.shape)

    def _index1(self) -> Int64s:
        """The first number of a code; (num_features, num_shards)."""
        order, num_shards = self._order, self._counts.shape[1]
        shards = np.arange(num_shards)
        if self._version != 2:
            plain: Int64s = order.tables[:, None] * num_shards + shards
            return plain
        width = order.num_features[order.tables][:, None]
        first = (order.first * num_shards)[order.tables][:, None]
        numbers: Int64s = first + shards * width + order.positions[:, None]
        return numbers

    def places(self) -> Int64s:
        """Return first place in the list, base and stride of codes, by feature, for the core."""
        order, version = self._order, self._version
        places = np.empty((*self._counts.shape, 3), dtype=np.int64)
        places[..., 0] = self._begins(self._row_totals)[order.tables] + self._rows_before
        inner = {1: self._rows_before, 2: np.zeros_like(self._counts)}
        places[..., 1] = (self._index1() << 32) + inner.get(version, self._floats_before)
        places[..., 2] = order.dims[:, None] if version >= 3 else 1
        result = np.empty_like(places)
        result[order.features] = places
        return result

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ids of each list; row splits and how many of each list; floats of each list."""
        order = self._order
        sizes = np.repeat(order.num_features[:, None] + 1, self._counts.shape[1], axis=1)
        splits = np.empty(sizes.sum(), dtype=np.int64)
        begins = self._begins(sizes)
        splits[begins[order.tables] + order.positions[:, None]] = self._rows_before
        splits[begins + order.num_features[:, None]] = self._row_totals
        arrays = (self._row_totals, sizes, self._float_totals)
        rows, counts, floats = (torch.from_numpy(self._in_order(array)) for array in arrays)
        return rows, torch.from_numpy(splits), counts, floats

    def cuts(self) -> Int64s:
        """Tensor, first float and floats of the rows of each index1."""
        num_tables, num_shards = self._row_totals.shape
        lists = np.arange(num_tables * num_shards).reshape(num_tables, num_shards)
        if self._version == 2:
            cuts = np.empty((self._counts.size, 3), dtype=np.int64)
            parts = (lists[self._order.tables], self._floats_before, self._floats)
            cuts[self._index1().ravel()] = np.stack(parts, axis=-1).reshape(-1, 3)
            return cuts
        tensors, begins = lists, np.zeros_like(lists)
        if self._version == BY_SHARD:
            tensors = np.broadcast_to(np.arange(num_shards), lists.shape)
            begins = np.cumsum(self._float_totals, axis=0) - self._float_totals
        return np.stack((tensors, begins, self._float_totals), axis=-1).reshape(-1, 3)


_PASS = "[sharding_sparse_fids]"
_PLAIN_TYPES = (torch.Tensor,)
_MAX_IDS = 1 << 31
_MAX_PLACE = 1 << 32


class BatchIds(NamedTuple):
    """The ids of a batch, and how they are sorted; lists have an entry per feature.

    Attributes:
        values: ids.
        splits: where the ids of each row begin and end.
        names: of messages.
        is_shared: whether one row stands for the whole batch.
        batch_size: rows of the others.
        ps_num: number of shards.
        unique: whether equal ids of a feature share a place.
        version: of the codes.
        num_threads: 0: those of torch, one if there are few ids.
    """

    values: list[torch.Tensor]
    splits: list[torch.Tensor]
    names: Sequence[str]
    is_shared: list[bool]
    batch_size: int
    ps_num: int
    unique: bool
    version: int
    num_threads: int


def shard_ids(ids: BatchIds, order: TableOrder) -> tuple[torch.Tensor, ...]:
    """The tensors of `ShardedFids`, in their order.

    Raises:
        TypeError: ids are not int64.
        ValueError: a feature has another number of rows or wrong splits, or there are too many ids.
    """
    if torch.compiler.is_compiling():
        tables, dims = order.by_feature
        return _shard_op(*ids[:2], list(ids.names), list(tables), list(dims), *ids[3:])
    return _sharded(ids, order)


def _sharded(ids: BatchIds, order: TableOrder) -> tuple[torch.Tensor, ...]:
    values = _buffers("feature", ids.names, ids.values)
    total = sum(values.sizes)
    if total >= _MAX_IDS:
        raise ValueError(f"{_PASS} expected fewer than {_MAX_IDS} ids in a batch, got {total}")
    feature_offset, nfl_offset = _cells(ids, values.sizes)
    native, num_shards = load_native(), ids.ps_num
    threads = ids.num_threads or default_threads(total)
    codes = host_empty(total, dtype=torch.int64)
    counts = np.empty((len(values.sizes), num_shards), dtype=np.int64)
    inputs = (values.addresses, values.sizes, num_shards)
    native.count_rows(*inputs, ids.unique, codes.data_ptr(), counts.ctypes.data, threads)
    lists = ListPlaces(order, counts, ids.version)
    if lists.largest >= _MAX_PLACE:
        raise ValueError(
            f"{_PASS} expected fewer than {_MAX_PLACE} floats in the rows of a table and shard, "
            f"got {lists.largest}; use more shards"
        )
    fids = host_empty(int(counts.sum()), dtype=torch.int64)
    places = lists.places()
    native.place_rows(*inputs, places.ctypes.data, fids.data_ptr(), codes.data_ptr(), threads)
    cuts = torch.from_numpy(lists.cuts())
    return fids, *lists.tensors(), codes, feature_offset, nfl_offset, cuts


class _Buffers(NamedTuple):
    """Tensors as the core reads them."""

    kept: list[torch.Tensor]  # the memory of the addresses
    addresses: list[int]
    sizes: list[int]


def _buffers(what: str, names: Sequence[str], tensors: list[torch.Tensor]) -> _Buffers:
    """Addresses of int64 with 1 dimension; one call for all, as a loop in Python takes longer."""
    plain = load_native().plain_buffers(tensors, _PLAIN_TYPES, torch.strided, True)
    is_right = len(plain[0]) == len(tensors) and all(x.ndim == 1 for x in tensors)
    if not is_right or (tensors and tensors[0].dtype != torch.int64):
        tensors = [
            check_tensor(_PASS, f"{what} {name!r}", tensor, torch.int64, 1)
            for name, tensor in zip(names, tensors, strict=True)
        ]
        plain = load_native().plain_buffers(tensors, _PLAIN_TYPES, torch.strided, True)
    addresses, num_bytes = plain
    return _Buffers(tensors, addresses, [number // 8 for number in num_bytes])


def _cells(ids: BatchIds, sizes: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """`feature_offset` and `nfl_offset`; refuses other numbers of rows, and wrong splits."""
    splits = _buffers("row_splits of", ids.names, ids.splits)
    is_shared = np.array(ids.is_shared, dtype=bool)
    num_rows: Int64s = np.array(splits.sizes, dtype=np.int64) - 1
    is_wrong = num_rows != np.where(is_shared, 1, ids.batch_size)
    if is_wrong.any():
        at = int(is_wrong.argmax())
        kind = "1 row, it is shared" if is_shared[at] else f"{ids.batch_size} rows"
        raise ValueError(
            f"{_PASS} expected feature {ids.names[at]!r} with {kind}, got {num_rows[at]}"
        )
    first_cells = np.concatenate(([0], np.cumsum(num_rows)))
    cells = host_empty(int(first_cells[-1]) + 1, dtype=torch.int32)
    num_right = load_native().feature_cells(splits.addresses, splits.sizes, sizes, cells.data_ptr())
    if num_right < len(sizes):
        name = f"row_splits of {ids.names[num_right]!r}"
        check_splits(_PASS, name, splits.kept[num_right], sizes[num_right])
    first_cells[-1] += 1
    first_cells[:-1] |= is_shared.astype(np.int64) << 31
    return cells, torch.from_numpy(first_cells)


def _fake_sharded(values: Any, splits: Any, names: Any, *options: Any) -> tuple[torch.Tensor, ...]:
    tables, _, _, _, ps_num, _, version, _ = options
    num_features, num_lists = len(tables), (max(tables, default=-1) + 1) * ps_num
    num_cells = sum([ids.shape[0] - 1 for ids in splits])

    def new(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="cpu")

    return (
        new(unknown_size()),
        new(num_lists),
        new(num_features * ps_num + num_lists),
        new(num_lists),
        new(num_lists),
        new(sum([ids.shape[0] for ids in values])),
        new(num_cells + 1, dtype=torch.int32),
        new(num_features + 1),
        new(num_features * ps_num if version == 2 else num_lists, 3),
    )


@graph_op(
    "sharding_sparse_fids(Tensor[] values, Tensor[] splits, str[] names, int[] tables, int[] dims, "
    "bool[] is_shared, SymInt batch_size, int ps_num, bool unique, int version, int num_threads) "
    f"-> ({', '.join(['Tensor'] * 9)})",
    _fake_sharded,
)
def _shard_op(
    values: list[torch.Tensor],
    splits: list[torch.Tensor],
    names: list[str],
    tables: list[int],
    dims: list[int],
    *options: Any,
) -> tuple[torch.Tensor, ...]:
    return _sharded(BatchIds(values, splits, names, *options), TableOrder(tables, dims))


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
        """Return where the ids of each feature begin and end, for each list; views."""
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
        >>> from monolith.native_training.ops import FeatureConfig
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
