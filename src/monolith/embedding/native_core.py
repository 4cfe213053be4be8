"""A native table's core for the length of a call, and memory for it to fill."""

import math
from types import TracebackType

import torch

import monolith._native as _native

__all__ = ["OpenCore", "empty"]

_CPU = torch.device("cpu")


class OpenCore:
    """Gives the core in a `with`, and names verb and table where memory runs out.

    Args:
        core: lives until the call ends, also if the table is closed.
        verb: of the table.
        name: of the table.
    """

    __slots__ = ("_core", "_name", "_verb")

    def __init__(self, core: _native.Table, verb: str, name: str) -> None:
        self._core, self._verb, self._name = core, verb, name

    def __enter__(self) -> _native.Table:
        return self._core

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, MemoryError):
            raise MemoryError(f"[Table.{self._verb}] {error} (table {self._name!r})") from error


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Memory for the core to fill, whatever torch's default dtype and device are."""
    try:
        return torch.empty(shape, dtype=dtype, device=_CPU)
    except RuntimeError as error:  # torch has no class of its own for it on the CPU
        num_bytes = math.prod(shape) * dtype.itemsize
        raise MemoryError(f"out of memory: asked for {num_bytes} bytes") from error
