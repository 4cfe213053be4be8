"""Dense tensors in safetensors files."""

import json
from collections.abc import Mapping
from typing import Any

import torch

from monolith.checkpoint.manifest import TensorFact
from monolith.errors import DataLossError

__all__ = ["check_tensors", "facts_of", "from_bytes", "pieces_of", "to_bytes"]

_PIECE_BYTES = 1 << 28  # of tensors in one file, unless one alone has more


def check_tensors(where: str, tensors: Any) -> None:
    """Refuse what is no mapping of names to tensors.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(tensors, Mapping):
        raise TypeError(f"{where} expected dense as a mapping of names to tensors, got {tensors!r}")
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{where} expected dense tensors by name, got {type(tensor).__name__} as {name!r}"
            )


def facts_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, TensorFact]:
    """What a manifest says of tensors."""
    return {
        name: TensorFact(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in sorted(tensors.items())
    }


def pieces_of(tensors: Mapping[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """The tensors in the order of their names, cut into parts of about 256 MiB."""
    pieces: list[dict[str, torch.Tensor]] = []
    num_bytes = 0
    for name, tensor in sorted(tensors.items()):
        size = tensor.numel() * tensor.element_size()
        if not pieces or num_bytes + size > _PIECE_BYTES:
            pieces.append({})
            num_bytes = 0
        pieces[-1][name] = tensor
        num_bytes += size
    return pieces


def to_bytes(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """A safetensors file; tensors that share memory are written once for each name."""
    from safetensors.torch import save

    seen: set[int] = set()
    alone = {}
    for name, tensor in tensors.items():
        value = tensor.detach().to("cpu").contiguous()
        memory = value.untyped_storage().data_ptr()
        alone[name] = value.clone() if memory in seen else value
        seen.add(memory)
    data: bytes = save(alone, {"format": "pt"})
    return data


def from_bytes(data: bytes, facts: Mapping[str, TensorFact], where: str) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, which have to be those of the manifest.

    Raises:
        DataLossError: it is another file, or none.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors: dict[str, torch.Tensor] = load(data)
    except (SafetensorError, ValueError, KeyError, AssertionError, RuntimeError) as error:
        raise DataLossError(
            f"[load_tables] expected a safetensors file, got: {error} ({where})"
        ) from error
    if (got := facts_of(tensors)) != facts:
        names = {"expected": sorted(facts), "got": sorted(got)}
        raise DataLossError(
            f"[load_tables] expected the tensors that the manifest names, got others ({where}): "
            f"{json.dumps(names)}"
        )
    return tensors
