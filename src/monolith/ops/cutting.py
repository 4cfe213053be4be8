"""Rows cut into parts whose lengths a tensor tells."""

from collections.abc import Sequence
from typing import Any

import torch

from monolith.ops.graph_ops import graph_op, unknown_size

__all__ = ["cut_rows"]


def cut_rows(
    rows: torch.Tensor, sizes: torch.Tensor, num_parts: int, what: str
) -> list[torch.Tensor]:
    """The parts one after another; differentiable. Views, but copies in a compiled program.

    Args:
        rows: (n, ...).
        sizes: of the parts, int64 (num_parts,).
        num_parts: their number, which a graph must know.
        what: begins the message, and names the rows: "[split_by_indices] expected {} rows".

    Raises:
        ValueError: the sizes do not sum up to n.

    Example:
        >>> cut_rows(torch.arange(3), torch.tensor([1, 0, 2]), 3, "[cut_rows] expected {} rows")
        [tensor([0]), tensor([], dtype=torch.int64), tensor([1, 2])]
    """
    if torch.compiler.is_compiling():
        return list(torch.ops.monolith.cut_rows(rows, sizes, num_parts, what))
    lengths = sizes.tolist()
    try:
        return list(torch.split(rows, lengths))
    except RuntimeError as error:
        raise ValueError(f"{what.format(sum(lengths))}, got {rows.shape[0]}") from error


@torch.library.custom_op(
    "monolith::cut_rows",
    mutates_args=(),
    schema="(Tensor rows, Tensor sizes, int num_parts, str what) -> Tensor[]",
)
def _cut_op(
    rows: torch.Tensor, sizes: torch.Tensor, num_parts: int, what: str
) -> list[torch.Tensor]:
    return [part.clone() for part in cut_rows(rows.contiguous(), sizes, num_parts, what)]


@_cut_op.register_fake
def _(rows: torch.Tensor, sizes: Any, num_parts: int, what: Any) -> list[torch.Tensor]:
    return [rows.new_empty((unknown_size(), *rows.shape[1:])) for _ in range(num_parts)]


# torch.cat in a graph cannot know that the sizes of the parts sum up to that of the rows.
@graph_op(
    "join_rows(Tensor[] parts, SymInt size) -> Tensor",
    lambda parts, size: parts[0].new_empty((size, *parts[0].shape[1:])),
)
def _join(parts: Sequence[torch.Tensor], size: int) -> torch.Tensor:
    return torch.cat(list(parts)) if len(parts) > 1 else parts[0].clone()


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.size = inputs[0].shape[0]


def _backward(ctx: Any, gradients: list[torch.Tensor]) -> tuple[torch.Tensor, None, None, None]:
    return torch.ops.monolith.join_rows(gradients, ctx.size), None, None, None


_cut_op.register_autograd(_backward, setup_context=_save)
