"""`EmbeddingBag`: pooled rows of bags of ids, for any int64."""

from typing import TYPE_CHECKING, Any

import torch

from monolith.embedding.bags import MODES
from monolith.nn.ids import as_keys
from monolith.nn.table_module import TableModule
from monolith.ops import Ragged

if TYPE_CHECKING:
    pass

__all__ = ["EmbeddingBag"]


class EmbeddingBag(TableModule):
    """`torch.nn.EmbeddingBag` without a number of embeddings: any int64 is a key.

    What differs from the torch class: docs/drop_in.md.

    Args:
        dim: number of weights of a row.
        mode: "sum", "mean", "max" or "sqrtn", the sum over the square root of the count.
        include_last_offset: the last of the offsets is the number of ids.
        arguments: further ones of `TableModule`.

    Example:
        >>> from monolith.embedding import SGD
        >>> bag = EmbeddingBag(4, mode="sum", optimizer=SGD(0.1))
        >>> pooled = bag(torch.tensor([42, -7, 42, 1 << 62]), torch.tensor([0, 3]))
        >>> pooled.sum().backward()
        >>> bag.step()
        Applied(num_applied=3, num_inserted=3, num_refused=0, num_skipped=0)
    """

    def __init__(
        self,
        dim: int,
        *positional: object,
        mode: str = "mean",
        include_last_offset: bool = False,
        **arguments: Any,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"{self._where} expected mode in {', '.join(MODES)}, got {mode!r}")
        super().__init__(dim, *positional, **arguments)
        self.mode = mode
        self.include_last_offset = bool(include_last_offset)

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"{super().extra_repr()}, mode={self.mode!r}"

    def forward(
        self,
        input: "torch.Tensor | Ragged",  # noqa: A002 - the name in torch
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Pooled rows of each bag; an empty bag is zeros.

        Args:
            input: int64 or int32 ids: (num_ids,) with offsets; (num_bags, ids of each); or a
                `Ragged`, a row per bag.
            offsets: int64 or int32 (num_bags,), where each bag begins.
            per_sample_weights: float32 of the shape of the ids; only with mode "sum".

        Returns:
            float32 (num_bags, dim).
        """
        where = self._where
        if isinstance(input, Ragged):
            ids, splits = as_keys(where, "input", input.values), input.row_splits
            self._check_no_offsets(offsets, "a Ragged")
        else:
            ids = as_keys(where, "input", input)
            splits = self._splits(ids, offsets)
        weights = per_sample_weights
        if weights is not None:
            self._check_weights(weights, ids)
            weights = weights.reshape(-1).contiguous()
        flat = ids if ids.dim() == 1 else ids.reshape(-1)
        return self._lookup(flat.contiguous(), splits.contiguous(), self.mode, weights)

    def _splits(self, ids: torch.Tensor, offsets: torch.Tensor | None) -> torch.Tensor:
        if ids.dim() == 2:
            self._check_no_offsets(offsets, "ids with 2 dimensions")
            return torch.arange(ids.shape[0] + 1, device="cpu") * ids.shape[1]
        if ids.dim() != 1:
            raise ValueError(
                f"{self._where} expected input with 1 or 2 dimensions, got shape {tuple(ids.shape)}"
            )
        if offsets is None:
            raise ValueError(
                f"{self._where} expected offsets beside ids with 1 dimension, got None; pass them, "
                "or a matrix, or a Ragged"
            )
        offsets = as_keys(self._where, "offsets", offsets)
        if offsets.dim() != 1:
            raise ValueError(
                f"{self._where} expected offsets with 1 dimension, got shape {tuple(offsets.shape)}"
            )
        if self.include_last_offset:
            return offsets
        return torch.cat([offsets, offsets.new_full((1,), ids.shape[0])])

    def _check_no_offsets(self, offsets: torch.Tensor | None, beside: str) -> None:
        if offsets is not None:
            raise ValueError(
                f"{self._where} expected no offsets beside {beside}, got shape "
                f"{tuple(offsets.shape)}; the bags are known already"
            )

    def _check_weights(self, weights: torch.Tensor, ids: torch.Tensor) -> None:
        if self.mode != "sum":
            raise ValueError(
                f"{self._where} expected per_sample_weights only with mode 'sum', "
                f"got mode {self.mode!r}"
            )
        if weights.shape != ids.shape:
            raise ValueError(
                f"{self._where} expected per_sample_weights of the shape of the ids, "
                f"{tuple(ids.shape)}, got {tuple(weights.shape)}"
            )
