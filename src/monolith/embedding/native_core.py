"""A native table's core for the length of a call, and memory for it to fill."""

import math
from collections.abc import Iterable
from types import TracebackType
from typing import Generic, TypeVar

import torch

from monolith.embedding.rows import Rows

__all__ = ["OpenCore", "column_buffers", "empty", "empty_rows"]

Core = TypeVar("Core")
_CPU = torch.device("cpu")


class OpenCore(Generic[Core]):
    """Gives the core in a `with`, and names verb and table where memory runs out.

    Args:
        core: lives until the call ends, also if the table is closed.
        verb: of the owner.
        name: of the table; empty where there are several.
        owner: whose call it is.
    """

    __slots__ = ("_core", "_name", "_owner", "_verb")

    def __init__(self, core: Core, verb: str, name: str = "", *, owner: str = "Table") -> None:
        self._core, self._verb, self._name, self._owner = core, verb, name, owner

    def __enter__(self) -> Core:
        return self._core

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, MemoryError):
            which = f" (table {self._name!r})" if self._name else ""
            raise MemoryError(f"[{self._owner}.{self._verb}] {error}{which}") from error


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Memory for the core to fill, whatever torch's default dtype and device are."""
    try:
        return torch.empty(shape, dtype=dtype, device=_CPU)
    except RuntimeError as error:  # torch has no class of its own for it on the CPU
        raise _out_of_memory(math.prod(shape) * dtype.itemsize) from error


def empty_rows(num_rows: int, num_columns: int, stride: int) -> torch.Tensor:
    """The same for float32 rows that begin `stride` values after each other; no view of another."""
    try:
        return torch.empty_strided(
            (num_rows, num_columns), (stride, 1), dtype=torch.float32, device=_CPU
        )
    except RuntimeError as error:
        raise _out_of_memory(num_rows * stride * 4) from error


def _out_of_memory(num_bytes: int) -> MemoryError:
    return MemoryError(f"out of memory: asked for {num_bytes} bytes")


def column_buffers(rows: Rows, names: Iterable[str]) -> tuple[int, list[int], list[int]]:
    """Address of the times; addresses of the columns, and bytes of a row, in the order named."""
    columns = [rows.columns[name] for name in names]
    sizes = [column.shape[1] * column.element_size() for column in columns]
    return rows.times.data_ptr(), [column.data_ptr() for column in columns], sizes
