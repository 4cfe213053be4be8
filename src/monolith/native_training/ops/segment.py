"""Pool rows of values by the example that they belong to; plain torch, differentiable."""

from collections.abc import Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensor

from monolith.native_training.ops.graph_ops import graph_check
from monolith.native_training.ops.tensor_checks import check_range, check_tensor, host_range
from monolith.ops.compiled import load_native
from monolith.ops.ragged import Ragged


def fused_value_rowids(rt: Ragged) -> torch.Tensor:
    """The row of each value, int64 (num_values,); computed once per object and kept.

    Under `torch.compile` it is computed in the graph and not kept. Safe from any thread.

    Raises:
        ValueError: the argument is not `Ragged`.

    Example:
        >>> fused_value_rowids(Ragged.from_lists([[], [1], [2, 3]]))
        tensor([1, 2, 2])
    """
    if not isinstance(rt, Ragged):
        raise ValueError("rt must be RaggedTensor")
    if torch.compiler.is_compiling():
        rowids = torch.ops.monolith.fused_value_rowids(rt.row_splits, rt.values.shape[0])
        assert isinstance(rowids, torch.Tensor)
        return rowids
    kept = rt.monolith_fused_value_rowids
    if kept is None:
        kept = _value_rowids(rt.row_splits, rt.values.shape[0])
        object.__setattr__(rt, "monolith_fused_value_rowids", kept)
    return kept


def monolith_fused_value_rowids(row_splits: torch.Tensor) -> torch.Tensor:
    """Return the row of each value, int64 (num_values,), for the row splits of a ragged tensor.

    Raises:
        TypeError: the row splits are no int64 tensor.
        ValueError: they do not begin with 0, or decrease.

    Example:
        >>> monolith_fused_value_rowids(torch.tensor([0, 0, 1, 3]))
        tensor([1, 2, 2])
    """
    where = "[monolith_fused_value_rowids]"
    splits = check_tensor(where, "row_splits", row_splits, torch.int64, 1)
    num_values = int(splits[-1]) if len(splits) else 0
    if not len(splits) or splits[0] != 0 or num_values < 0:
        raise ValueError(f"{where} expected row_splits that begin with 0, got {splits.tolist()}")
    return _value_rowids(splits, num_values)


def _value_rowids(row_splits: torch.Tensor, num_values: int) -> torch.Tensor:
    if row_splits.device.type != "cpu" or isinstance(row_splits, FakeTensor):
        # Searches; repeat_interleave would be as fast, but waits for the device to add up lengths.
        places = torch.arange(num_values, device=row_splits.device)
        return torch.searchsorted(row_splits, places, right=True) - 1
    splits = row_splits.contiguous()
    rowids = torch.empty(num_values, dtype=torch.int64, device="cpu")
    load_native().fused_value_rowids(
        splits.data_ptr(), splits.shape[0], rowids.data_ptr(), num_values
    )
    return rowids


@torch.library.custom_op(
    "monolith::fused_value_rowids",
    mutates_args=(),
    schema="(Tensor row_splits, SymInt num_values) -> Tensor",
)
def _rowids_op(row_splits: torch.Tensor, num_values: int) -> torch.Tensor:
    return _value_rowids(row_splits, num_values)


@_rowids_op.register_fake
def _(row_splits: torch.Tensor, num_values: int) -> torch.Tensor:
    return row_splits.new_empty(num_values)


def reduce_sum(
    id_indices: torch.Tensor, id_values: torch.Tensor, id_length: torch.Tensor | int
) -> torch.Tensor:
    """Sum of the values of each example; 0 without values.

    Args:
        id_indices: the example of each value, int64 (n, 1) or (n,).
        id_values: (n, dim).
        id_length: number of examples; an int or a tensor with one.

    Raises:
        TypeError: the indices are not int64.
        ValueError: shapes do not fit, or an index is not below the number of examples.

    Example:
        >>> values = torch.tensor([[1.0], [2.0], [4.0]])
        >>> reduce_sum(torch.tensor([[0], [0], [2]]), values, 3)
        tensor([[3.],
                [0.],
                [4.]])
    """
    rows, size = _rows("[reduce_sum]", id_indices, id_values, id_length)
    return _sum(rows, id_values, size)


