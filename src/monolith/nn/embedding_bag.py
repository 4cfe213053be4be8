"""`EmbeddingBag`: pooled rows of bags of ids, for any int64."""

from typing import Any

import torch

from monolith.nn.table_module import TableModule
from monolith.ops import Ragged
from monolith.table.arguments import as_keys
from monolith.table.bags import MODES


class EmbeddingBag(TableModule):
    """`torch.nn.EmbeddingBag` without a number of embeddings: any int64 is a key.

    What differs from the torch class: docs/drop_in.md.

    Args:
        dim: number of weights of a row.
        mode: "sum", "mean", "max" or "sqrtn", the sum over the square root of the count.
        include_last_offset: the last of the offsets is the number of ids.
        arguments: further ones of `TableModule`.

    Example:
        >>> from monolith.table.optimizers import SGD
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
        splits: torch.Tensor | int
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
        if isinstance(splits, int):
            return self._lookup(ids.contiguous(), splits, self.mode, weights)
        flat = (ids if ids.dim() == 1 else ids.reshape(-1)).contiguous()
        splits = splits.contiguous()
        if offsets is None or torch.compiler.is_compiling():
            return self._lookup(flat, splits, self.mode, weights)
        try:
            return self._lookup(flat, splits, self.mode, weights)
        except ValueError:
            self._check_offsets(splits, len(flat))  # in the caller's words, when it is too late
            raise

    def _splits(self, ids: torch.Tensor, offsets: torch.Tensor | None) -> torch.Tensor | int:
        """Row splits, or the number of bags of equally many ids."""
        if ids.dim() == 2:
            self._check_no_offsets(offsets, "ids with 2 dimensions")
            if not torch.compiler.is_compiling():
                return ids.shape[0]
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
            if offsets.shape[0] == 0:
                self._check_offsets(offsets, ids.shape[0])
            return offsets
        return torch.cat([offsets, offsets.new_full((1,), ids.shape[0])])

    def _check_offsets(self, splits: torch.Tensor, num_ids: int) -> None:
        given = splits.tolist() if self.include_last_offset else splits.tolist()[:-1]
        if given and max(given) > num_ids:
            expected = f"of at most {num_ids}, the number of ids"
        elif given and given[0] != 0:
            expected = "from 0 on"
        elif given != sorted(given):
            expected = "that do not decrease"
        elif self.include_last_offset and given[-1:] != [num_ids]:
            expected = f"that end with {num_ids}, the number of ids"
        elif not given and num_ids:
            expected = f"for {num_ids} ids"
        else:
            return
        shown = f"{given[:8]}{' ...' if len(given) > 8 else ''}"
        raise ValueError(f"{self._where} expected offsets {expected}, got {shown}") from None

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
        name = f"{self._where} expected per_sample_weights"
        if not isinstance(weights, torch.Tensor):
            raise TypeError(
                f"{name} as a torch.Tensor, got {type(weights).__name__}; make one with "
                "torch.tensor"
            )
        if weights.dtype != torch.float32:
            got = str(weights.dtype).removeprefix("torch.")
            raise TypeError(f"{name} of dtype float32, got {got}; cast with .float()")
        if weights.device.type != "cpu":
            raise ValueError(f"{name} on device cpu, got {weights.device}; move with .cpu()")
        if weights.shape != ids.shape:
            raise ValueError(
                f"{name} of the shape of the ids, {tuple(ids.shape)}, got {tuple(weights.shape)}"
            )
