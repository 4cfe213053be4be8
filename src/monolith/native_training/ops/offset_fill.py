"""Copy rows of distinct keys to every place of their key, and sum gradients back.

    rows of    7 -> 0.7 0.7   8 -> 0.8 0.8
    offsets    7 -> 0, 4      8 -> 2            (floats)
    buffer     0.7 0.7 0.8 0.8 0.7 0.7

Shards answer with the rows of some distinct keys each; one pass puts them all in place. In eager
mode it is a `torch.autograd.Function`, in a graph the op `monolith::fill_with_offset_map`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from monolith.errors import InvalidArgumentError
from monolith.native_training.ops.graph_ops import UNKNOWN, fake_size
from monolith.native_training.ops.tensor_checks import (
    Widths,
    check_tensor,
    check_threads,
    check_widths,
    default_threads,
    graph_widths,
    host_empty,
    host_zeros,
)
from monolith.ops.compiled import load_native
from monolith.ops.ragged import Ragged


def fill_with_offset_map(
    pos: Sequence[Ragged],
    value: Sequence[torch.Tensor],
    offset_map: Ragged,
    dims: Widths,
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
        >>> offsets = Ragged.from_lists([[0, 4], [2]])  # of the keys 7, 8, 7
        >>> rows = torch.tensor([0.7, 0.7, 0.8, 0.8])
        >>> fill_with_offset_map([Ragged.from_lists([[0, 1]])], [rows], offsets, [2], 6)
        tensor([0.7000, 0.7000, 0.8000, 0.8000, 0.7000, 0.7000])
    """
    where = "[fill_with_offset_map]"
    if len(pos) != len(value):
        raise ValueError(
            f"{where} expected one pos for each value, got {len(pos)} pos and {len(value)} values"
        )
    if torch.compiler.is_compiling():
        arguments = _flat(pos, offset_map, dims, size, num_threads)
        filled = torch.ops.monolith.fill_with_offset_map(list(value), *arguments)
    else:
        call = _Fill(where, pos, offset_map, dims, size, num_threads)
        values = _checked_rows(where, value)
        filled = _FillWithOffsetMap.apply(call, *values)  # type: ignore[no-untyped-call]
    assert isinstance(filled, torch.Tensor)
    return filled


