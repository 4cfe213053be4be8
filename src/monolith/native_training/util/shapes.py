"""Tell shapes, as far as they are known."""

import operator
from typing import Any, Protocol

import torch


class HasShape(Protocol):
    """A tensor, an array, or a description of one, whose `shape` is None or a sequence."""

    @property
    def shape(self) -> Any:
        """Sizes; an unknown one is None or a symbol."""


def get_ndim(x: HasShape) -> int | None:
    """Number of dimensions; None if it is unknown.

    Example:
        >>> get_ndim(torch.zeros(2, 3))
        2
    """
    return None if x.shape is None else len(x.shape)


def int_shape(x: HasShape) -> tuple[int, ...] | None:
    """Sizes, with -1 for those that are not known: symbols of a traced graph, ragged ones, None.

    Returns:
        None if the number of dimensions is unknown, or if a size is no number.

    Example:
        >>> int_shape(torch.zeros(2, 3, device="meta"))
        (2, 3)
    """
    if x.shape is None:
        return None
    try:
        return tuple(_size(size) for size in x.shape)
    except TypeError:
        return None


def _size(size: Any) -> int:
    return -1 if size is None or isinstance(size, torch.SymInt) else operator.index(size)
