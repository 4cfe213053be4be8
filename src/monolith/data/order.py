"""Random orders that depend on their arguments only: the same in every process and version."""

import numpy as np
import numpy.typing as npt

_Words = npt.NDArray[np.uint64]


def mix(words: _Words) -> _Words:
    """Return the finalizer of SplitMix64 (Steele et al., 2014) of each word."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: _Words = words ^ (words >> np.uint64(31))
    return mixed


def _words(count: int, numbers: tuple[int, ...], first: int = 0) -> _Words:
    """Return a random word for each of first, first + 1, ..."""
    key = np.zeros(1, np.uint64)
    for number in numbers:
        key = mix(key + np.uint64(number & (2**64 - 1)) + np.uint64(0x9E3779B97F4A7C15))
    steps = np.arange(first + 1, first + 1 + count, dtype=np.uint64)
    return mix(key + steps * np.uint64(0x9E3779B97F4A7C15))


def permutation(count: int, *numbers: int) -> npt.NDArray[np.int64]:
    """Return a random order of 0 to count - 1.

    Example:
        >>> sorted(permutation(4, 7).tolist())
        [0, 1, 2, 3]
    """
    return np.argsort(_words(count, numbers), kind="stable")


def uniform(count: int, *numbers: int, first: int = 0) -> npt.NDArray[np.float64]:
    """Return numbers in [0, 1) for first, first + 1, ..., however they are divided into calls.

    Example:
        >>> bool((uniform(3, 7)[1:] == uniform(2, 7, first=1)).all())
        True
    """
    drawn: npt.NDArray[np.float64] = (_words(count, numbers, first) >> np.uint64(11)) * 2.0**-53
    return drawn
