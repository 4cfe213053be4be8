"""Keys in bags, and what the pooled verbs of a table take and return for them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from monolith.embedding.checks import check_tensor

if TYPE_CHECKING:
    import monolith._native as _native

__all__ = ["BagGradients", "Bags", "GradientSum", "MODES", "PooledRows"]

MODES = ("sum", "mean", "sqrtn", "max")
"""How the rows of a bag are combined; sqrtn is the sum over the square root of the count."""


@dataclass(frozen=True)
class Bags:
    """Keys in bags: which keys are combined, and how.

    ```
    keys        [ 7  8 | | 7  7  9 ]     three bags, the second one empty
    row_splits  [ 0     2 2        5 ]
    ```

    Numbers are float32. A sum starts from the first row, times its weight, and goes on in the order
    of the keys, each product and each sum rounded; "mean" and "sqrtn" are that sum times 1 / count
    and 1 / sqrt(count), each computed in double and rounded. "max" takes the first of equal values.

    Args:
        keys: int64 (num_keys,).
        row_splits: int64 (num_bags + 1,), ascending from 0 to num_keys; or the number of bags,
            where all have equally many keys.
        mode: "sum", "mean", "sqrtn" or "max".
        weights: float32 (num_keys,), of the rows in a sum; only with "sum".

    Example:
        >>> keys = torch.tensor([7, 8, 7, 7, 9])
        >>> Bags(keys, torch.tensor([0, 2, 2, 5]), "mean").num_bags
        3
    """

    keys: torch.Tensor
    row_splits: torch.Tensor | int
    mode: str = "sum"
    weights: torch.Tensor | None = None

    def __post_init__(self) -> None:
        self.check()

    @classmethod
    def unchecked(
        cls,
        keys: torch.Tensor,
        row_splits: torch.Tensor | int,
        mode: str,
        weights: torch.Tensor | None = None,
    ) -> "Bags":
        """Bags whose splits the table checks when it reads them, for a check here is slow.

        The keys are contiguous int64 in main memory, of any shape.
        """
        bags = object.__new__(cls)
        vars(bags).update(keys=keys, row_splits=row_splits, mode=mode, weights=weights)
        return bags

    def copy(self) -> "Bags":
        """The same with memory of its own."""
        splits, weights = self.row_splits, self.weights
        return Bags.unchecked(
            self.keys.clone(),
            splits.clone() if isinstance(splits, torch.Tensor) else splits,
            self.mode,
            None if weights is None else weights.clone(),
        )

    def checked(self) -> "Bags":
        """The same of keys with one dimension, and checked."""
        return Bags(self.keys.reshape(-1), self.row_splits, self.mode, self.weights)

    def check(self) -> None:
        """Refuse keys, splits or weights that do not fit together."""
        where = ("[Bags]", "")
        check_tensor(where, "keys", self.keys, torch.int64, 1)
        if isinstance(self.row_splits, int):
            self._check_number(self.row_splits)
        else:
            check_tensor(where, "row_splits", self.row_splits, torch.int64, 1)
            self._check_splits(self.row_splits)
        if self.mode not in MODES:
            raise ValueError(f"[Bags] expected mode in {', '.join(MODES)}, got {self.mode!r}")
        if self.weights is None:
            return
        if self.mode != "sum":
            raise ValueError(f"[Bags] expected weights only with mode 'sum', got {self.mode!r}")
        check_tensor(where, "weights", self.weights, torch.float32, 1)
        if len(self.weights) != len(self.keys):
            raise ValueError(
                f"[Bags] expected {len(self.keys)} weights, one per key, got {len(self.weights)}"
            )

    def _check_number(self, num_bags: int) -> None:
        if num_bags < 0 or self.num_keys % max(1, num_bags) or (num_bags == 0 and self.num_keys):
            raise ValueError(
                f"[Bags] expected a number of bags that divides {self.num_keys} keys, "
                f"got {num_bags}"
            )

    def _check_splits(self, row_splits: torch.Tensor) -> None:
        splits, num_keys = row_splits.numpy(), self.keys.numel()
        if len(splits) == 0:
            raise ValueError("[Bags] expected row_splits from 0 on, got none")
        if splits[0] != 0 or splits[-1] != num_keys:
            raise ValueError(
                f"[Bags] expected row_splits from 0 to {num_keys}, got from {splits[0]} to "
                f"{splits[-1]}"
            )
        falls = splits[1:] < splits[:-1]
        if np.count_nonzero(falls):
            at = int(falls.argmax())
            raise ValueError(
                f"[Bags] expected ascending row_splits, got {splits[at]} and then "
                f"{splits[at + 1]} at {at + 1}"
            )

    @property
    def num_keys(self) -> int:
        """Keys of all bags."""
        return self.keys.numel()

    @property
    def num_bags(self) -> int:
        """Bags, empty ones too."""
        splits = self.row_splits
        return splits if isinstance(splits, int) else splits.numel() - 1

    def splits(self) -> torch.Tensor:
        """The row splits as a tensor, (num_bags + 1,), also where they are a number."""
        if isinstance(self.row_splits, torch.Tensor):
            return self.row_splits
        width = self.num_keys // max(1, self.row_splits)
        return torch.arange(self.row_splits + 1, device="cpu") * width


class PooledRows(NamedTuple):
    """What `lookup_bags` returns.

    Attributes:
        values: float32 (num_bags, dim); an empty bag is zeros.
        winners: of mode "max", int32 (num_bags, dim): place in `keys` of the row whose value it
            is, -1 in an empty bag.
    """

    values: torch.Tensor
    winners: torch.Tensor | None


@dataclass(frozen=True)
class BagGradients:
    """Gradients of pooled rows.

    A key in a bag gets the bag's gradient times its factor, rounded: 1 or its weight ("sum"),
    1 / count ("mean") or 1 / sqrt(count) ("sqrtn"), these computed in double and rounded; of "max"
    the gradient in the columns that it won, and 0 in the others.

    Args:
        bags: what was looked up.
        gradients: float32 (num_bags, dim).
        winners: of mode "max", as `lookup_bags` returned them.

    Example:
        >>> bags = Bags(torch.tensor([7, 8]), torch.tensor([0, 2]))
        >>> BagGradients(bags, torch.ones(1, 4)).gradients.shape
        torch.Size([1, 4])
    """

    bags: Bags
    gradients: torch.Tensor
    winners: torch.Tensor | None = None

    @classmethod
    def unchecked(
        cls, bags: Bags, gradients: torch.Tensor, winners: torch.Tensor | None
    ) -> "BagGradients":
        """Gradients of an autograd engine, which has seen to it that they fit."""
        piece = object.__new__(cls)
        vars(piece).update(bags=bags, gradients=gradients, winners=winners)
        return piece

    def __post_init__(self) -> None:
        where = ("[BagGradients]", "")
        if not isinstance(self.bags, Bags):
            raise TypeError(f"[BagGradients] expected bags as Bags, got {type(self.bags).__name__}")
        check_tensor(where, "gradients", self.gradients, torch.float32, 2)
        if len(self.gradients) != self.bags.num_bags:
            raise ValueError(
                f"[BagGradients] expected {self.bags.num_bags} gradients, one per bag, "
                f"got {len(self.gradients)}"
            )
        if (self.winners is not None) != (self.bags.mode == "max"):
            got = "none" if self.winners is None else "some"
            raise ValueError(
                f"[BagGradients] expected winners with mode 'max' and only there, got {got} with "
                f"mode {self.bags.mode!r}"
            )
        if self.winners is None:
            return
        check_tensor(where, "winners", self.winners, torch.int32, 2)
        if self.winners.shape != self.gradients.shape:
            raise ValueError(
                f"[BagGradients] expected winners of shape {tuple(self.gradients.shape)}, "
                f"got {tuple(self.winners.shape)}"
            )
        _check_winners(self.bags, self.winners)


def _check_winners(bags: Bags, winners: torch.Tensor) -> None:
    """Refuse a winner that is no place of its bag: its gradient would go to no key."""
    splits = bags.splits().unsqueeze(1)  # (num_bags + 1, 1)
    is_wrong = ((winners < splits[:-1]) | (winners >= splits[1:])) & (winners != -1)
    if is_wrong.any():
        bag, column = is_wrong.nonzero()[0].tolist()
        raise ValueError(
            f"[BagGradients] expected winners of bag {bag} in [{splits[bag].item()}, "
            f"{splits[bag + 1].item()}), or -1, got {winners[bag, column].item()} (column "
            f"{column}); pass those of lookup_bags"
        )


@dataclass(frozen=True)
class GradientSum:
    """The gradient of the distinct keys in some bags, as `sum_bag_gradients` returns it.

    Attributes:
        queue: what it is the sum of.
        norm: its L2 norm; inf or nan if a gradient or a sum is not finite.
        core: what the table keeps of it for `apply_bag_gradients`; None: nothing.
    """

    queue: list[BagGradients]
    norm: float
    core: "_native.GradientSum | None" = None
