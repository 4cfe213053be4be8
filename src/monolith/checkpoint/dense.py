"""Dense tensors in safetensors files."""

import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch

from monolith.checkpoint.manifest import TensorFact
from monolith.errors import DataLossError

__all__ = ["check_tensors", "facts_of", "from_bytes", "parts_of_file", "pieces_of"]

_PIECE_BYTES = 1 << 25  # of tensors in one file, unless one alone has more
_KINDS: Mapping[torch.dtype, str] = MappingProxyType(
    {
        torch.bool: "BOOL",
        torch.uint8: "U8",
        torch.int8: "I8",
        torch.int16: "I16",
        torch.int32: "I32",
        torch.int64: "I64",
        torch.float16: "F16",
        torch.bfloat16: "BF16",
        torch.float32: "F32",
        torch.float64: "F64",
    }
)


def check_tensors(where: str, tensors: Any) -> None:
    """Refuse what is no mapping of names to tensors that a file can hold.

    Raises:
        TypeError: it is something else, or a tensor is of another dtype or sparse.
    """
    if not isinstance(tensors, Mapping):
        raise TypeError(f"{where} expected dense as a mapping of names to tensors, got {tensors!r}")
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{where} expected dense tensors by name, got {type(tensor).__name__} as {name!r}"
            )
        if tensor.dtype not in _KINDS or tensor.layout != torch.strided:
            kinds = ", ".join(str(kind).removeprefix("torch.") for kind in _KINDS)
            raise TypeError(
                f"{where} expected dense tensors of {kinds}, got {tensor.dtype} and "
                f"{tensor.layout} as {name!r}"
            )


def facts_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, TensorFact]:
    """What a manifest says of tensors."""
    return {
        name: TensorFact(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in sorted(tensors.items())
    }


def pieces_of(tensors: Mapping[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """The tensors in the order of their names, cut into parts of about 32 MiB."""
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


def parts_of_file(tensors: Mapping[str, torch.Tensor]) -> Iterator[Any]:
    """Buffers that make up a safetensors file, on the memory of the tensors where that is possible.

    A tensor that shares memory with another one is written for each name. Tensors are in the order
    of their item sizes, largest first, so that each is aligned, and then of their names.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in order:
        start, end = end, end + tensors[name].numel() * tensors[name].element_size()
        kind, shape = _KINDS[tensors[name].dtype], list(tensors[name].shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        flat = tensors[name].detach().to("cpu").contiguous().reshape(-1)
        yield memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]


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
