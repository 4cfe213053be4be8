"""Click models with 26 features: their batches, first weights and worker. Needs numpy alone.

    click   13 numbers, 26 ids -> 26 rows of 16 -> 429 -> 256 -> 64 -> 1
    dlrm    13 numbers -> 512 -> 256 -> 64 -> 16; with 26 rows of 16 -> 351 dot products of pairs;
            with the 16 -> 367 -> 512 -> 256 -> 1
    both    log loss, Adagrad everywhere

An id numbers the rows of its feature from 0. Systems with one table for all features use its *key*,
which has the feature in its upper bits, or its *flat* number, the row of a fixed table.
"""

import itertools
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import workload as work
from benchmarks.harness import BenchmarkError, timed
from benchmarks.workload import Floats, Int64s, Workload

NUM_DENSE = 13
NUM_FEATURES = 26
DIM = 16
TOWERS = {  # widths of the layers
    "click": ((NUM_DENSE + NUM_FEATURES * DIM, 256, 64, 1),),
    "dlrm": ((NUM_DENSE, 512, 256, 64, DIM), (DIM + 351, 512, 256, 1)),
}
NUM_BATCHES = work.NUM_BATCHES

_SEED = 20240301
_FEATURE_SHIFT = 48
_ID_STEP = 0x9E3779B97F4B  # odd: ids spread over the lower bits one to one
_FILL_ROWS = 65_536
_COLD_STEPS = 2  # after the turns of others, whose memory has filled the caches


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model.

    Args:
        rows: ids of each feature; all of them have rows before the first step.
        batch: samples of a step.
        threads: threads that a step may use.
        model: which of `TOWERS`.
    """

    rows: int
    batch: int = 4_096
    threads: int = 2
    model: str = "click"


@dataclass(frozen=True)
class Batch:
    """Samples of one step."""

    dense: Floats  # (batch, NUM_DENSE)
    ids: Int64s  # (batch, NUM_FEATURES)
    labels: Floats  # (batch,)


def batches(sizes: Sizes, count: int = NUM_BATCHES) -> list[Batch]:
    """The first `count` batches, the same in every process."""
    random = np.random.default_rng(_SEED)
    drawn = work.index_batches(
        Workload(sizes.rows, DIM, sizes.batch * NUM_FEATURES), "zipf", NUM_BATCHES
    )
    made = []
    for ids in drawn[:count]:
        dense = random.standard_normal((sizes.batch, NUM_DENSE), dtype=np.float32)
        noise = random.standard_normal(sizes.batch, dtype=np.float32)
        labels = (dense.sum(1) + noise > 1).astype(np.float32)
        made.append(Batch(dense, ids.reshape(sizes.batch, NUM_FEATURES), labels))
    return made


def flat_of(ids: Int64s, rows: int) -> Int64s:
    """Numbers 0..NUM_FEATURES * rows - 1 of ids, (n, NUM_FEATURES)."""
    return ids + np.arange(NUM_FEATURES) * rows


def keys_of(flat: Int64s, rows: int) -> Int64s:
    """The int64 key of each flat number: its feature in the upper bits."""
    features, ids = np.divmod(flat, rows)
    spread = (ids * _ID_STEP) & ((1 << _FEATURE_SHIFT) - 1)
    return ((features + 1) << _FEATURE_SHIFT) | spread


def values_of(flat: Int64s) -> Floats:
    """The rows that the first step of the check finds.  # (n, DIM)"""
    rows: Floats = (work.values_of(flat, DIM) - np.float32(0.5)) * np.float32(0.1)
    return rows


def towers(model: str) -> list[list[tuple[Floats, Floats]]]:
    """First weights (out, in) and biases (out,) of the dense layers, as torch draws them."""
    random = np.random.default_rng([_SEED, 1])
    return [_layers(random, widths) for widths in TOWERS[model]]


def _layers(random: np.random.Generator, widths: Sequence[int]) -> list[tuple[Floats, Floats]]:
    made = []
    for width, out in itertools.pairwise(widths):
        bound = 1 / math.sqrt(width)
        weight = random.uniform(-bound, bound, (out, width)).astype(np.float32)
        made.append((weight, random.uniform(-bound, bound, out).astype(np.float32)))
    return made


class ClickSystem(ABC):
    """The model on one system."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Versions of the libraries that matter."""

    @abstractmethod
    def create(self, sizes: Sizes) -> None:
        """The model with the weights of `towers`, and its tables."""

    @abstractmethod
    def insert(self, flat: Int64s) -> None:
        """Make rows with whatever values; a fixed table has them already."""

    @abstractmethod
    def assign(self, flat: Int64s, values: Floats) -> None:
        """Set rows that no step has changed."""

    @abstractmethod
    def prepare(self, batch: Batch) -> Any:
        """A batch as the system's own tensors, in the order that it likes best."""

    @abstractmethod
    def train(self, prepared: Any) -> Any:
        """One step, forward to update; the loss before it, as something with `float`."""


class ClickWorker:
    """The commands; `worker.serve` calls them."""

    def __init__(self, system: ClickSystem) -> None:
        self._system = system
        self._position = 0

    def build(self, **sizes: Any) -> dict[str, Any]:
        """Make the model of `Sizes`, and rows of all ids."""
        self._sizes = Sizes(**sizes)
        self._system.create(self._sizes)
        for flat in work.index_ranges(NUM_FEATURES * self._sizes.rows, _FILL_ROWS):
            self._system.insert(flat)
        return {"versions": {"python": sys.version.split()[0], **self._system.versions()}}

    def losses(self, num_steps: int) -> dict[str, Any]:
        """Losses of the first steps, from known rows: a known answer."""
        made = batches(self._sizes, num_steps)
        flat = np.unique(np.concatenate([flat_of(batch.ids, self._sizes.rows) for batch in made]))
        for start in range(0, len(flat), _FILL_ROWS):
            part = flat[start : start + _FILL_ROWS]
            self._system.assign(part, values_of(part))
        return {"losses": [float(self._system.train(self._system.prepare(b))) for b in made]}

    def warm_up(self, sample_seconds: float) -> dict[str, Any]:
        """Prepare the batches, and find how many steps fill a sample."""
        self._batches = [self._system.prepare(batch) for batch in batches(self._sizes)]
        seconds = math.inf
        for batch in self._batches:
            start = time.perf_counter()
            self._system.train(batch)
            seconds = min(seconds, time.perf_counter() - start)
        self._num_steps = max(4, math.ceil(sample_seconds / seconds))
        return {"num_steps": self._num_steps}

    def sample(self) -> dict[str, Any]:
        """Thousands of samples per second."""
        self._run(_COLD_STEPS)
        with timed() as window:
            self._run(self._num_steps)
        rate = self._num_steps * self._sizes.batch / window.seconds
        return {"value": rate / 1e3, "others_cores": window.others_cores}

    def _run(self, num_steps: int) -> None:
        loss: Any = math.nan
        for position in range(self._position, self._position + num_steps):
            loss = self._system.train(self._batches[position % len(self._batches)])
        self._position += num_steps
        if not math.isfinite(float(loss)):
            raise BenchmarkError(f"[end_to_end] expected a finite loss, got {float(loss)}")
