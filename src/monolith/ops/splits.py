"""Checks that ragged types share: an index that divides values into rows."""

import torch

__all__ = ["as_index", "check_splits", "name_of"]


def as_index(where: str, name: str, values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The index as contiguous int64; refuses what cannot divide values, as far as shapes tell."""
    for argument, tensor in (("values", values), (name, index)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{where} expected {argument} as a torch.Tensor, got {type(tensor).__name__}"
            )
        if tensor.layout != torch.strided or tensor.is_nested:
            layout = "nested" if tensor.is_nested else name_of(tensor.layout)
            raise ValueError(f"{where} expected {argument} as a dense tensor, got layout {layout}")
    if values.dim() == 0:
        raise ValueError(f"{where} expected values with at least 1 dimension, got shape ()")
    if index.dtype not in (torch.int64, torch.int32):
        raise TypeError(
            f"{where} expected {name} of dtype int64 or int32, got {name_of(index.dtype)}; "
            "cast with .long()"
        )
    if index.dim() != 1:
        raise ValueError(
            f"{where} expected {name} with 1 dimension, got shape {tuple(index.shape)}"
        )
    if index.device != values.device:
        raise ValueError(
            f"{where} expected {name} on device {values.device}, that of values, "
            f"got {index.device}; move with .to({str(values.device)!r})"
        )
    return index.long().contiguous()


def check_splits(where: str, name: str, splits: torch.Tensor, num_values: int) -> None:
    """Refuse what does not run from 0 to the number of values without a step back."""
    if splits.shape[0] == 0:
        raise ValueError(f"{where} expected {name} with at least 1 entry, got 0; no rows are [0]")
    if torch.compiler.is_compiling() or splits.is_meta:
        return
    host = splits.cpu().numpy()  # one wait for the device; numpy is faster on short arrays
    if host[0] != 0:
        raise ValueError(f"{where} expected {name} that begin with 0, got {host[0]}")
    backwards = host[1:] < host[:-1]
    if backwards.any():
        i = int(backwards.argmax())
        raise ValueError(
            f"{where} expected {name} that never decrease, got {host[i]} before {host[i + 1]} "
            f"at index {i}"
        )
    if host[-1] != num_values:
        raise ValueError(
            f"{where} expected {name} that end with {num_values}, the number of values, "
            f"got {host[-1]}"
        )


def name_of(kind: torch.dtype | torch.layout) -> str:
    """`float32` for torch.float32.

    Example:
        >>> name_of(torch.float32)
        'float32'
    """
    return str(kind).removeprefix("torch.")
