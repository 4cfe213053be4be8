"""Rows on their way into a serving table: encoding, and leaving out those that are zero."""

from typing import TYPE_CHECKING

import torch

from monolith.embedding.codecs import decode, encode
from monolith.embedding.config import TableConfig, segment_name, segments_of, storage_of
from monolith.embedding.rows import Rows
from monolith.embedding.views import code_dtype

if TYPE_CHECKING:
    from typing import TypeGuard

__all__ = ["encoded", "is_zero"]

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def encoded(config: TableConfig, rows: Rows) -> Rows:
    """The rows with float weights encoded as the table stores them.

    Columns that are codes already, or that no table has, stay as they are.
    """
    columns = dict(rows.columns)
    for i, segment in enumerate(segments_of(config)):
        name, storage = f"weight/{segment_name(config, i)}", storage_of(config, i)
        column = columns.get(name)
        if _is_weights(column, segment.dim) and column.dtype != _dtype(config, i):
            columns[name] = encode(column.detach().to(torch.float32), storage)
    return Rows(rows.keys, rows.times, columns)


def is_zero(config: TableConfig, rows: Rows) -> torch.Tensor:
    """Whether all weights of a row are zero, bool (n,). The rows are checked."""
    zero = torch.ones(len(rows), dtype=torch.bool, device="cpu")
    for i, segment in enumerate(segments_of(config)):
        column = rows.columns[f"weight/{segment_name(config, i)}"].detach()
        if column.dtype == _dtype(config, i):
            column = decode(column, storage_of(config, i), segment.dim)
        zero &= (column == 0).all(dim=1)
    return zero


def _dtype(config: TableConfig, index: int) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, code_dtype(storage_of(config, index)))
    return dtype


def _is_weights(column: torch.Tensor | None, dim: int) -> "TypeGuard[torch.Tensor]":
    """Whether `encode` will take it; the rest is refused by the checks of the verb."""
    return (
        isinstance(column, torch.Tensor)
        and column.dtype in _FLOATS
        and column.device.type == "cpu"
        and column.dim() == 2
        and column.shape[1] == dim
        and column.is_contiguous()
    )