def reduce_mean(
    id_indices: torch.Tensor, id_values: torch.Tensor, id_length: torch.Tensor | int
) -> torch.Tensor:
    """Mean of the values of each example; 0 without values. Arguments as in `reduce_sum`."""
    rows, size = _rows("[reduce_mean]", id_indices, id_values, id_length)
    counts = id_values.new_zeros(size).index_add(0, rows, id_values.new_ones(rows.shape[0]))
    return _sum(rows, id_values, size) / counts.clamp(min=1)[:, None]


def reduce_sqrtn(
    id_indices: torch.Tensor, id_values: torch.Tensor, id_length: torch.Tensor | int
) -> torch.Tensor:
    """Square root of the sum of squares of the values of each example, column by column.

    Where it is 0, so is its gradient. Arguments as in `reduce_sum`.
    """
    rows, size = _rows("[reduce_sqrtn]", id_indices, id_values, id_length)
    squares = _sum(rows, id_values * id_values, size)
    is_positive = squares > 0
    return torch.where(is_positive, torch.where(is_positive, squares, 1.0).sqrt(), 0.0)


def fused_reduce_sum_and_split(
    id_indices: torch.Tensor,
    id_values: torch.Tensor,
    id_length: torch.Tensor | int,
    split_dims: Sequence[int],
) -> list[torch.Tensor]:
    """`reduce_sum`, its columns cut into tensors of these widths.

    Raises:
        TypeError: the indices are not int64.
        ValueError: as in `reduce_sum`, or the widths do not sum up to that of the values.

    Example:
        >>> values = torch.tensor([[1.0, 1.0, 1.0], [2.0, 2.0, 1.0], [4.0, 4.0, 2.0]])
        >>> fused_reduce_sum_and_split(torch.tensor([0, 0, 1]), values, 2, [2, 1])
        [tensor([[3., 3.],
                [4., 4.]]), tensor([[2.],
                [2.]])]
    """
    where = "[fused_reduce_sum_and_split]"
    rows, size = _rows(where, id_indices, id_values, id_length)
    return _cut(where, _sum(rows, id_values, size), split_dims)


def fused_sorted_segment_sum(
    indices: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    shapes: Sequence[Sequence[int]],
) -> list[torch.Tensor]:
    """Several `reduce_sum`, whose indices ascend, into zeros of these shapes.

    Raises:
        TypeError: indices are not int64.
        ValueError: as in `reduce_sum`, the numbers of arguments differ, or indices descend.

    Example:
        >>> values = torch.tensor([[1.0], [2.0]])
        >>> fused_sorted_segment_sum([torch.tensor([1, 1])], [values], [(3, 1)])
        [tensor([[0.],
                [3.],
                [0.]])]
    """
    where = "[fused_sorted_segment_sum]"
    if not len(indices) == len(values) == len(shapes):
        raise ValueError(
            f"{where} expected as many indices, values and shapes, got {len(indices)}, "
            f"{len(values)} and {len(shapes)}"
        )
    sums = []
    for places, rows, shape in zip(indices, values, shapes, strict=True):
        at, size = _rows(where, places, rows, shape[0])
        at = _sorted(where, at)
        if tuple(rows.shape[1:]) != tuple(shape[1:]):
            raise ValueError(
                f"{where} expected values of width {tuple(shape[1:])}, got {tuple(rows.shape[1:])}"
            )
        sums.append(_sum(at, rows, size))
    return sums


def fused_reduce_and_split(
    row_splits: Sequence[torch.Tensor],
    embeddings: Sequence[torch.Tensor],
    slice_dims: Sequence[Sequence[int]],
) -> list[list[torch.Tensor]]:
    """Sum-pool each ragged feature and cut its columns into slices.

    Args:
        row_splits: of each feature, int64 (num_rows + 1,); all have the same number of rows.
        embeddings: of each feature, (num_values, dim).
        slice_dims: of each feature, the widths of its slices.

    Raises:
        ValueError: the numbers of arguments or of rows differ, or shapes do not fit.

    Example:
        >>> splits, rows = torch.tensor([0, 2, 2]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> fused_reduce_and_split([splits], [rows], [[1, 1]])
        [[tensor([[4.],
                [0.]]), tensor([[6.],
                [0.]])]]
    """
    where = "[fused_reduce_and_split]"
    if not len(row_splits) == len(embeddings) == len(slice_dims):
        raise ValueError(
            f"{where} expected as many row_splits, embeddings and slice_dims, got "
            f"{len(row_splits)}, {len(embeddings)} and {len(slice_dims)}"
        )
    sizes = {len(splits) for splits in row_splits}
    if len(sizes) > 1:
        raise ValueError(f"{where} expected features of one number of rows, got {sorted(sizes)}")
    pooled = []
    for splits, rows, dims in zip(row_splits, embeddings, slice_dims, strict=True):
        splits = _ascending(where, splits, rows.shape[0])
        at = fused_value_rowids(Ragged._unchecked(rows, splits))
        pooled.append(_cut(where, _sum(at, rows, len(splits) - 1), dims))
    return pooled


