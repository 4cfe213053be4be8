"""Bags as the C++ core takes them: addresses and sizes."""

import torch

from monolith.embedding.bags import BagGradients, Bags

__all__ = ["BagsTuple", "address", "bags_tuple", "piece_tuple"]

BagsTuple = tuple[int, int, int, int, str, int]


def address(tensor: torch.Tensor | None) -> int:
    """Of the first value; 0 of nothing."""
    return 0 if tensor is None else tensor.data_ptr()


def bags_tuple(bags: Bags) -> BagsTuple:
    """Keys, their number, row splits or 0, number of bags, mode, weights."""
    keys, splits = bags.keys, bags.row_splits
    if isinstance(splits, int):
        at, num_bags = 0, splits
    else:
        at, num_bags = splits.data_ptr(), splits.numel() - 1
    return keys.data_ptr(), keys.numel(), at, num_bags, bags.mode, address(bags.weights)


def piece_tuple(piece: BagGradients) -> tuple[BagsTuple, int, int]:
    """Bags, gradients, winners."""
    return bags_tuple(piece.bags), piece.gradients.data_ptr(), address(piece.winners)
