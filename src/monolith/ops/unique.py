"""Distinct keys of many slots, and their rows copied to every place where a key was asked for.

    keys      [[7, 8, 7]]  dim 2        distinct  [[7, 8]]
    result    7 7 8 8 7 7               offsets   7 -> 0, 4   8 -> 2     (floats)

Shards answer with the rows of some distinct keys each; one pass puts them all in place.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from monolith.errors import InvalidArgumentError
from monolith.ops.host import host_empty, host_int64, host_zeros
from monolith.ops.id_groups import bucket_order, first_seen
from monolith.ops.native import load_native
from monolith.ops.ragged import Ragged
from monolith.ops.rowids import fused_value_rowids
from monolith.ops.tensor_checks import check_tensor, check_threads, default_threads

__all__ = [
    "fill_with_offset_map",
    "fill_with_offset_map_gradient",
    "unique_key_with_value_and_offset",
]


def unique_key_with_value_and_offset(
    key: Ragged, dims: Sequence[int] | torch.Tensor
) -> tuple[Ragged, Ragged]:
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
    where = "[unique_key_with_value_and_offset]"
    widths = _widths(where, dims, key.num_rows)
    groups, firsts, counts = first_seen(where, key)
    if len(firsts) == 0:
        none = host_int64([0])
        return Ragged.from_lengths(firsts, counts), Ragged(firsts, none)
    # Of each occurrence. `repeat_interleave` wakes torch's threads, however few the keys are.
    floats = widths[fused_value_rowids(key)]
    order, num_occurs = bucket_order(where, groups, len(firsts))
    offsets = (floats.cumsum(0) - floats)[order]
    unique = Ragged.from_lengths(key.values[firsts], counts)
    return unique, Ragged.from_lengths(offsets, num_occurs)


def fill_with_offset_map(
    pos: Sequence[Ragged],
    value: Sequence[torch.Tensor],
    offset_map: Ragged,
    dims: Sequence[int] | torch.Tensor,
    size: int,
    *,
    num_threads: int | None = None,
) -> torch.Tensor:
    """Copy rows of distinct keys to all their places in one buffer; differentiable in the rows.

    Args:
        pos: per shard the numbers of the distinct keys that it answers for, one row per slot.
        value: per shard their rows in the same order, flat; float32.
        offset_map: where each distinct key occurs, of `unique_key_with_value_and_offset`.
        dims: width of the rows of each slot; as an int64 tensor where slots are many.
        size: floats in the buffer; places that nobody fills are 0.
        num_threads: None: those of torch, one if there are few keys.

    Returns:
        The buffer, float32 (size,).

    Raises:
        TypeError: a tensor is of another dtype.
        ValueError: the lengths do not fit.
        InvalidArgumentError: a value is too short or too long, or a number is out of range.

    Example:
        >>> keys = Ragged.from_lists([[7, 8, 7]])
        >>> _, offsets = unique_key_with_value_and_offset(keys, [2])
        >>> rows = torch.tensor([0.7, 0.7, 0.8, 0.8])
        >>> fill_with_offset_map([Ragged.from_lists([[0, 1]])], [rows], offsets, [2], 6)
        tensor([0.7000, 0.7000, 0.8000, 0.8000, 0.7000, 0.7000])
    """
    where = "[fill_with_offset_map]"
    if len(pos) != len(value):
        raise ValueError(
            f"{where} expected one pos for each value, got {len(pos)} pos and {len(value)} values"
        )
    if size < 0:
        raise ValueError(f"{where} expected a size of at least 0, got {size}")
    call = _Fill(where, pos, offset_map, dims, size, num_threads)
    values = [
        check_tensor(where, f"value[{i}]", rows, torch.float32, 1) for i, rows in enumerate(value)
    ]
    filled = _FillWithOffsetMap.apply(call, *values)  # type: ignore[no-untyped-call]
    assert isinstance(filled, torch.Tensor)
    return filled


def fill_with_offset_map_gradient(
    pos: Sequence[Ragged],
    gradient: torch.Tensor,
    offset_map: Ragged,
    dims: Sequence[int] | torch.Tensor,
    *,
    num_threads: int | None = None,
) -> list[torch.Tensor]:
    """Gradients of the rows of `fill_with_offset_map`: of each, the sum over its copies.

    Args:
        pos: as forward.
        gradient: of the buffer, float32 (size,).
        offset_map: as forward.
        dims: as forward.
        num_threads: as forward.

    Returns:
        Per shard, flat, the gradients of its rows.

    Raises:
        TypeError: a tensor is of another dtype.
        ValueError: the lengths do not fit.
        InvalidArgumentError: a number or a place is out of range.

    Example:
        >>> keys = Ragged.from_lists([[7, 8, 7]])
        >>> _, offsets = unique_key_with_value_and_offset(keys, [2])
        >>> places = [Ragged.from_lists([[0, 1]])]
        >>> fill_with_offset_map_gradient(places, torch.arange(6.0), offsets, [2])
        [tensor([4., 6., 2., 3.])]
    """
    where = "[fill_with_offset_map_gradient]"
    gradient = check_tensor(where, "gradient", gradient, torch.float32, 1)
    call = _Fill(where, pos, offset_map, dims, len(gradient), num_threads)
    return call.sum(gradient, [int((keys.lengths * call.dims).sum()) for keys in pos])


class _Fill:
    """One pass with everything but rows and buffer."""

    def __init__(
        self,
        where: str,
        pos: Sequence[Ragged],
        offset_map: Ragged,
        dims: Sequence[int] | torch.Tensor,
        size: int,
        num_threads: int | None,
    ) -> None:
        self._keys = [_checked(where, f"pos[{i}]", keys) for i, keys in enumerate(pos)]
        self.dims = _widths(where, dims, len(dims))
        for keys in pos:
            _widths(where, self.dims, keys.num_rows)
        self._offsets = _checked(where, "offset_map", offset_map)
        self._size = size
        num_offsets = len(self._offsets[0])
        self._threads = check_threads(where, num_threads) or default_threads(num_offsets)

    def fill(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """The buffer."""
        buffer = host_zeros(self._size, dtype=torch.float32)
        try:
            self._run("fill_buffer", values, buffer)
        except ValueError as error:
            raise InvalidArgumentError(str(error)) from error
        return buffer

    def sum(self, gradient: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
        """Gradients of the rows."""
        values = [host_empty(size, dtype=torch.float32) for size in sizes]
        try:
            self._run("sum_from_buffer", values, gradient.contiguous())
        except ValueError as error:
            raise InvalidArgumentError(str(error)) from error
        return values

    def _run(self, name: str, values: Sequence[torch.Tensor], buffer: torch.Tensor) -> None:
        parts = [
            (_array(keys), _array(splits), _array(rows))
            for (keys, splits), rows in zip(self._keys, values, strict=True)
        ]
        offsets, splits = self._offsets
        getattr(load_native(), name)(
            parts,
            (_array(offsets), _array(splits)),
            _array(self.dims),
            _array(buffer),
            self._threads,
        )


class _FillWithOffsetMap(torch.autograd.Function):
    """Rows to the buffer."""

    @staticmethod
    def forward(ctx: Any, call: _Fill, *values: torch.Tensor) -> torch.Tensor:
        """The buffer."""
        ctx.call, ctx.sizes = call, [len(rows) for rows in values]
        return call.fill(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The sum over the copies of each row."""
        return None, *ctx.call.sum(gradient, ctx.sizes)


def _checked(where: str, name: str, ids: Ragged) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and row splits."""
    values = check_tensor(where, name, ids.values, torch.int64, 1)
    return values, check_tensor(where, f"row_splits of {name}", ids.row_splits, torch.int64, 1)


def _array(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), len(tensor)


def _widths(where: str, dims: Sequence[int] | torch.Tensor, num_rows: int) -> torch.Tensor:
    if isinstance(dims, torch.Tensor):
        widths = check_tensor(where, "dims", dims, torch.int64, 1)
    else:
        widths = host_int64(dims)
    if len(widths) != num_rows or (num_rows and int(widths.min()) < 1):
        raise ValueError(
            f"{where} expected {num_rows} dims of at least 1, one per row, got {widths.tolist()}"
        )
    return widths
