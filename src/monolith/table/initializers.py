"""Initial values of new rows, and the counter-based random generator for them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monolith.table.arguments import check_number

_MASK = (1 << 64) - 1
_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def key_hash(key: int) -> int:
    """Return the splitmix64 finaliser of one key; a bijection of 64-bit numbers.

    Example:
        >>> hex(key_hash(1))
        '0x5692161d100b05e5'
    """
    x = key & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def key_hashes(keys: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return `key_hash` of every key."""
    x = keys.astype(np.int64).view(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashes: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return hashes


def partitions_of(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the partition of every key: the top 12 bits of its hash."""
    partitions: NDArray[np.int64] = (key_hashes(keys) >> np.uint64(52)).astype(np.int64)
    return partitions


def philox(counter: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Return random words of Philox4x32-10 (Salmon et al., SC 2011).

    Args:
        counter: (..., 4), 32-bit words, each in a uint64.
        key: two 32-bit words.

    Returns:
        (..., 4): 32-bit random words, each in a uint64.
    """
    c0, c1, c2, c3 = (counter[..., i] for i in range(4))
    k0, k1 = key
    for _ in range(10):
        product0 = c0 * np.uint64(0xD2511F53)
        product1 = c2 * np.uint64(0xCD9E8D57)
        c0 = (product1 >> _HALF) ^ c1 ^ np.uint64(k0)
        c1 = product1 & _WORD
        c2 = (product0 >> _HALF) ^ c3 ^ np.uint64(k1)
        c3 = product0 & _WORD
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1)


def uniform(
    seed: int, keys: NDArray[np.int64], columns: NDArray[np.int64], stream: int = 0, call: int = 0
) -> NDArray[np.float32]:
    """Return uniform multiples of 2**-24 in [0, 1), one per key and column of the row.

    Args:
        seed: 64-bit seed.
        keys: (n,).
        columns: (c,).
        stream: fourth counter word; 0 is for initial values, 1 is for rounding.
        call: number whose low 16 bits are the high half of the third counter word.

    Returns:
        (n, c).
    """
    blocks, place = np.unique(columns // 4, return_inverse=True)
    counter = np.empty((len(keys), len(blocks), 4), np.uint64)
    words = keys.astype(np.int64).view(np.uint64)[:, None]
    counter[..., 0] = words & _WORD
    counter[..., 1] = words >> _HALF
    counter[..., 2] = blocks.astype(np.uint64) | np.uint64((call & 0xFFFF) << 16)
    counter[..., 3] = stream
    bits = philox(counter, (seed & 0xFFFFFFFF, seed >> 32))[:, place.reshape(-1), columns % 4]
    u: NDArray[np.float32] = (bits >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)
    return u


MAX_FLOAT32 = (2 - 2**-23) * 2.0**127
"""Largest finite float32: tables compute in float32, so every option must fit."""


def _check_fits(where: str, limit: float, **values: float) -> None:
    for name, value in values.items():
        check_number(f"[{where}]", name, value)
        if not abs(value) <= limit:
            raise ValueError(f"[{where}] expected |{name}| <= {limit:g}, got {value}")


@dataclass(frozen=True)
class Zeros:
    """Starts every weight at 0.

    Example:
        >>> Zeros()
        Zeros()
    """


@dataclass(frozen=True)
class Constant:
    """Starts every weight at `value`.

    Args:
        value: the initial weight.

    Example:
        >>> Constant(0.5)
        Constant(value=0.5)
    """

    value: float

    def __post_init__(self) -> None:
        _check_fits("Constant", MAX_FLOAT32, value=self.value)


@dataclass(frozen=True)
class Uniform:
    """Starts weights uniformly distributed in [minval, maxval).

    Args:
        minval: smallest value.
        maxval: upper bound, not reached.

    Example:
        >>> Uniform(-0.1, 0.1)
        Uniform(minval=-0.1, maxval=0.1)
    """

    minval: float = -0.05
    maxval: float = 0.05

    def __post_init__(self) -> None:
        # Each bound is at most half the range, so that maxval - minval fits too.
        _check_fits("Uniform", MAX_FLOAT32 / 2, minval=self.minval, maxval=self.maxval)
        if self.minval > self.maxval:
            raise ValueError(
                f"[Uniform] expected minval <= maxval, got {self.minval} > {self.maxval}"
            )


@dataclass(frozen=True)
class Normal:
    """Starts weights normally distributed (Box-Muller, from two words of the generator).

    Logarithm and sine, and so these values, may differ between machines in the last bit.

    Args:
        mean: centre of the distribution.
        stddev: standard deviation.

    Example:
        >>> Normal(stddev=0.01)
        Normal(mean=0.0, stddev=0.01)
    """

    mean: float = 0.0
    stddev: float = 0.05

    def __post_init__(self) -> None:
        # A value is at most 5.8 standard deviations away from the mean.
        _check_fits("Normal", MAX_FLOAT32 / 16, mean=self.mean, stddev=self.stddev)
        if self.stddev < 0:
            raise ValueError(f"[Normal] expected stddev >= 0, got {self.stddev}")


Initializer = Zeros | Constant | Uniform | Normal
