"""Tensors of some of many tables in one batch: a cost for the tables that are asked for only."""

from collections.abc import Mapping

import torch

from monolith.ops import Ragged
from monolith.table import _checks as checks


class SlotPacking:
    """Tables in the order of their names.

    Args:
        dims: width of the rows of each table, by its name; ascending.
        owner: whose tables these are, for messages, where they are called slots.

    Attributes:
        widths: the same in order, int64 (num_tables,).

    Example:
        >>> order = SlotPacking({"a": 1, "b": 2, "c": 1})
        >>> keys = order.keys({"c": torch.tensor([7]), "b": torch.tensor([8, 9])})
        >>> keys.to_lists()
        [[], [8, 9], [7]]
        >>> order.rows(torch.arange(5.0), {"c": 1, "b": 2})
        {'b': tensor([[0., 1.],
                [2., 3.]]), 'c': tensor([[4.]])}
    """

    def __init__(self, dims: Mapping[str, int], owner: str = "") -> None:
        self._owner = owner
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

    def flat(self, rows: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Rows of some tables, (n, dim) each, one after another as `keys` puts their ids."""
        parts = [rows[name].detach().reshape(-1) for name in sorted(rows)]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float32, device="cpu")

    def rows(self, flat: torch.Tensor, lengths: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """Views of rows that lie one after another, (n, dim) of some tables with n rows each."""
        names = sorted(lengths)
        parts = torch.split_with_sizes(flat, [lengths[name] * self._dims[name] for name in names])
        return {n: part.view(-1, self._dims[n]) for n, part in zip(names, parts, strict=True)}

    def check_ids(self, verb: str, name: str, ids: torch.Tensor, which: str = "") -> None:
        """Refuse ids of a table that is not here, or of a wrong kind; `which` as in check_rows."""
        where = f"[{self._owner}.{verb}]"
        if name not in self._dims:
            raise ValueError(
                f"{where} expected slots of the table, got {name!r}; it has {', '.join(self._dims)}"
            )
        which = which or f"(slot {name!r})"
        checks.check_tensor((where, which), "ids", ids, torch.int64, 1)

    def check_rows(
        self, verb: str, name: str, ids: torch.Tensor, rows: torch.Tensor, which: str = ""
    ) -> None:
        """Refuse ids and rows of a table that do not fit it, or each other.

        Args:
            verb: what they are for.
            name: of the table.
            ids: int64 (n,).
            rows: float32 (n, dim).
            which: end of the message, where the caller does not know the table as a slot.
        """
        self.check_ids(verb, name, ids, which)
        kind = "grads" if verb == "apply_gradients" else "values"
        where = (f"[{self._owner}.{verb}]", which or f"(slot {name!r})")
        shape = (len(ids), self._dims[name])
        checks.check_matrix_of(where, kind, rows, torch.float32, shape)
