"""`Embedding`: a row per id, for any int64."""

import torch

from monolith.nn.table_module import TableModule
from monolith.ops import Ragged
from monolith.table.arguments import as_keys


class Embedding(TableModule):
    """`torch.nn.Embedding` without a number of embeddings: any int64 is a key (docs/drop_in.md).

    The arguments are those of `TableModule`.

    Example:
        >>> from monolith.table.optimizers import SGD
        >>> embedding = Embedding(4, optimizer=SGD(0.1))
        >>> embedding(torch.tensor([[42, -7, 1 << 62]])).shape
        torch.Size([1, 3, 4])
    """

    def forward(
        self,
        input: "torch.Tensor | Ragged",  # noqa: A002 - the name in torch
    ) -> "torch.Tensor | Ragged":
        """Rows of the ids.

        Args:
            input: int64 or int32, of any shape; or a `Ragged` of them.

        Returns:
            float32 (*, dim); of a `Ragged` one with the rows as its values.
        """
        if isinstance(input, Ragged):
            return Ragged(self._rows(input.values), input.row_splits)
        return self._rows(input)

    def _rows(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - as messages call it
        keys = as_keys(self._where, "input", input)
        if torch.compiler.is_compiling():
            flat = keys.reshape(-1).contiguous()
            row_splits = torch.arange(flat.shape[0] + 1, device="cpu")
            rows = self._lookup(flat, row_splits, "sum")
        else:
            rows = self._lookup(keys.contiguous(), keys.numel(), "sum")  # a bag for each
        return rows.reshape(*keys.shape, self.dim)
