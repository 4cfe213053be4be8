"""Bring equal ids together, and count ids into buckets, for the other ops on ids."""

import torch

from monolith.native_training.ops.graph_ops import graph_op
from monolith.native_training.ops.tensor_checks import check_tensor
from monolith.ops.compiled import load_native
from monolith.ops.ragged import Ragged

_MAX_IDS = (1 << 32) - 1


def first_seen(where: str, ids: Ragged) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Number the distinct ids of each row in the order in which they are first seen.

    Args:
        where: of messages.
        ids: int64; equal ids of two rows are distinct.

    Returns:
        The number of each id, counted over all rows, (num_ids,); where each number is first seen,
        (num_distinct,); how many numbers each row has, (num_rows,).

    Example:
        >>> first_seen("", Ragged.from_lists([[7, 8, 7], [7]]))
        (tensor([0, 1, 0, 2]), tensor([0, 1, 3]), tensor([2, 1]))
    """
    values = check_tensor(where, "ids", ids.values, torch.int64, 1)
    if len(values) > _MAX_IDS:
        raise ValueError(f"{where} expected at most {_MAX_IDS} ids, got {len(values)}")
    groups, firsts = torch.empty_like(values), torch.empty_like(values)
    counts = values.new_empty(ids.num_rows)
    splits = check_tensor(where, "row_splits", ids.row_splits, torch.int64, 1)
    load_native().first_seen(
        (values.data_ptr(), len(values)),
        (splits.data_ptr(), len(splits)),
        groups.data_ptr(),
        firsts.data_ptr(),
        counts.data_ptr(),
    )
    return groups, firsts[: int(counts.sum())], counts


@graph_op(
    "bucket_order(str where, Tensor indices, SymInt num_buckets) -> (Tensor, Tensor)",
    lambda where, indices, num_buckets: (
        indices.new_empty(indices.shape, dtype=torch.int64),
        indices.new_empty(num_buckets, dtype=torch.int64),
    ),
)
def bucket_order(
    where: str, indices: torch.Tensor, num_buckets: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The places of the indices 0, then of 1, ..., each ascending, and how many there are of each.

    Raises:
        ValueError: an index is not in [0, num_buckets).

    Example:
        >>> bucket_order("", torch.tensor([1, 0, 1]), 3)
        (tensor([1, 0, 2]), tensor([1, 2, 0]))
    """
    indices = check_tensor(where, "indices", indices, (torch.int64, torch.int32), 1).long()
    if num_buckets < 1:
        raise ValueError(f"{where} expected at least 1 split, got {num_buckets}")
    order, counts = torch.empty_like(indices), indices.new_empty(num_buckets)
    is_right = load_native().bucket_order(
        (indices.data_ptr(), len(indices)), order.data_ptr(), (counts.data_ptr(), num_buckets)
    )
    if not is_right:
        raise ValueError(
            f"{where} expected indices in [0, {num_buckets}), got {int(indices.min())} to "
            f"{int(indices.max())}"
        )
    return order, counts
