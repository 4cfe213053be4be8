"""Sort ids, rows and ragged tensors by shard; shards are numbered from 0."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from monolith.native_training.ops.graph_ops import cut_rows, graph_op, unknown_size
from monolith.native_training.ops.id_groups import bucket_order, first_seen
from monolith.native_training.ops.segment import fused_value_rowids
from monolith.native_training.ops.tensor_checks import check_tensor, host_int64, host_range
from monolith.ops.ragged import Ragged


def split_by_indices(
    indices: torch.Tensor, tensor: torch.Tensor, num_splits: int
) -> list[torch.Tensor]:
    """Sort the rows of a tensor into `num_splits` tensors; differentiable in the tensor.

    Args:
        indices: the split of each row, int64 (n,).
        tensor: float32 or int64 (n, ...).
        num_splits: how many.

    Raises:
        TypeError: a tensor is of another dtype.
        ValueError: the lengths differ, or an index is not in [0, num_splits).

    Example:
        >>> ids = torch.tensor([0, 1, 2, 2, 3])
        >>> [part.tolist() for part in split_by_indices(ids % 3, ids, 3)]
        [[0, 3], [1], [2, 2]]
    """
    where = "[split_by_indices]"
    check_tensor(where, "tensor", tensor, (torch.float32, torch.int64))
    order, counts = bucket_order(where, indices, num_splits)
    _check_length(where, "tensor", len(tensor) if tensor.dim() else 0, "indices", len(order))
    if torch.compiler.is_compiling():
        moved = tensor.index_select(0, order)  # its gradient is known to the compiler
    else:
        moved = _Permute.apply(tensor, order)  # type: ignore[no-untyped-call]
    return cut_rows(moved, counts, num_splits, f"{where} expected {{}} rows")


class _Permute(torch.autograd.Function):
    """Rows in another order; the gradient goes back the same way."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """Row order[i] becomes row i."""
        ctx.save_for_backward(order)
        return rows.index_select(0, order)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Row i becomes row order[i]."""
        (order,) = ctx.saved_tensors
        back = torch.empty_like(order)
        back[order] = host_range(len(order))
        return gradient.index_select(0, back), None


def ragged_split_by_indices(
    indices: torch.Tensor, ragged: Ragged, num_splits: int
) -> tuple[list[Ragged], list[Ragged]]:
    """Sort the values of a ragged tensor into `num_splits` of them, with the same number of rows.

    Args:
        indices: the split of each value, int64 (num_values,).
        ragged: what is split.
        num_splits: how many.

    Returns:
        The parts, and where each of their values was in `ragged`.

    Raises:
        ValueError: the lengths differ, or an index is not in [0, num_splits).

    Example:
        >>> ragged = Ragged.from_lists([[4, 3, 2], [1]])
        >>> parts, positions = ragged_split_by_indices(torch.tensor([0, 1, 0, 1]), ragged, 2)
        >>> [part.to_lists() for part in parts], [part.to_lists() for part in positions]
        ([[[4, 2], []], [[3], [1]]], [[[0, 2], []], [[1], [3]]])
    """
    where = "[ragged_split_by_indices]"
    order, counts = bucket_order(where, indices, num_splits)
    _check_length(where, "indices", len(order), "values", len(ragged.values))
    num_rows = ragged.num_rows
    rows = fused_value_rowids(ragged)
    lengths = order.new_zeros(num_splits * num_rows)
    lengths.index_add_(0, indices.long() * num_rows + rows, torch.ones_like(order))
    splits = torch.nn.functional.pad(lengths.view(num_splits, num_rows).cumsum(1), (1, 0))
    parts, positions = [], []
    pieces = cut_rows(order, counts, num_splits, f"{where} expected {{}} values")
    for places, row_splits in zip(pieces, splits.unbind(), strict=True):
        parts.append(Ragged._unchecked(ragged.values.index_select(0, places), row_splits))
        positions.append(Ragged._unchecked(places, row_splits))
    return parts, positions


def _fake_reorder(
    values: torch.Tensor, shard_ids: torch.Tensor, num_shards: int
) -> tuple[torch.Tensor, torch.Tensor]:
    reordered = values.new_empty((unknown_size(), *values.shape[1:]))
    return reordered, values.new_empty(num_shards, dtype=torch.int64)


