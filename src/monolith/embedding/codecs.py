"""Codes of weights as pure functions on tensors; the storages are listed in `views.py`."""

import torch

from monolith.embedding import reference_codecs
from monolith.embedding.arguments import as_integer, check_kind
from monolith.embedding.views import Storage, code_dtype, code_size, codec_of
from monolith.ops.native import load_native

__all__ = ["decode", "encode"]


def encode(weights: torch.Tensor, storage: Storage) -> torch.Tensor:
    """Codes of weights.

    Args:
        weights: float32 (n, dim).
        storage: "fp32", "fp16", "bf16", `FixedR8` or `OneBit`.

    Returns:
        (n, dim) of float32, float16, bfloat16 or int8; OneBit: uint8 (n, dim / 8 rounded up).

    Example:
        >>> from monolith.embedding import FixedR8
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
        return reference_codecs.encode(weights.detach().numpy(), storage)
    native.encode(name, weights.data_ptr(), n, dim, codes.data_ptr(), parameter)
    return codes


def decode(codes: torch.Tensor, storage: Storage, dim: int) -> torch.Tensor:
    """Weights of codes; the opposite of `encode`.

    Args:
        codes: as `encode` gives them.
        storage: what they were encoded for.
        dim: weights per row.

    Returns:
        float32 (n, dim).

    Example:
        >>> from monolith.embedding import OneBit
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
        return torch.from_numpy(reference_codecs.decode(codes.detach(), storage, dim))
    native.decode(name, codes.data_ptr(), len(codes), dim, weights.data_ptr(), parameter)
    return weights


def _empty(n: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(n, size, dtype=dtype, device="cpu")


def _check(
    verb: str, name: str, values: torch.Tensor, dtype: torch.dtype, size: int | None
) -> None:
    """Refuse what is not a contiguous CPU matrix of the dtype, with `size` columns if given."""
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
