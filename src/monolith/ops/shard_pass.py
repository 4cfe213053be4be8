"""The pass that sorts ids by table and shard, as torch sees it; what it does: sharding.py.

In eager mode it is a function, in a graph the op `monolith::sharding_sparse_fids`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from monolith.ops.graph_ops import graph_op, unknown_size
from monolith.ops.host import host_empty
from monolith.ops.layout_plan import Int64s, TableOrder
from monolith.ops.list_places import ListPlaces
from monolith.ops.native import load_native
from monolith.ops.splits import check_splits
from monolith.ops.tensor_checks import check_tensor, default_threads

__all__ = ["BatchIds", "shard_ids"]

_WHERE = "[sharding_sparse_fids]"
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
        raise ValueError(f"{_WHERE} expected fewer than {_MAX_IDS} ids in a batch, got {total}")
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
            f"{_WHERE} expected fewer than {_MAX_PLACE} floats in the rows of a table and shard, "
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
            check_tensor(_WHERE, f"{what} {name!r}", tensor, torch.int64, 1)
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
            f"{_WHERE} expected feature {ids.names[at]!r} with {kind}, got {num_rows[at]}"
        )
    first_cells = np.concatenate(([0], np.cumsum(num_rows)))
    cells = host_empty(int(first_cells[-1]) + 1, dtype=torch.int32)
    num_right = load_native().feature_cells(splits.addresses, splits.sizes, sizes, cells.data_ptr())
    if num_right < len(sizes):
        name = f"row_splits of {ids.names[num_right]!r}"
        check_splits(_WHERE, name, splits.kept[num_right], sizes[num_right])
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
