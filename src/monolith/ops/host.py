"""New tensors on the CPU for the compiled core, whatever torch's default dtype and device are."""

from collections.abc import Sequence

import torch

__all__ = ["host_empty", "host_int64", "host_range", "host_zeros"]


def host_empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor that is still to be filled."""
    return torch.empty(shape, dtype=dtype, device="cpu")


def host_zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of zeros."""
    return torch.zeros(shape, dtype=dtype, device="cpu")


def host_range(size: int) -> torch.Tensor:
    """The numbers 0, 1, ..., size - 1; int64."""
    return torch.arange(size, dtype=torch.int64, device="cpu")


def host_int64(numbers: Sequence[int]) -> torch.Tensor:
    """The numbers as int64."""
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")
