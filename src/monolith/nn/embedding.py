"""`Embedding`: a row per id, for any int64."""

import torch

from monolith.nn.ids import as_keys
from monolith.nn.table_module import TableModule

__all__ = ["Embedding"]


class Embedding(TableModule):
    """`torch.nn.Embedding` without a number of embeddings: any int64 is a key (docs/drop_in.md).

    The arguments are those of `TableModule`.

    Example:
        >>> from monolith.embedding import SGD
        >>> embedding = Embedding(4, optimizer=SGD(0.1))
        >>> embedding(torch.tensor([[42, -7, 1 << 62]])).shape
        torch.Size([1, 3, 4])
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the name in torch
        """Rows of the ids.

        Args:
            input: int64 or int32, of any shape.

        Returns:
            float32 (*, dim).
        """
        keys = as_keys(self._where, "input", input)
        flat = keys.reshape(-1).contiguous()
        row_splits = torch.arange(flat.shape[0] + 1, device="cpu")  # a bag for each
        return self._lookup(flat, row_splits, "sum").reshape(*keys.shape, self.dim)
