"""Ragged data from and to Arrow lists; see `Ragged.from_arrow` and `Ragged.to_arrow`."""

import numpy as np
import pyarrow as pa
import torch

__all__ = ["from_arrow", "to_arrow"]


def from_arrow(array: pa.Array | pa.ChunkedArray) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and row splits of an array of lists, copied: Arrow's memory must not be written."""
    where = "[Ragged.from_arrow]"
    if not isinstance(array, pa.Array | pa.ChunkedArray):
        raise TypeError(f"{where} expected a pyarrow array, got {type(array).__name__}")
    kind = array.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and not (
        pa.types.is_fixed_size_list(kind)
    ):
        raise TypeError(f"{where} expected an array of lists, got type {kind}")
    item = kind.value_type
    is_number = pa.types.is_integer(item) or pa.types.is_floating(item)
    if not (is_number or pa.types.is_boolean(item)):
        raise TypeError(f"{where} expected lists of numbers, got type {kind}")
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.null_count:
        raise ValueError(
            f"{where} expected no null rows, got {array.null_count}; fill them with empty lists"
        )
    flat = array.flatten()
    if flat.null_count:
        raise ValueError(f"{where} expected no null values, got {flat.null_count}; drop them")
    lengths = array.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    splits = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    values = np.array(flat.to_numpy(zero_copy_only=False))
    return torch.from_numpy(values), torch.from_numpy(splits)


def to_arrow(values: torch.Tensor, row_splits: torch.Tensor) -> pa.LargeListArray:
    """Lists on the memory of both tensors; bool values are copied, Arrow has them as bits."""
    where = "[Ragged.to_arrow]"
    if values.dim() != 1:
        raise ValueError(
            f"{where} expected values with 1 dimension, got shape {tuple(values.shape)}"
        )
    if values.device.type != "cpu":
        raise ValueError(
            f"{where} expected values on device cpu, got {values.device}; move with .cpu()"
        )
    if values.dtype == torch.bfloat16 or values.dtype.is_complex:
        name = str(values.dtype).removeprefix("torch.")
        raise TypeError(
            f"{where} expected values of a dtype that Arrow has, got {name}; cast with .float()"
        )
    items = pa.array(values.detach().resolve_neg().numpy())
    return pa.LargeListArray.from_arrays(pa.array(row_splits.numpy()), items)
