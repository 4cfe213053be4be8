"""Keys in bags: types, the pooled verbs of a table, and their meaning."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from monolith.table import _checks as checks
from monolith.table._checks import check_tensor
from monolith.table.arguments import as_list
from monolith.table.calls import TableCalls
from monolith.table.key_sums import Matrix, distinct_keys, occurrence_sums, row_sum
from monolith.table.rows import Applied

if TYPE_CHECKING:
    import monolith._native as _native


MODES = ("sum", "mean", "sqrtn", "max")
"""Ways to combine the rows of a bag; sqrtn is the sum divided by the square root of the count."""


@dataclass(frozen=True)
class Bags:
    """Keys in bags, and the way to combine their rows.

    ```
    keys        [ 7  8 | | 7  7  9 ]     three bags, the second one empty
    row_splits  [ 0     2 2        5 ]
    ```

    Numbers are float32. A sum starts with the first row, times its weight, and adds the rows in the
    order of the keys; each product and each sum is rounded. "mean" and "sqrtn" are this sum times 1
    / count and 1 / sqrt(count); both factors are computed in double and rounded. "max" takes the
    first of equal values.

    Args:
        keys: keys of all bags, int64 (num_keys,).
        row_splits: int64 (num_bags + 1,), ascending from 0 to num_keys; or the number of bags, if
            all bags have equally many keys.
        mode: "sum", "mean", "sqrtn" or "max".
        weights: factors of the rows, float32 (num_keys,); only with "sum".

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
        """Return bags whose splits the table checks while it reads, because a check here is slow.

        The keys are contiguous int64 in main memory, of any shape.
        """
        bags = object.__new__(cls)
        vars(bags).update(keys=keys, row_splits=row_splits, mode=mode, weights=weights)
        return bags

    def copy(self) -> "Bags":
        """Return bags with memory of their own."""
        splits, weights = self.row_splits, self.weights
        return Bags.unchecked(
            self.keys.clone(),
            splits.clone() if isinstance(splits, torch.Tensor) else splits,
            self.mode,
            None if weights is None else weights.clone(),
        )

    def checked(self) -> "Bags":
        """Return checked bags with keys of one dimension."""
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
        """Number of keys of all bags."""
        return self.keys.numel()

    @property
    def num_bags(self) -> int:
        """Number of bags, with empty bags."""
        splits = self.row_splits
        return splits if isinstance(splits, int) else splits.numel() - 1

    def splits(self) -> torch.Tensor:
        """Return the row splits as a tensor, (num_bags + 1,), even if they are a number."""
        if isinstance(self.row_splits, torch.Tensor):
            return self.row_splits
        width = self.num_keys // max(1, self.row_splits)
        return torch.arange(self.row_splits + 1, device="cpu") * width


class PooledRows(NamedTuple):
    """Result of `lookup_bags`.

    Attributes:
        values: float32 (num_bags, dim); an empty bag is zeros.
        winners: only for "max", int32 (num_bags, dim): place in `keys` of the row with the largest
            value, or -1 for an empty bag.
    """

    values: torch.Tensor
    winners: torch.Tensor | None