def fill_with_offset_map_gradient(
    pos: Sequence[Ragged],
    gradient: torch.Tensor,
    offset_map: Ragged,
    dims: Widths,
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
        >>> offsets = Ragged.from_lists([[0, 4], [2]])  # of the keys 7, 8, 7
        >>> places = [Ragged.from_lists([[0, 1]])]
        >>> fill_with_offset_map_gradient(places, torch.arange(6.0), offsets, [2])
        [tensor([4., 6., 2., 3.])]
    """
    where = "[fill_with_offset_map_gradient]"
    if torch.compiler.is_compiling():
        arguments = _flat(pos, offset_map, dims, gradient.shape[0], num_threads)
        unknown = [UNKNOWN] * len(pos)
        op = torch.ops.monolith.fill_with_offset_map_gradient
        return list(op(gradient, unknown, *arguments))
    gradient = check_tensor(where, "gradient", gradient, torch.float32, 1)
    call = _Fill(where, pos, offset_map, dims, len(gradient), num_threads)
    return call.sum(gradient, _sizes(pos, dims))


def _sizes(pos: Sequence[Ragged], dims: Widths) -> list[int]:
    """Floats in the rows of each shard."""
    widths = check_widths("[fill_with_offset_map_gradient]", dims, len(dims))
    return [int((keys.lengths * widths).sum()) for keys in pos]


class _Fill:
    """One pass with everything but rows and buffer."""

    def __init__(
        self,
        where: str,
        pos: Sequence[Ragged],
        offset_map: Ragged,
        dims: Widths,
        size: int,
        num_threads: int | None,
    ) -> None:
        if size < 0:
            raise ValueError(f"{where} expected a size of at least 0, got {size}")
        self._keys = [_checked(where, f"pos[{i}]", keys) for i, keys in enumerate(pos)]
        self._dims = check_widths(where, dims, len(dims))
        for keys in pos:
            check_widths(where, self._dims, keys.num_rows)
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
            _array(self._dims),
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


def _checked_rows(where: str, value: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [
        check_tensor(where, f"value[{i}]", rows, torch.float32, 1) for i, rows in enumerate(value)
    ]


def _checked(where: str, name: str, ids: Ragged) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and row splits."""
    values = check_tensor(where, name, ids.values, torch.int64, 1)
    return values, check_tensor(where, f"row_splits of {name}", ids.row_splits, torch.int64, 1)


def _array(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), len(tensor)


# The same as ops.

_ARGUMENTS = (
    "Tensor[] keys, Tensor[] splits, Tensor offsets, Tensor offset_splits, int[] dims, "
    "SymInt size, int? num_threads"
)


def _flat(
    pos: Sequence[Ragged],
    offset_map: Ragged,
    dims: Widths,
    size: int,
    num_threads: int | None,
) -> tuple[Any, ...]:
    """The arguments of `_Fill` as an op takes them."""
    keys, splits = [part.values for part in pos], [part.row_splits for part in pos]
    return (
        keys,
        splits,
        offset_map.values,
        offset_map.row_splits,
        graph_widths(dims),
        size,
        num_threads,
    )


def _nested(keys: Any, splits: Any, offsets: Any, offset_splits: Any, *options: Any) -> Any:
    """The opposite of `_flat`."""
    pos = [Ragged._unchecked(*part) for part in zip(keys, splits, strict=True)]
    return pos, Ragged._unchecked(offsets, offset_splits), *options


@torch.library.custom_op(
    "monolith::fill_with_offset_map",
    mutates_args=(),
    schema=f"(Tensor[] value, {_ARGUMENTS}) -> Tensor",
)
def _fill_op(value: Sequence[torch.Tensor], *arguments: Any) -> torch.Tensor:
    where = "[fill_with_offset_map]"
    return _Fill(where, *_nested(*arguments)).fill(_checked_rows(where, value))


@_fill_op.register_fake
def _(value: Any, *arguments: Any) -> torch.Tensor:
    *_, offsets, _, _, size, _ = arguments
    return torch.empty(size, dtype=torch.float32, device=offsets.device)


@torch.library.custom_op(
    "monolith::fill_with_offset_map_gradient",
    mutates_args=(),
    schema=f"(Tensor gradient, SymInt[] sizes, {_ARGUMENTS}) -> Tensor[]",
)
def _gradient_op(gradient: torch.Tensor, sizes: Any, *arguments: Any) -> list[torch.Tensor]:
    pos, offset_map, dims, _, num_threads = _nested(*arguments)
    return fill_with_offset_map_gradient(pos, gradient, offset_map, dims, num_threads=num_threads)


@_gradient_op.register_fake
def _(gradient: torch.Tensor, sizes: Sequence[int], *_: Any) -> list[torch.Tensor]:
    return [gradient.new_empty(fake_size(size)) for size in sizes]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    value, keys, splits, offsets, offset_splits, *ctx.options = inputs
    ctx.sizes = [rows.shape[0] for rows in value]
    ctx.save_for_backward(*keys, *splits, offsets, offset_splits)


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    *parts, offsets, offset_splits = ctx.saved_tensors
    keys, splits = parts[: len(ctx.sizes)], parts[len(ctx.sizes) :]
    of_rows = torch.ops.monolith.fill_with_offset_map_gradient(
        gradient, ctx.sizes, keys, splits, offsets, offset_splits, *ctx.options
    )
    none = [None] * len(keys)
    return of_rows, none, none, *(None,) * 5


_fill_op.register_autograd(_backward, setup_context=_save)
