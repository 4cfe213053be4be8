"""Reshape many tensors in one call."""

import math
from collections.abc import Iterable, Sequence

import torch

Shape = Sequence[int | None]
"""A shape; `None` is a dimension that the number of elements tells."""


def resolve_shape(shape: Shape, numel: int) -> tuple[int, ...] | None:
    """The shape with its one unknown dimension filled in; None where that is impossible.

    Example:
        >>> resolve_shape((None, 2), 12), resolve_shape((5,), 12), resolve_shape((None, None), 12)
        ((6, 2), None, None)
    """
    if None not in shape:
        dims: tuple[int, ...] = tuple(shape)  # type: ignore[arg-type]
        return dims if math.prod(dims) == numel and (not dims or min(dims) >= 0) else None
    known = [dim for dim in shape if dim is not None]
    product = math.prod(known)
    if len(shape) - len(known) > 1 or min(known, default=0) < 0 or product == 0:
        return None
    if numel < 0 or numel % product != 0:
        return None
    return tuple(numel // product if dim is None else dim for dim in shape)


def static_reshape(
    inputs: Iterable[torch.Tensor], shapes: Iterable[Shape]
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Reshape each tensor to its shape: views where torch can make them; differentiable.

    Args:
        inputs: tensors of any dtypes.
        shapes: one for each; at most one dimension of a shape may be `None`.

    Returns:
        The tensors, and the number of elements of each, int64 (num_inputs,).

    Raises:
        TypeError: an input is no tensor.
        ValueError: the numbers differ, or a shape does not fit its input.

    Example:
        >>> outputs, sizes = static_reshape([torch.ones(4, 10), torch.ones(6)], [(5, 8), (None, 2)])
        >>> [tuple(output.shape) for output in outputs], sizes
        ([(5, 8), (3, 2)], tensor([40,  6]))
    """
    where = "[static_reshape]"
    inputs, shapes = list(inputs), list(shapes)
    if len(inputs) != len(shapes):
        raise ValueError(
            f"{where} expected a shape for each input, got {len(inputs)} inputs and "
            f"{len(shapes)} shapes"
        )
    dims: list[int] = []
    ranks: list[int] = []
    for i, (tensor, shape) in enumerate(zip(inputs, shapes, strict=True)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{where} expected input {i} as a tensor, got {type(tensor).__name__}")
        resolved = resolve_shape(shape, tensor.numel())
        if resolved is None:
            raise ValueError(
                f"{where} expected a shape for the {tensor.numel()} elements of input {i} of shape "
                f"{tuple(tensor.shape)}, got {tuple(shape)}; one dimension may be None"
            )
        dims.extend(resolved)
        ranks.append(len(resolved))
    outputs, sizes = torch.ops.monolith.monolith_static_reshape_n(list(inputs), dims, ranks)
    return list(outputs), sizes


class StaticReshapeNBuilder:
    """Gathers tensors and shapes for one `static_reshape`. Not safe from several threads.

    Example:
        >>> builder = StaticReshapeNBuilder()
        >>> builder.add(torch.ones(2, 3), (None,)), builder.add(torch.ones(4), (2, 2))
        (0, 1)
        >>> [tuple(output.shape) for output in builder.build()[0]]
        [(6,), (2, 2)]
    """

    def __init__(self) -> None:
        self._inputs: list[torch.Tensor] = []
        self._shapes: list[Shape] = []

    def add(self, input: torch.Tensor, shape: Shape) -> int:  # noqa: A002 - the reference's name
        """Store one pair; its position among the outputs of `build`."""
        self._inputs.append(input)
        self._shapes.append(shape)
        return len(self._inputs) - 1

    def build(self) -> tuple[list[torch.Tensor], torch.Tensor]:
        """`static_reshape` of all pairs; may be called again."""
        return static_reshape(self._inputs, self._shapes)


# Made of torch's own ops, so it needs neither a formula for gradients nor a fake kernel.
torch.library.define(
    "monolith::monolith_static_reshape_n",
    "(Tensor[] inputs, SymInt[] dims, int[] ranks) -> (Tensor[], Tensor)",
)


@torch.library.impl("monolith::monolith_static_reshape_n", "CompositeImplicitAutograd")
def _static_reshape_n(
    inputs: list[torch.Tensor], dims: list[int], ranks: list[int]
) -> tuple[list[torch.Tensor], torch.Tensor]:
    outputs, begin = [], 0
    for tensor, rank in zip(inputs, ranks, strict=True):
        outputs.append(tensor.reshape(dims[begin : begin + rank]))
        begin += rank
    sizes = [output.numel() for output in outputs]
    return outputs, torch.tensor(sizes, dtype=torch.int64, device="cpu")
