"""Sums of duplicate keys in the order of occurrence, and the rule for non-finite gradients."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from monolith.table import initializers as counter_random
from monolith.table.config import TableConfig
from monolith.table.initializers import Constant, Initializer, Normal, Uniform

Matrix = NDArray[np.float32]


def distinct_keys(keys: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return distinct keys by first occurrence, and for each occurrence its place among them.

    Example:
        >>> distinct_keys([7, 5, 7])
        ([7, 5], [0, 1, 0])
    """
    place = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    return list(place), [place[key] for key in keys]


def split_absent(
    keys: Sequence[int], absent: torch.Tensor | None
) -> tuple[torch.Tensor, list[int]]:
    """Return the places of keys that get a row, and keys that must have none; the last one counts.

    Example:
        >>> split_absent([7, 5, 7], torch.tensor([True, True, False]))
        (tensor([0, 2]), [5])
    """
    if absent is None:
        return torch.arange(len(keys), device="cpu"), []
    is_gone = dict(zip(keys, absent.tolist(), strict=True))
    places = [i for i, key in enumerate(keys) if not is_gone[key]]
    return torch.tensor(places, dtype=torch.int64, device="cpu"), [k for k in is_gone if is_gone[k]]


def occurrence_sums(place: Sequence[int], values: Matrix) -> Matrix:
    """Return the sum of the values at each place, in the order of occurrence."""
    sums: dict[int, Matrix] = {}
    for i, value in zip(place, values, strict=True):
        sums[i] = sums[i] + value if i in sums else value
    return np.stack(list(sums.values())) if sums else np.empty_like(values)


def finite_gradients(
    config: TableConfig, keys: list[int], grads: Matrix
) -> tuple[list[int], Matrix]:
    """Return the keys and gradients that remain after the table's rule for NaN and Inf."""
    bad = ~np.isfinite(grads)
    if config.non_finite == "refuse" and bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"[Table.apply_gradients] expected finite gradients, got {grads[row, column]} at row "
            f"{row}, column {column} (table {config.name!r}); see TableConfig.non_finite"
        )
    if config.clip_value is not None:
        clip = config.clip_value
        return keys, np.nan_to_num(grads, nan=0.0, posinf=clip, neginf=-clip)
    keep = np.flatnonzero(~bad.any(axis=1))
    return [keys[i] for i in keep], grads[keep]


def initial_weights(
    config: TableConfig, initializer: Initializer, keys: Sequence[int], columns: slice
) -> Matrix:
    """Return the weights of new rows in some columns of the row: (n, number of columns)."""
    assert config.seed is not None  # the config's constructor sets the seed
    at = np.arange(columns.start, columns.stop)
    if isinstance(initializer, Normal):
        return _normal(config.seed, initializer, keys, at)
    if isinstance(initializer, Uniform):
        low, high = np.float32(initializer.minval), np.float32(initializer.maxval)
        u = counter_random.uniform(config.seed, np.array(keys, np.int64), at)
        weights: Matrix = low + u * (high - low)
        return weights
    value = initializer.value if isinstance(initializer, Constant) else 0.0
    return np.full((len(keys), columns.stop - columns.start), value, np.float32)


def _normal(
    seed: int, initializer: Normal, keys: Sequence[int], columns: NDArray[np.int64]
) -> Matrix:
    """Return normal numbers by Box-Muller: columns 2k and 2k + 1 share one pair of words."""
    pairs = columns // 2 * 2
    numbers = np.array(keys, np.int64)
    # Always above 0.
    u1 = counter_random.uniform(seed, numbers, pairs).astype(np.float64) + 2.0**-24
    turn = 2 * np.pi * counter_random.uniform(seed, numbers, pairs + 1).astype(np.float64)
    z = np.sqrt(-2 * np.log(u1)) * np.where(columns % 2 == 0, np.cos(turn), np.sin(turn))
    mean, stddev = np.float32(initializer.mean), np.float32(initializer.stddev)
    weights: Matrix = (np.float64(mean) + np.float64(stddev) * z).astype(np.float32)
    return weights


def row_sum(values: Matrix) -> Matrix:
    """Sum (n, dim) to (n, 1) by 8 partial sums, lane = column % 8, in one order (contract 3)."""
    lanes = np.zeros((len(values), 8), values.dtype)
    for start in range(0, values.shape[1], 8):
        block = values[:, start : start + 8]
        lanes[:, : block.shape[1]] += block
    a, b, c, d, e, f, g, h = (lanes[:, i : i + 1] for i in range(8))
    total: Matrix = ((a + e) + (c + g)) + ((b + f) + (d + h))
    return total
