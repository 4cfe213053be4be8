"""Check tensors before their addresses go to the compiled core."""

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from monolith.native_training.ops.graph_ops import graph_check


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


Widths = Sequence[int] | torch.Tensor  # of slots; a tensor where they are many

_FEW_IDS = 4096  # below, a second thread costs more than it saves


def dtype_name(dtype: torch.dtype) -> str:
    """`int64`, not `torch.int64`."""
    return str(dtype).removeprefix("torch.")


def check_tensor(
    where: str,
    name: str,
    tensor: Any,
    dtype: torch.dtype | tuple[torch.dtype, ...] | None = None,
    dims: int | None = None,
) -> torch.Tensor:
    """The tensor, contiguous.

    Args:
        where: starts the message, as in "[split_by_indices]".
        name: of the argument.
        tensor: to be looked at.
        dtype: one of these; None: any.
        dims: number of dimensions; None: any.

    Raises:
        TypeError: it is no tensor, or of another dtype.
        ValueError: it is no dense tensor on the CPU, has no values (a meta or fake tensor), or has
            another number of dimensions.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{where} expected {name} as a torch.Tensor, got {type(tensor).__name__}")
    allowed = (dtype,) if isinstance(dtype, torch.dtype) else dtype
    if allowed is not None and tensor.dtype not in allowed:
        texts = " or ".join(map(dtype_name, allowed))
        raise TypeError(
            f"{where} expected {name} of dtype {texts}, got {dtype_name(tensor.dtype)}; "
            f"cast with .to({allowed[0]})"
        )
    if tensor.layout != torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        raise ValueError(
            f"{where} expected {name} as a dense tensor on the CPU, got layout {layout} on "
            f"{tensor.device}"
        )
    if not torch.compiler.is_compiling():
        _check_memory(where, name, tensor)
    if dims is not None and tensor.dim() != dims:
        raise ValueError(
            f"{where} expected {name} with {dims} dimension{'s' * (dims != 1)}, got shape "
            f"{tuple(tensor.shape)}"
        )
    return tensor.contiguous()


def _check_memory(where: str, name: str, tensor: torch.Tensor) -> None:
    """Refuse what has no values in memory that the core can read."""
    if isinstance(tensor, FakeTensor):
        raise ValueError(f"{where} expected {name} with values, got a fake tensor")
    if not tensor.is_cpu:
        raise ValueError(f"{where} expected {name} on device cpu, got {tensor.device}")


@graph_check("check_range(str where, str name, Tensor numbers, SymInt size) -> Tensor")
def check_range(where: str, name: str, numbers: torch.Tensor, size: int) -> torch.Tensor:
    """The numbers; a compiled program checks them each time it runs.

    Raises:
        ValueError: one is not in [0, size).
    """
    if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < size:
        raise ValueError(
            f"{where} expected {name} in [0, {size}), got {int(numbers.min())} to "
            f"{int(numbers.max())}"
        )
    return numbers


def default_threads(num_ids: int) -> int:
    """Threads of a call on so many ids."""
    return torch.get_num_threads() if num_ids >= _FEW_IDS else 1


def check_threads(where: str, num_threads: int | None) -> int:
    """The number, 0 for None.

    Raises:
        ValueError: it is below 1.
    """
    if num_threads is not None and num_threads < 1:
        raise ValueError(f"{where} expected num_threads of at least 1, got {num_threads}")
    return num_threads or 0


def check_widths(where: str, dims: Widths, num_rows: int) -> torch.Tensor:
    """The widths as int64.

    Raises:
        TypeError: they are a tensor of another dtype.
        ValueError: there is not one for each row, or one is not positive.
    """
    if isinstance(dims, torch.Tensor):
        widths = check_tensor(where, "dims", dims, torch.int64, 1)
    else:
        widths = host_int64(dims)
    if len(widths) != num_rows or (num_rows and int(widths.min()) < 1):
        raise ValueError(
            f"{where} expected {num_rows} dims of at least 1, one per row, got {widths.tolist()}"
        )
    return widths


def graph_widths(dims: Widths) -> list[int]:
    """The widths as numbers of a graph."""
    return dims.tolist() if isinstance(dims, torch.Tensor) else list(dims)
