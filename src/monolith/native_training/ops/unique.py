"""Find the distinct keys of many slots, and where they occur.

    keys      [[7, 8, 7]]  dim 2        distinct  [[7, 8]]
    buffer    7 7 8 8 7 7               offsets   7 -> 0, 4   8 -> 2     (floats)

`fill_with_offset_map` fills the buffer.
"""

import torch

from monolith.native_training.ops.graph_ops import graph_op, unknown_size
from monolith.native_training.ops.id_groups import bucket_order, first_seen
from monolith.native_training.ops.segment import fused_value_rowids
from monolith.native_training.ops.tensor_checks import (
    Widths,
    check_widths,
    graph_widths,
    host_int64,
    host_zeros,
)
from monolith.ops.ragged import Ragged


def unique_key_with_value_and_offset(key: Ragged, dims: Widths) -> tuple[Ragged, Ragged]:
    """Distinct keys of each row in the order in which they are first seen, and where they occur.

    Args:
        key: int64, one row per slot.
        dims: width of the rows of each slot; as an int64 tensor where slots are many.

    Returns:
        The distinct keys, one row per slot; and one row per distinct key, over all slots: the
        first float of each of its occurrences in a buffer of len(row) * dim floats per slot.

    Raises:
        TypeError: the keys are not int64.
        ValueError: there is not one dim for each row, or one is not positive.

    Example:
        >>> keys = Ragged.from_lists([[], [0, 1, 2, 1, 0], [0, 1, 0], []])
        >>> unique, offsets = unique_key_with_value_and_offset(keys, [1, 2, 3, 4])
        >>> unique.to_lists()
        [[], [0, 1, 2], [0, 1], []]
        >>> offsets.to_lists()
        [[0, 8], [2, 6], [4], [10, 16], [13]]
    """
    if torch.compiler.is_compiling():
        dims = graph_widths(dims)
    unique, splits, offsets, offset_splits = _unique(key.values, key.row_splits, dims)
    return Ragged._unchecked(unique, splits), Ragged._unchecked(offsets, offset_splits)


def _fake_unique(
    values: torch.Tensor, row_splits: torch.Tensor, dims: Widths
) -> tuple[torch.Tensor, ...]:
    num_distinct, new = unknown_size(), values.new_empty
    return new(num_distinct), new(row_splits.shape), new(values.shape), new(num_distinct + 1)


@graph_op(
    "unique_key_with_value_and_offset(Tensor values, Tensor row_splits, int[] dims) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    _fake_unique,
)
def _unique(
    values: torch.Tensor, row_splits: torch.Tensor, dims: Widths
) -> tuple[torch.Tensor, ...]:
    where = "[unique_key_with_value_and_offset]"
    widths = check_widths(where, dims, len(row_splits) - 1)
    groups, firsts, counts = first_seen(where, Ragged._unchecked(values, row_splits))
    if len(firsts) == 0:
        return (
            firsts,
            host_zeros(len(row_splits), dtype=torch.int64),
            host_int64([]),
            host_int64([0]),
        )
    # Of each occurrence. `repeat_interleave` wakes torch's threads, however few the keys are.
    floats = widths[fused_value_rowids(Ragged._unchecked(values, row_splits))]
    order, num_occurs = bucket_order(where, groups, len(firsts))
    offsets = (floats.cumsum(0) - floats)[order]
    return values[firsts], _splits_of(counts), offsets, _splits_of(num_occurs)


def _splits_of(lengths: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
