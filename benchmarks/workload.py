"""The keys, values and gradients of every benchmark. Needs numpy alone, so that peers share it.

    rank --scatter--> index --keys_of--> key        index --values_of--> row

A *rank* orders keys by popularity (0 is the hottest), an *index* numbers them 0..rows-1 and is the
row of a fixed table, and a *key* is an arbitrary int64. Hot ranks are scattered over the indices,
so that hot rows lie apart in the memory of every system alike.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]

DISTRIBUTIONS = ("uniform", "zipf")
ZIPF_EXPONENT = 1.05
LEARNING_RATE = 0.05
INITIAL_ACCUMULATOR = 0.1
NUM_BATCHES = 32  # distinct batches that a measurement cycles through: none stays in a cache
NUM_GRADIENTS = 4

_SEED = 20240229


@dataclass(frozen=True)
class Workload:
    """Sizes of one measurement.

    Args:
        rows: keys in the table; every key that is looked up is present (hit rate 1).
        dim: weights of a row.
        batch: keys of a call.
        threads: threads that a call may use.
    """

    rows: int
    dim: int
    batch: int = 65_536
    threads: int = 2


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Bijection of the 64-bit words: the finaliser of MurmurHash3, which no table here uses."""
    mixed: NDArray[np.uint64] = values ^ (values >> np.uint64(33))
    mixed *= np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xC4CEB9FE1A85EC53)
    mixed ^= mixed >> np.uint64(33)
    return mixed


def keys_of(indices: Int64s) -> Int64s:
    """The int64 key of each index: distinct, negative and positive, without order."""
    return mix(indices.astype(np.uint64)).view(np.int64)


def values_of(indices: Int64s, dim: int) -> Floats:
    """The row that each index holds before training: a known answer.  # (n, dim)"""
    low = (mix(indices.astype(np.uint64)) & np.uint64(0xFFFF)).astype(np.float32)
    columns = np.arange(dim, dtype=np.float32) / np.float32(dim)
    rows: Floats = (low / np.float32(65_536) - np.float32(0.5))[:, None] + columns
    return rows


def scatter(ranks: Int64s, rows: int) -> Int64s:
    """Bijection of 0..rows-1: the index of each rank."""
    step = int(rows * 0.6180339887) | 1
    while math.gcd(step, rows) != 1:
        step += 2
    return (ranks * step + rows // 3) % rows


def zipf_cdf(rows: int, exponent: float = ZIPF_EXPONENT) -> NDArray[np.float64]:
    """P(rank <= r) of the Zipf distribution bounded to `rows` ranks."""
    cumulated = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -exponent)
    cumulated /= cumulated[-1]
    return cumulated


def index_batches(workload: Workload, distribution: str, count: int = NUM_BATCHES) -> list[Int64s]:
    """`count` batches of indices, the same in every process."""
    random = np.random.default_rng([_SEED, workload.rows, DISTRIBUTIONS.index(distribution)])
    shape = (count, workload.batch)
    if distribution == "uniform":
        ranks = random.integers(0, workload.rows, shape, dtype=np.int64)
    else:
        cdf = zipf_cdf(workload.rows)
        ranks = np.searchsorted(cdf, random.random(shape), side="right").astype(np.int64)
        np.minimum(ranks, workload.rows - 1, out=ranks)
    return list(scatter(ranks, workload.rows))


def index_ranges(rows: int, batch: int, first: int = 0) -> Iterator[Int64s]:
    """All indices from `first` on, in order, in batches: what fills a table."""
    for start in range(first, rows, batch):
        yield np.arange(start, min(start + batch, rows), dtype=np.int64)


def gradients(workload: Workload) -> list[Floats]:
    """A few gradients of one batch; calls cycle through them.  # each (batch, dim)"""
    random = np.random.default_rng([_SEED, workload.dim])
    shape = (workload.batch, workload.dim)
    return [
        random.uniform(-0.1, 0.1, shape).astype(np.float32, copy=False)
        for _ in range(NUM_GRADIENTS)
    ]


def adagrad_rows(indices: Int64s, gradient: Floats, num_steps: int) -> Floats:
    """What a lookup of `indices` gives after `num_steps` equal Adagrad steps on fresh rows."""
    unique, inverse = np.unique(indices, return_inverse=True)
    dim = gradient.shape[1]
    summed = np.zeros((len(unique), dim), dtype=np.float64)
    np.add.at(summed, inverse, gradient)
    rows = values_of(unique, dim).astype(np.float64)
    accumulator = np.full_like(rows, INITIAL_ACCUMULATOR)
    for _ in range(num_steps):
        accumulator += summed**2
        rows -= LEARNING_RATE * summed / np.sqrt(accumulator)
    return rows.astype(np.float32)[inverse]