@graph_op(
    "reorder_by_indices(Tensor values, Tensor shard_ids, SymInt num_shards) -> (Tensor, Tensor)",
    _fake_reorder,
)
def reorder_by_indices(
    values: torch.Tensor, shard_ids: torch.Tensor, num_shards: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Distinct values by shard, and how many each shard has; the last one seen comes first.

    Args:
        values: int64 (n,), or float32 (n, d), where equal means: equal in column 0.
        shard_ids: the shard of each value, int32 or int64 (n,).
        num_shards: how many.

    Raises:
        TypeError: a tensor is of another dtype.
        ValueError: shapes do not fit, or a shard is not in [0, num_shards).

    Example:
        >>> ids = torch.tensor([0, 1, 2, 2, 3, 5])
        >>> reorder_by_indices(ids, ids % 3, 3)
        (tensor([3, 0, 1, 5, 2]), tensor([2, 1, 2]))
    """
    where = "[reorder_by_indices]"
    values = check_tensor(where, "values", values, (torch.int64, torch.float32))
    if values.dim() != (1 if values.dtype == torch.int64 else 2):
        raise ValueError(
            f"{where} expected int64 values with 1 dimension or float32 values with 2, got shape "
            f"{tuple(values.shape)}"
        )
    _check_length(where, "shard_ids", len(shard_ids), "values", len(values))
    keys = values
    if values.dim() == 2:
        keys = (values[:, 0] + 0.0).contiguous().view(torch.int32).long()  # -0.0 becomes 0.0
    _, firsts, _ = first_seen(where, _one_row(keys))
    latest = firsts.flip(0)
    order, counts = bucket_order(where, shard_ids[latest], num_shards)
    return values[latest[order]], counts


class FusedReorder(NamedTuple):
    """Hold the results of `fused_reorder_by_indices`.

    Attributes:
        output: distinct ids by shard, then by input, then as first seen; int64.
        shard_sizes: ids of each shard; int64 (num_shards,).
        sharded_slot_sizes: ids of each (shard, input); int64 (num_shards * num_inputs,).
        input_lengths: ids of each input; int64 (num_inputs,).
        fused_embedding_offsets: of each id of each input, the first float of its row if all rows
            lie in the order of `output`; int64.
    """

    output: torch.Tensor
    shard_sizes: torch.Tensor
    sharded_slot_sizes: torch.Tensor
    input_lengths: torch.Tensor
    fused_embedding_offsets: torch.Tensor


def fused_reorder_by_indices(
    inputs: Sequence[torch.Tensor], num_shards: int, dim_sizes: Sequence[int]
) -> FusedReorder:
    """Sort the distinct ids of several inputs by shard, the floor remainder of an id.

    Args:
        inputs: int64 (n,) each; equal ids of two inputs are distinct.
        num_shards: how many.
        dim_sizes: width of the rows of each input.

    Raises:
        TypeError: an input is not int64.
        ValueError: shapes or numbers do not fit.

    Example:
        >>> inputs = [torch.tensor(ids) for ids in ([0, 1, 0], [3, 2, 3], [5, 6, 7])]
        >>> reorder = fused_reorder_by_indices(inputs, 2, [1, 2, 3])
        >>> reorder.output
        tensor([0, 2, 6, 1, 3, 5, 7])
        >>> reorder.fused_embedding_offsets
        tensor([ 0,  6,  0,  7,  1,  7,  9,  3, 12])
    """
    return FusedReorder(*_fused_reorder(list(inputs), num_shards, list(dim_sizes)))


def _fake_fused_reorder(
    inputs: Sequence[torch.Tensor], num_shards: int, dim_sizes: Sequence[int]
) -> tuple[torch.Tensor, ...]:
    num_inputs, new = len(inputs), host_int64([]).new_empty
    sizes = (unknown_size(), num_shards, num_shards * num_inputs, num_inputs)
    return *map(new, sizes), new(sum([ids.shape[0] for ids in inputs]))


@graph_op(
    "fused_reorder_by_indices(Tensor[] inputs, SymInt num_shards, int[] dim_sizes) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
    _fake_fused_reorder,
)
def _fused_reorder(
    inputs: Sequence[torch.Tensor], num_shards: int, dim_sizes: Sequence[int]
) -> tuple[torch.Tensor, ...]:
    where = "[fused_reorder_by_indices]"
    if num_shards < 1:
        raise ValueError(f"{where} expected at least 1 shard, got {num_shards}")
    _check_length(where, "dim_sizes", len(dim_sizes), "inputs", len(inputs))
    if min(dim_sizes, default=1) < 1:
        raise ValueError(f"{where} expected dim_sizes of at least 1, got {list(dim_sizes)}")
    columns = [
        check_tensor(where, f"inputs[{i}]", ids, torch.int64, 1) for i, ids in enumerate(inputs)
    ]
    num_inputs = len(columns)
    lengths = host_int64([len(ids) for ids in columns])
    ids = torch.cat(columns) if columns else host_int64([])
    fused = Ragged.from_lengths(ids, lengths)
    groups, firsts, _ = first_seen(where, fused)
    inputs_of = fused_value_rowids(fused)[firsts]
    distinct = ids[firsts]
    buckets = torch.remainder(distinct, num_shards) * num_inputs + inputs_of
    order, sizes = bucket_order(where, buckets, max(1, num_shards * num_inputs))
    widths = host_int64(dim_sizes)[inputs_of[order]]
    offsets = torch.empty_like(order)
    offsets[order] = widths.cumsum(0) - widths
    sizes = sizes[: num_shards * num_inputs]
    return distinct[order], sizes.view(num_shards, -1).sum(1), sizes, lengths, offsets[groups]


def _fake_normalized(row_split: torch.Tensor, row_split_size: torch.Tensor) -> torch.Tensor:
    return row_split.new_empty(unknown_size(), dtype=torch.int64)


@graph_op(
    "normalize_merged_split(Tensor row_split, Tensor row_split_size) -> Tensor", _fake_normalized
)
def normalize_merged_split(row_split: torch.Tensor, row_split_size: torch.Tensor) -> torch.Tensor:
    """Make one row_splits of several that lie one after another, each from 0 on.

    Args:
        row_split: int64 (n,).
        row_split_size: entries of each of them; int64.

    Raises:
        ValueError: the sizes are not positive, or do not sum up to n.

    Example:
        >>> merged = torch.tensor([0, 2, 5, 5, 9, 0, 0, 3, 4])
        >>> normalize_merged_split(merged, torch.tensor([5, 4]))
        tensor([ 0,  2,  5,  5,  9,  9, 12, 13])
    """
    where = "[normalize_merged_split]"
    row_split = check_tensor(where, "row_split", row_split, (torch.int64, torch.int32), 1)
    sizes = check_tensor(where, "row_split_size", row_split_size, (torch.int64, torch.int32), 1)
    if len(sizes) and int(sizes.min()) < 1:
        raise ValueError(f"{where} expected sizes of at least 1, got {int(sizes.min())}")
    _check_length(where, "row_split", len(row_split), "the sizes", int(sizes.sum()))
    ends = sizes.cumsum(0)
    values = row_split[ends - 1]
    before = (values.cumsum(0) - values).repeat_interleave(sizes)
    is_kept = torch.ones(len(row_split), dtype=torch.bool, device="cpu")
    is_kept[ends[:-1]] = False  # the 0 of all but the first
    return (row_split + before)[is_kept]


def gen_seq_mask(splits: torch.Tensor, max_seq_length: int) -> torch.Tensor:
    """1 at the first positions of a row that have a value, 0 elsewhere; (num_rows, length).

    Args:
        splits: row_splits, int64 or int32 (num_rows + 1,); the mask has their dtype.
        max_seq_length: width of the mask.

    Raises:
        ValueError: there are no splits, or the length is negative.

    Example:
        >>> gen_seq_mask(torch.tensor([0, 1, 4]), 2)
        tensor([[1, 0],
                [1, 1]])
    """
    where = "[gen_seq_mask]"
    splits = check_tensor(where, "splits", splits, (torch.int64, torch.int32), 1)
    if splits.shape[0] == 0 or max_seq_length < 0:
        raise ValueError(
            f"{where} expected at least 1 split and a length of at least 0, got "
            f"{splits.shape[0]} and {max_seq_length}"
        )
    return (host_range(max_seq_length) < splits.diff()[:, None]).to(splits.dtype)


def _one_row(values: torch.Tensor) -> Ragged:
    return Ragged(values, host_int64([0, len(values)]))


def _check_length(where: str, name: str, length: int, other: str, expected: int) -> None:
    if length != expected:
        raise ValueError(
            f"{where} expected {name} of length {expected}, that of {other}, got {length}"
        )