@dataclass(frozen=True)
class BagGradients:
    """Gradients of pooled rows.

    A key in a bag gets the bag's gradient times its factor, rounded. The factor is 1 or the key's
    weight ("sum"), 1 / count ("mean") or 1 / sqrt(count) ("sqrtn"); the last two are computed in
    double and rounded. With "max", a key gets the gradient in the columns that it won, and 0
    elsewhere.

    Args:
        bags: bags of the lookup.
        gradients: gradients of the pooled rows, float32 (num_bags, dim).
        winners: winners of `lookup_bags`; only for "max".

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
        """Return gradients of an autograd engine, which are known to fit."""
        piece = object.__new__(cls)
        vars(piece).update(bags=bags, gradients=gradients, winners=winners)
        return piece

    def scaled(self, factor: float) -> "BagGradients":
        """Return the gradients times a number, for the same bags."""
        return BagGradients.unchecked(self.bags, self.gradients * factor, self.winners)

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
    """Refuse a winner outside of its bag, because no key would get its gradient."""
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
    """Gradient of the distinct keys in some bags, as returned by `sum_bag_gradients`.

    Attributes:
        queue: gradients that were summed.
        norm: L2 norm of the sum; inf or nan if a gradient or a sum is not finite.
        core: object that the table reuses in `apply_bag_gradients`, or None.
    """

    queue: list[BagGradients]
    norm: float
    core: "_native.GradientSum | None" = None


class BagVerbs(TableCalls):
    """Pooled verbs of a table. The methods here define their meaning by the verbs for keys.

    A table that can pool in one pass overrides the methods with an underscore, with equal bits.
    """

    def lookup_bags(
        self,
        bags: Bags,
        *,
        missing: str = "initial",
        step: int = 0,
        num_threads: int | None = None,
    ) -> PooledRows:
        """Return the pooled weights of the keys of each bag. Stores nothing. Safe with every verb.

        Each row is read at one moment, as in `lookup`; the rows of a bag may be read at several.

        Args:
            bags: keys, and the way to combine their rows.
            missing: value of a missing key, as in `lookup`.
            step: training step, for a `OneBit` view.
            num_threads: largest number of threads.

        Returns:
            float32 (num_bags, dim), and the winners for "max".
        """
        self._check_bags("lookup_bags", bags)
        initial = self._check_missing("lookup_bags", missing)
        step = checks.check_step(self.config, "lookup_bags", step)
        threads = checks.check_threads(self.config, "lookup_bags", num_threads, bags.num_keys)
        return self._lookup_bags(bags, initial, step, threads)

    def apply_bag_gradients(
        self,
        queue: Sequence[BagGradients] | GradientSum,
        *,
        step: int = 0,
        learning_rates: Sequence[float] | None = None,
        now: int | None = None,
        num_threads: int | None = None,
    ) -> Applied:
        """Apply one optimizer step per distinct key of all the bags. Safe with every verb.

        Equal, bit for bit, to one `apply_gradients` of all keys, each with its gradient
        (`BagGradients`); a refusal of non-finite gradients counts the rows of that call.

        Args:
            queue: gradients of pooled rows, in order; or their sum, which only one call may use at
                a time.
            step: training step.
            learning_rates: one rate per segment for this call; None means the segments' own rates.
            now: time of the update in seconds.
            num_threads: largest number of threads.

        Returns:
            Numbers of applied, inserted, refused and skipped keys.
        """
        verb = "apply_bag_gradients"
        summed = queue if isinstance(queue, GradientSum) else None
        gradients = queue.queue if isinstance(queue, GradientSum) else queue
        pieces, num_keys = self._check_queue(verb, gradients)
        checks.check_training(self.config, verb)
        threads = checks.check_threads(self.config, verb, num_threads, num_keys)
        step = checks.check_step(self.config, verb, step)
        rates = checks.check_rates(self.config, verb, step, learning_rates)
        summed = summed or self._sum_bag_gradients(pieces, threads)
        with self._time(verb, now) as time_now:
            return self._apply_bag_gradients(summed, rates, step, time_now, threads)

    def sum_bag_gradients(
        self, queue: Sequence[BagGradients], *, num_threads: int | None = None
    ) -> GradientSum:
        """Return the gradient of `apply_bag_gradients`, and its norm. Safe with every verb.

        `apply_bag_gradients` of the sum, instead of the queue, does not repeat the work.

        Args:
            queue: gradients of pooled rows, in order; do not change them while the sum is in use.
            num_threads: largest number of threads.
        """
        verb = "sum_bag_gradients"
        pieces, num_keys = self._check_queue(verb, queue)
        threads = checks.check_threads(self.config, verb, num_threads, num_keys)
        return self._sum_bag_gradients(pieces, threads)

    def bag_weight_gradients(
        self,
        bags: Bags,
        gradients: torch.Tensor,
        *,
        missing: str = "initial",
        step: int = 0,
        num_threads: int | None = None,
    ) -> torch.Tensor:
        """Return the gradient of each weight in a sum: the key's row times its bag's gradient.

        Safe with every verb. Reads rows as `lookup_bags` does.

        Args:
            bags: bags of mode "sum".
            gradients: gradients of the pooled rows, float32 (num_bags, dim).
            missing: value of a missing key, as in `lookup`.
            step: training step, for a `OneBit` view.
            num_threads: largest number of threads.

        Returns:
            float32 (num_keys,): dot products, as 8 partial sums with lane = column % 8, combined as
            in contract 3.
        """
        verb = "bag_weight_gradients"
        self._check_bags(verb, bags)
        if bags.mode != "sum":
            raise ValueError(
                f"[Table.{verb}] expected bags of mode 'sum', got {bags.mode!r} "
                f"(table {self.name!r})"
            )
        checks.check_matrix(self.config, verb, "gradients", gradients, (bags.num_bags, self.dim))
        initial = self._check_missing(verb, missing)
        step = checks.check_step(self.config, verb, step)
        threads = checks.check_threads(self.config, verb, num_threads, bags.num_keys)
        return self._bag_weight_gradients(bags, gradients, initial, step, threads)

    def _check_bags(self, verb: str, bags: Bags) -> None:
        self._check_open(verb)
        if not isinstance(bags, Bags):
            raise TypeError(
                f"[Table.{verb}] expected bags as Bags, got {type(bags).__name__} "
                f"(table {self.name!r})"
            )
        checks.check_num_keys(self.config, verb, bags.num_keys)

    def _check_queue(
        self, verb: str, queue: Sequence[BagGradients]
    ) -> tuple[list[BagGradients], int]:
        """Return the queue as a list, and the number of its keys."""
        self._check_open(verb)
        which = f"(table {self.name!r})"
        pieces = as_list(f"[Table.{verb}]", "queue", queue, f" {which}")
        for piece in pieces:
            if not isinstance(piece, BagGradients):
                raise TypeError(
                    f"[Table.{verb}] expected BagGradients in the queue, "
                    f"got {type(piece).__name__} {which}"
                )
            shape = (piece.bags.num_bags, self.dim)
            checks.check_matrix(self.config, verb, "gradients", piece.gradients, shape)
        num_keys = sum(piece.bags.num_keys for piece in pieces)
        checks.check_num_keys(self.config, verb, num_keys)
        return pieces, num_keys

    # The methods below define the meaning of the pooled verbs by the verbs for keys.

    def _lookup_bags(self, bags: Bags, initial: bool, step: int, threads: int) -> PooledRows:
        bags = bags.checked()
        return pool(bags, self._lookup(bags.keys, initial, step, threads))

    def _apply_bag_gradients(
        self, summed: GradientSum, rates: list[float], step: int, now: int, threads: int
    ) -> Applied:
        keys, grads = expand(summed.queue, self.dim)
        return self._apply_gradients(keys, grads, rates, step, now, threads)

    def _sum_bag_gradients(self, queue: list[BagGradients], threads: int) -> GradientSum:
        return GradientSum(queue, gradient_norm(queue, self.dim))

    def _step_core(self) -> "_native.Table | None":
        """Return the object that can step this table and others in one call, or None."""
        return None

    def _bag_weight_gradients(
        self, bags: Bags, gradients: torch.Tensor, initial: bool, step: int, threads: int
    ) -> torch.Tensor:
        rows = self._lookup(bags.keys, initial, step, threads)
        return weight_gradients(bags, rows, gradients)


def pool(bags: Bags, rows: torch.Tensor) -> PooledRows:
    """Combine rows (num_keys, dim) to one row per bag."""
    values = rows.numpy()
    if bags.mode == "max":
        return _pool_max(bags, values)
    with np.errstate(all="ignore"):
        if bags.weights is not None:
            values = values * bags.weights.detach().numpy()[:, None]
        pooled = np.zeros((bags.num_bags, values.shape[1]), np.float32)
        counts = _counts(bags)
        pooled[counts > 0] = occurrence_sums(_bag_of_key(bags).tolist(), values)
        factors = _factors(bags, np.maximum(counts, 1))
        if factors is not None:
            pooled *= factors[:, None]
    return PooledRows(torch.from_numpy(pooled), None)


def _pool_max(bags: Bags, values: Matrix) -> PooledRows:
    pooled = np.zeros((bags.num_bags, values.shape[1]), np.float32)
    winners = np.full(pooled.shape, -1, np.int32)
    for bag, (start, end) in enumerate(pairwise(bags.splits().tolist())):
        for i in range(start, end):
            wins = values[i] > pooled[bag] if i > start else np.full(len(values[i]), True)
            pooled[bag][wins] = values[i][wins]
            winners[bag][wins] = i
    return PooledRows(torch.from_numpy(pooled), torch.from_numpy(winners))


def expand(queue: Sequence[BagGradients], dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys of all bags, and the gradient of each key (num_keys, dim)."""
    keys = [torch.empty(0, dtype=torch.int64, device="cpu")]
    grads = [np.empty((0, dim), np.float32)]
    for piece in queue:
        keys.append(piece.bags.keys.reshape(-1))
        grads.append(_expand_one(piece))
    return torch.cat(keys), torch.from_numpy(np.concatenate(grads))


