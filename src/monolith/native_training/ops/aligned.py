"""Lay tensors one after another in one flat vector, each at an aligned place.

    inputs    (3,)  (2, 2)         flat    x x x 0 0 ... | y y y y 0 0 ...
                                           0               16               32

One vector of all gradients is reduced in one call; the parts are read where they lie.
"""

from collections.abc import Sequence

import torch

from monolith.native_training.ops.packing import check_alike
from monolith.ops.ragged import name_of

_ALIGNMENT = 16  # elements: 64 bytes of float32


def aligned_flat_concat(inputs: Sequence[torch.Tensor], scale: float = 1.0) -> torch.Tensor:
    """One vector of all elements times `scale`; differentiable, on any device.

    Each tensor begins at a multiple of 16 elements; the gaps are 0.

    Args:
        inputs: of one floating dtype, on one device; at least one.
        scale: what every element is multiplied by.

    Raises:
        TypeError: an input is no tensor, not of a floating dtype, or dtypes differ.
        ValueError: there is no input, one is not dense, or devices differ.

    Example:
        >>> flat = aligned_flat_concat([torch.ones(2), torch.full((1, 1), 3.0)], 0.5)
        >>> flat.shape, flat[[0, 1, 2, 16, 17]]
        (torch.Size([32]), tensor([0.5000, 0.5000, 0.0000, 1.5000, 0.0000]))
    """
    where = "[aligned_flat_concat]"
    if not inputs:
        raise ValueError(f"{where} expected at least 1 tensor, got 0")
    check_alike(where, [f"inputs[{i}]" for i in range(len(inputs))], list(inputs))
    if not inputs[0].is_floating_point():
        raise TypeError(
            f"{where} expected tensors of a floating dtype, got {name_of(inputs[0].dtype)}"
        )
    zeros = inputs[0].new_zeros(_ALIGNMENT)
    pieces = []
    for tensor in inputs:
        flat = tensor.reshape(-1)
        pieces += [flat, zeros[: _gap(flat.shape[0])]]
    joined = torch.cat(pieces)
    return joined if scale == 1.0 else joined.mul_(scale)


def aligned_flat_split(
    inputs_for_shape: Sequence[torch.Tensor], flat: torch.Tensor
) -> list[torch.Tensor]:
    """The tensors of `aligned_flat_concat` again, as views of the vector; differentiable.

    Args:
        inputs_for_shape: what was put together; only their shapes count.
        flat: the vector.

    Raises:
        TypeError: `flat` is no tensor.
        ValueError: it has another shape than the inputs make.

    Example:
        >>> inputs = [torch.ones(2), torch.full((1, 1), 3.0)]
        >>> aligned_flat_split(inputs, aligned_flat_concat(inputs))
        [tensor([1., 1.]), tensor([[3.]])]
    """
    where = "[aligned_flat_split]"
    if not isinstance(flat, torch.Tensor):
        raise TypeError(f"{where} expected flat as a tensor, got {type(flat).__name__}")
    sizes = []
    for tensor in inputs_for_shape:
        sizes += [tensor.numel(), _gap(tensor.numel())]
    if tuple(flat.shape) != (sum(sizes),):
        raise ValueError(
            f"{where} expected flat of shape ({sum(sizes)},), got {tuple(flat.shape)}; make it "
            "with aligned_flat_concat of the same shapes"
        )
    pieces = flat.split_with_sizes(sizes)[::2]
    return [
        piece.view(tensor.shape) for piece, tensor in zip(pieces, inputs_for_shape, strict=True)
    ]


def _gap(size: int) -> int:
    """Elements from the end of a tensor to the next place."""
    return -size % _ALIGNMENT
