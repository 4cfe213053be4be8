"""Tensors of some of many tables in one batch: a cost for the tables that are asked for only."""

from collections.abc import Mapping

import torch

from monolith.ops import Ragged

__all__ = ["NameOrder"]


class NameOrder:
    """Tables in the order of their names.

    Args:
        dims: width of the rows of each table, by its name; ascending.

    Attributes:
        widths: the same in order, int64 (num_tables,).

    Example:
        >>> order = NameOrder({"a": 1, "b": 2, "c": 1})
        >>> keys = order.keys({"c": torch.tensor([7]), "b": torch.tensor([8, 9])})
        >>> keys.to_lists()
        [[], [8, 9], [7]]
        >>> order.rows(torch.arange(5.0), {"c": 1, "b": 2})
        {'b': tensor([[0., 1.],
                [2., 3.]]), 'c': tensor([[4.]])}
    """

    def __init__(self, dims: Mapping[str, int]) -> None:
        self._dims = dict(dims)
        self._places = {name: i for i, name in enumerate(dims)}
        self.widths = torch.tensor(list(dims.values()), dtype=torch.int64, device="cpu")

    def keys(self, ids: Mapping[str, torch.Tensor]) -> Ragged:
        """The ids of some tables, int64 (n,) each, with a row for every table."""
        names = sorted(ids)
        lengths = torch.zeros_like(self.widths)
        if not names:
            return Ragged.from_lengths(self.widths[:0], lengths)
        places = torch.tensor([self._places[name] for name in names], device="cpu")
        lengths[places] = torch.tensor([len(ids[name]) for name in names], device="cpu")
        return Ragged.from_lengths(torch.cat([ids[name] for name in names]), lengths)

    def rows(self, flat: torch.Tensor, lengths: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """Views of rows that lie one after another, (n, dim) of some tables with n rows each."""
        names = sorted(lengths)
        parts = torch.split_with_sizes(flat, [lengths[name] * self._dims[name] for name in names])
        return {n: part.view(-1, self._dims[n]) for n, part in zip(names, parts, strict=True)}