def _expand_one(piece: BagGradients) -> Matrix:
    bags, bag_of_key = piece.bags, _bag_of_key(piece.bags)
    grads: Matrix = piece.gradients.detach().numpy()[bag_of_key]
    factors = _factors(bags, _counts(bags)[bag_of_key])
    if piece.winners is not None:
        places = np.arange(bags.num_keys)[:, None]
        return np.where(piece.winners.numpy()[bag_of_key] == places, grads, np.float32(0))
    if bags.weights is not None:
        factors = bags.weights.detach().numpy()
    if factors is not None:
        with np.errstate(all="ignore"):
            grads *= factors[:, None]
    return grads


def gradient_norm(queue: Sequence[BagGradients], dim: int) -> float:
    """Return the L2 norm of the gradient of the distinct keys, with squares summed in double.

    Each row is summed as 8 partial sums, lane = column % 8, which are combined as in contract 3;
    then the rows are added in the order of the keys' first occurrences.
    """
    keys, grads = expand(queue, dim)
    with np.errstate(all="ignore"):
        sums = occurrence_sums(distinct_keys(keys.tolist())[1], grads.numpy())
        squares = row_sum(np.square(sums.astype(np.float64)))
        # cumsum adds one number after another, unlike sum.
        return float(np.sqrt(np.cumsum(squares)[-1])) if len(squares) else 0.0


def weight_gradients(bags: Bags, rows: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
    """Return each key's row times the gradient of its bag, by 8 partial sums (contract 3)."""
    grads = gradients.detach().numpy()[_bag_of_key(bags)]
    with np.errstate(all="ignore"):
        return torch.from_numpy(row_sum(rows.numpy() * grads)[:, 0].copy())


def _counts(bags: Bags) -> NDArray[np.int64]:
    return np.diff(bags.splits().numpy())


def _bag_of_key(bags: Bags) -> NDArray[np.int64]:
    return np.repeat(np.arange(bags.num_bags), _counts(bags))


def _factors(bags: Bags, counts: NDArray[np.int64]) -> NDArray[np.float32] | None:
    """Return the factors of the mode for bags of these counts, or None for no factors."""
    if bags.mode == "mean":
        return (1 / counts.astype(np.float64)).astype(np.float32)
    if bags.mode == "sqrtn":
        return (1 / np.sqrt(counts.astype(np.float64))).astype(np.float32)
    return None
