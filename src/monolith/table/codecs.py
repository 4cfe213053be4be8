"""Encoding of weights for storage, and of rows for serving tables."""

from typing import TYPE_CHECKING

import torch

from monolith.ops.compiled import load_native
from monolith.table.arguments import as_integer, check_kind
from monolith.table.config import TableConfig, segment_name, segments_of, storage_of
from monolith.table.precision import OneBit, Storage, code_dtype, code_size, codec_of
from monolith.table.rows import Entries, Rows

if TYPE_CHECKING:
    from typing import TypeGuard


def encode(weights: torch.Tensor, storage: Storage) -> torch.Tensor:
    """Return the codes of weights.

    Args:
        weights: weights, float32 (n, dim).
        storage: "fp32", "fp16", "bf16", `FixedR8` or `OneBit`.

    Returns:
        (n, dim) of float32, float16, bfloat16 or int8; for OneBit, uint8 (n, dim / 8 rounded up).

    Example:
        >>> from monolith.table import FixedR8
        >>> encode(torch.tensor([[0.1, -0.7, 2.0]]), FixedR8(1.0))
        tensor([[ 13, -90, 127]], dtype=torch.int8)
    """
    name, parameter = codec_of(storage)
    _check("encode", "weights", weights, torch.float32, None)
    n, dim = weights.shape
    codes = _empty(n, code_size(storage, dim), getattr(torch, code_dtype(storage)))
    try:
        native = load_native()
    except ImportError:
        from monolith.table.reference import rounding

        return rounding.encode(weights.detach().numpy(), storage)
    native.encode(name, weights.data_ptr(), n, dim, codes.data_ptr(), parameter)
    return codes


def decode(codes: torch.Tensor, storage: Storage, dim: int) -> torch.Tensor:
    """Return the weights of codes; the inverse of `encode`.

    Args:
        codes: codes, as returned by `encode`.
        storage: storage of the codes.
        dim: number of weights per row.

    Returns:
        float32 (n, dim).

    Example:
        >>> from monolith.table import OneBit
        >>> sign = OneBit(amplitude=0.25)
        >>> decode(encode(torch.tensor([[0.5, -7.0]]), sign), sign, 2)
        tensor([[ 0.2500, -0.2500]])
    """
    name, parameter = codec_of(storage)
    dim = as_integer("[decode]", "dim", dim)
    dtype = getattr(torch, code_dtype(storage))
    _check("decode", "codes", codes, dtype, code_size(storage, dim))
    weights = _empty(len(codes), dim, torch.float32)
    try:
        native = load_native()
    except ImportError:
        from monolith.table.reference import rounding

        return torch.from_numpy(rounding.decode(codes.detach(), storage, dim))
    native.decode(name, codes.data_ptr(), len(codes), dim, weights.data_ptr(), parameter)
    return weights


def _empty(n: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(n, size, dtype=dtype, device="cpu")


def _check(
    verb: str, name: str, values: torch.Tensor, dtype: torch.dtype, size: int | None
) -> None:
    """Refuse values that are no contiguous CPU matrix of the dtype and of `size` columns."""
    check_kind(f"[{verb}]", name, values, torch.Tensor)
    if values.dtype != dtype:
        raise TypeError(f"[{verb}] expected {name} of dtype {dtype}, got {values.dtype}")
    if values.device.type != "cpu" or values.dim() != 2 or not values.is_contiguous():
        raise ValueError(
            f"[{verb}] expected {name} as a contiguous matrix on device cpu, got shape "
            f"{tuple(values.shape)}, strides {values.stride()} on {values.device}"
        )
    if size is not None and values.shape[1] != size:
        raise ValueError(f"[{verb}] expected {name} with {size} columns, got {values.shape[1]}")


def read_weights(config: TableConfig, entries: Entries, step: int) -> torch.Tensor:
    """Return the weights that a lookup at a step returns for whole rows; absent rows are zeros.

    A view is applied in numpy: slower than the core, to the same bits.

    Args:
        config: settings of the table.
        entries: rows as the table stores them; the result may share their memory.
        step: training step, for a `OneBit` view.

    Returns:
        float32 (num_keys, dim).
    """
    segments, is_viewed = segments_of(config), config.kind != "serving"
    parts = []
    for i, segment in enumerate(segments):
        codes, storage = (
            entries.rows.columns[f"weight/{segment_name(config, i)}"],
            storage_of(config, i),
        )
        parts.append(codes if storage == "fp32" else decode(codes, storage, segment.dim))
    weights = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    if is_viewed and any(segment.view is not None for segment in segments):
        from monolith.table.reference import rounding

        weights = torch.from_numpy(rounding.view_rows(config, weights.numpy(), step))
    elif any(isinstance(storage_of(config, i), OneBit) for i in range(len(segments))):
        weights[~entries.present] = 0  # the code of an absent row is that of negative weights
    return weights


_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def encode_rows(config: TableConfig, rows: Rows) -> Rows:
    """Return the rows with float weights encoded as the table stores weights.

    Columns with codes, and unknown columns, stay unchanged.
    """
    columns = dict(rows.columns)
    for i, segment in enumerate(segments_of(config)):
        name, storage = f"weight/{segment_name(config, i)}", storage_of(config, i)
        column = columns.get(name)
        if _is_weights(column, segment.dim) and column.dtype != _dtype(config, i):
            columns[name] = encode(column.detach().to(torch.float32), storage)
    return Rows(rows.keys, rows.times, columns)


def is_zero(config: TableConfig, rows: Rows) -> torch.Tensor:
    """Return whether all weights of each row are zero, bool (n,). The rows are checked."""
    zero = torch.ones(len(rows), dtype=torch.bool, device="cpu")
    for i, segment in enumerate(segments_of(config)):
        column = rows.columns[f"weight/{segment_name(config, i)}"].detach()
        if column.dtype == _dtype(config, i):
            column = decode(column, storage_of(config, i), segment.dim)
        zero &= (column == 0).all(dim=1)
    return zero


def _dtype(config: TableConfig, index: int) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, code_dtype(storage_of(config, index)))
    return dtype


def _is_weights(column: torch.Tensor | None, dim: int) -> "TypeGuard[torch.Tensor]":
    """Whether `encode` accepts a column; the checks of the verb refuse other columns."""
    return (
        isinstance(column, torch.Tensor)
        and column.dtype in _FLOATS
        and column.device.type == "cpu"
        and column.dim() == 2
        and column.shape[1] == dim
        and column.is_contiguous()
    )