def first_n(row_splits: torch.Tensor, values: torch.Tensor, length: int) -> torch.Tensor:
    """The first values of each row, padded with zeros; (num_rows, length, ...).

    Args:
        row_splits: int64 (num_rows + 1,).
        values: (num_values, ...).
        length: how many are kept.

    Raises:
        ValueError: the splits do not end with the number of values, or the length is negative.

    Example:
        >>> first_n(torch.tensor([0, 1, 3, 6]), torch.arange(1, 7), 2)
        tensor([[1, 0],
                [2, 3],
                [4, 5]])
    """
    where = "[first_n]"
    if length < 0:
        raise ValueError(f"{where} expected a length of at least 0, got {length}")
    num_values, tail = values.shape[0], values.shape[1:]
    splits = _ascending(where, row_splits, num_values)
    positions = host_range(length)
    places = splits[:-1, None] + positions  # (num_rows, length)
    places = torch.where(positions < splits.diff()[:, None], places, num_values)
    padded = torch.cat([values, values.new_zeros(1, *tail)])
    return padded.index_select(0, places.view(-1)).view(*places.shape, *tail)


def _rows(
    where: str, indices: torch.Tensor, values: torch.Tensor, length: torch.Tensor | int
) -> tuple[torch.Tensor, int]:
    """The example of each value, and their number."""
    indices = check_tensor(where, "id_indices", indices, torch.int64)
    check_tensor(where, "id_values", values)
    is_column = indices.dim() == 1 or (indices.dim() == 2 and indices.shape[1] == 1)
    if not is_column or values.dim() < 2 or indices.shape[0] != values.shape[0]:
        raise ValueError(
            f"{where} expected id_indices of shape (n, 1) or (n,) and id_values of shape (n, dim), "
            f"got {tuple(indices.shape)} and {tuple(values.shape)}"
        )
    size, rows = int(length), indices.view(-1)
    return check_range(where, "id_indices", rows, size), size


@graph_check("sorted_indices(str where, Tensor indices) -> Tensor")
def _sorted(where: str, indices: torch.Tensor) -> torch.Tensor:
    """The indices; refuses those that descend."""
    if bool((indices.diff() < 0).any()):
        raise ValueError(
            f"{where} expected indices that never decrease, got {indices.tolist()[:8]}"
        )
    return indices


@graph_check("ascending_splits(str where, Tensor splits, SymInt num_values) -> Tensor")
def _ascending(where: str, splits: torch.Tensor, num_values: int) -> torch.Tensor:
    """The row splits; refuses those that do not ascend from 0 to the number of values."""
    splits = check_tensor(where, "row_splits", splits, torch.int64, 1)
    if (
        len(splits) == 0
        or int(splits[0]) != 0
        or int(splits[-1]) != num_values
        or bool((splits.diff() < 0).any())
    ):
        raise ValueError(
            f"{where} expected row_splits that ascend from 0 to {num_values}, the number of "
            f"values, got {splits.tolist()[:8]}"
        )
    return splits


def _sum(rows: torch.Tensor, values: torch.Tensor, size: int) -> torch.Tensor:
    return values.new_zeros(size, *values.shape[1:]).index_add(0, rows, values)


def _cut(where: str, sums: torch.Tensor, dims: Sequence[int]) -> list[torch.Tensor]:
    if sum(dims) != sums.shape[1]:
        raise ValueError(
            f"{where} expected widths that sum up to {sums.shape[1]}, got {list(dims)}"
        )
    return list(torch.split(sums, list(dims), 1))
