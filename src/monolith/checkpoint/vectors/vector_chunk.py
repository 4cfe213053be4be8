"""`VectorChunk`: some keys with their vectors, and the place that they come from."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

Keys = NDArray[np.int64]


@dataclass(frozen=True)
class VectorChunk:
    """Some vectors with their keys.

    Args:
        keys: Keys, int64 (n,).
        vectors: Vectors, float32 (n, dim), contiguous.
        times: Times of the last update in seconds since 1970, int64 (n,); None if unknown.
        where: Name of the file or tensor, for messages.
        first_row: Number of the first row in `where`.
    """

    keys: torch.Tensor
    vectors: torch.Tensor
    times: torch.Tensor | None
    where: str
    first_row: int

    def row(self, place: int) -> str:
        """Return the name of a row, for messages: its number from 0, its key and its file."""
        return f"row {self.first_row + place} with key {int(self.keys[place])} of {self.where}"


class VectorSource(Protocol):
    """A source of vectors, all of one size.

    Attributes:
        dim: Number of values of a vector.
        where: Name of the source, for messages.
        num_rows: Number of vectors.
        num_keys: Number of distinct keys.
    """

    dim: int
    where: str
    num_rows: int
    num_keys: int

    def chunks(self, chunk_rows: int) -> Iterator[VectorChunk]:
        """Yield all vectors in their order, at most `chunk_rows` at a time."""


def num_distinct(keys: Keys) -> int:
    """Return the number of different keys."""
    ordered = np.sort(keys)
    return len(keys) - int((ordered[1:] == ordered[:-1]).sum())


def repeated_rows(keys: Keys) -> tuple[int, int]:
    """Return the first two rows of the smallest key that occurs twice."""
    ordered = np.sort(keys)
    key = ordered[1:][ordered[1:] == ordered[:-1]][0]
    first, second, *_ = np.flatnonzero(keys == key)
    return int(first), int(second)
