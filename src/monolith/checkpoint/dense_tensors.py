"""Collect dense tensors from modules, describe them, and store them as safetensors files."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch

from monolith.checkpoint.manifest import TensorFact
from monolith.errors import DataLossError

_COMPILED = "_orig_mod."  # of the names in a module that torch compiled
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
_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {kind: dtype for dtype, kind in _KINDS.items()}
)


def check_tensors(where: str, tensors: Any) -> None:
    """Refuse anything but a mapping of names to tensors that a file can hold.

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


def join_tensors(where: str, *groups: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors of all groups by name.

    Raises:
        ValueError: two tensors have one name.
    """
    joined: dict[str, torch.Tensor] = {}
    for group in groups:
        if twice := joined.keys() & group.keys():
            raise ValueError(
                f"{where} expected each name of a tensor once, got {min(twice)!r} twice; one of "
                "them may be in the state of an object"
            )
        joined |= group
    return joined


def module_tensors(where: str, prefix: str, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by name, the same for a module that torch has compiled.

    Args:
        where: begins the message.
        prefix: begins the names.
        module: the module.

    Raises:
        TypeError: the module has a state that is no tensor.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{where} expected tensors as the state of a module, got {type(tensor).__name__} "
                f"as {prefix + name!r}; keep it in a buffer, or save tables with tables= and the "
                "dense modules alone"
            )
        tensors[prefix + name.replace(_COMPILED, "")] = tensor
    return tensors


def describe(items: Iterable[tuple[str, str, Any]]) -> dict[str, dict[str, Any]]:
    """Return dtype and shape of tensors by device and name, as JSON; None for other objects.

    Args:
        items: device, name and value of each tensor or object.
    """
    devices: dict[str, dict[str, Any]] = {}
    for device, name, value in items:
        fact = None
        if isinstance(value, torch.Tensor):
            fact = {"dtype": str(value.dtype), "shape": list(value.shape)}
        devices.setdefault(device, {})[name] = fact
    return devices


def facts_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, TensorFact]:
    """Return what a manifest says of tensors."""
    return {
        name: TensorFact(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in sorted(tensors.items())
    }


def pieces_of(tensors: Mapping[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Return the tensors in the order of their names, in parts of about 32 MiB."""
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
    """Yield the buffers of a safetensors file, on the memory of the tensors where that is possible.

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
        flat = tensors[name].detach().to("cpu").contiguous()
        flat = flat.as_strided((flat.numel(),), (1,))  # one element may have any stride
        yield memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]


def from_memory(data: Any, facts: Mapping[str, TensorFact], where: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file, which have to be those of the manifest.

    Args:
        data: a buffer with the bytes of the file; the tensors lie in it, and keep it.
        facts: what the manifest says of the tensors.
        where: path of the file, for messages.

    Raises:
        DataLossError: the file is another one, or no safetensors file.
    """
    tensors = read_tensors(data, where)
    if (got := facts_of(tensors)) != facts:
        names = {"expected": sorted(facts), "got": sorted(got)}
        raise DataLossError(
            f"[load_tables] expected the tensors that the manifest names, got others ({where}): "
            f"{json.dumps(names)}"
        )
    return tensors


def read_tensors(data: Any, where: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file, which lie in a buffer with the bytes of the file.

    Raises:
        DataLossError: the bytes are no safetensors file.
    """
    try:
        start, header = _header(memoryview(data))
        return {name: _tensor(data, start, item) for name, item in header.items()}
    except (ValueError, TypeError, KeyError, RuntimeError, RecursionError) as error:
        raise DataLossError(
            f"[load_tables] expected a safetensors file, got: {error} ({where})"
        ) from error


def _header(view: memoryview) -> tuple[int, dict[str, Any]]:
    """Return the offset of the first tensor, and dtype, shape and place by name."""
    start = 8 + int.from_bytes(view[:8], "little")
    if not 8 < start <= len(view):
        raise ValueError(f"a header up to byte {start} of {len(view)}")
    header = json.loads(bytes(view[8:start]))
    if not isinstance(header, dict):
        raise TypeError(f"a header of {type(header).__name__}")
    header.pop("__metadata__", None)
    return start, header


def _tensor(data: Any, start: int, item: Any) -> torch.Tensor:
    dtype, shape = _DTYPES[item["dtype"]], item["shape"]
    first, end = (start + offset for offset in item["data_offsets"])
    size = math.prod(shape)
    is_inside = start <= first <= end <= len(memoryview(data)) and min(shape, default=0) >= 0
    if not is_inside or end - first != size * dtype.itemsize:
        raise ValueError(f"a tensor of {item} in {len(memoryview(data)) - start} bytes")
    if size == 0:
        return torch.empty(shape, dtype=dtype, device="cpu")
    if first % dtype.itemsize:  # of another writer
        data, first = bytearray(memoryview(data)[first:end]), 0
    return torch.frombuffer(data, dtype=dtype, count=size, offset=first).reshape(shape)
