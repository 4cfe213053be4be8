"""The meaning of the pooled verbs, in numpy: rows are read one per key, gradients spread again."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from monolith.embedding.bags import BagGradients, Bags, PooledRows
from monolith.embedding.reference_batch import Matrix, distinct_keys, occurrence_sums
from monolith.embedding.reference_optimizers import row_sum

__all__ = ["expand", "gradient_norm", "pool", "weight_gradients"]


def pool(bags: Bags, rows: torch.Tensor) -> PooledRows:
    """Rows (num_keys, dim) to one per bag."""
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
    """Keys of all bags, and the gradient of each of them (num_keys, dim)."""
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
    """L2 norm of the gradient of the distinct keys, its squares summed in double.

    In a row: 8 partial sums, lane = column % 8, as contract 3 combines them; then row by row in the
    order of the keys' first occurrences.
    """
    keys, grads = expand(queue, dim)
    with np.errstate(all="ignore"):
        sums = occurrence_sums(distinct_keys(keys.tolist())[1], grads.numpy())
        squares = row_sum(np.square(sums.astype(np.float64)))
        # cumsum adds one by one, unlike sum.
        return float(np.sqrt(np.cumsum(squares)[-1])) if len(squares) else 0.0


def weight_gradients(bags: Bags, rows: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
    """Dot product of each key's row with the gradient of its bag: 8 partial sums (contract 3)."""
    grads = gradients.detach().numpy()[_bag_of_key(bags)]
    with np.errstate(all="ignore"):
        return torch.from_numpy(row_sum(rows.numpy() * grads)[:, 0].copy())


def _counts(bags: Bags) -> NDArray[np.int64]:
    return np.diff(bags.splits().numpy())


def _bag_of_key(bags: Bags) -> NDArray[np.int64]:
    return np.repeat(np.arange(bags.num_bags), _counts(bags))


def _factors(bags: Bags, counts: NDArray[np.int64]) -> NDArray[np.float32] | None:
    """What the mode multiplies with in bags of these counts; None: nothing."""
    if bags.mode == "mean":
        return (1 / counts.astype(np.float64)).astype(np.float32)
    if bags.mode == "sqrtn":
        return (1 / np.sqrt(counts.astype(np.float64))).astype(np.float32)
    return None
