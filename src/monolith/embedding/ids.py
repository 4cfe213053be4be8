"""Ids as modules and features take them."""

import torch

__all__ = ["as_keys"]


def as_keys(where: str, name: str, ids: torch.Tensor) -> torch.Tensor:
    """Ids as an int64 tensor in main memory; int32 is widened, the rest refused."""
    if not isinstance(ids, torch.Tensor):
        raise TypeError(
            f"{where} expected {name} as a torch.Tensor, got {type(ids).__name__}; "
            "make one with torch.tensor"
        )
    if ids.is_nested:
        raise TypeError(
            f"{where} expected {name} as a dense tensor or a Ragged, got a nested tensor; make a "
            "Ragged of it with Ragged.from_nested"
        )
    if ids.dtype != torch.int64:
        if ids.dtype != torch.int32:
            raise TypeError(
                f"{where} expected {name} of dtype int64 or int32, got "
                f"{str(ids.dtype).removeprefix('torch.')}; cast with .long()"
            )
        ids = ids.long()
    if not ids.is_cpu:
        raise ValueError(
            f"{where} expected {name} on device cpu, got {ids.device}; move with .cpu(), and the "
            "output to the device of the model"
        )
    return ids
