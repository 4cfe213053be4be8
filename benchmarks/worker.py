"""A process that holds one system and takes samples on command. Peers run it in their interpreter.

One JSON object per line: a command on stdin (`{"do": "sample", "distribution": "zipf"}`), its reply
on stdout. `processes.py` is the other end. Needs numpy and the standard library alone.
"""

import json
import math
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from benchmarks import workload as work
from benchmarks.harness import BenchmarkError, resident_bytes, timed, touch_and_free, trimmed_bytes
from benchmarks.workload import Floats, Int64s, Workload

_FIRST_KEYS = 1_000  # an insert run is timed from here on
_WARM_UP_CALLS = 8


class System(ABC):
    """One table implementation. Batches, gradients and outputs are tensors of its own kind."""

    name: ClassVar[str]

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Versions of the libraries that matter."""

    @abstractmethod
    def create(self, workload: Workload, *, with_state: bool, presized: bool) -> None:
        """Make an empty table; a peer that can may reserve its rows where `presized`."""

    @abstractmethod
    def batch(self, indices: Int64s) -> Any:
        """The keys of a call."""

    @abstractmethod
    def tensor(self, array: Floats) -> Any:
        """Values or gradients."""

    @abstractmethod
    def assign(self, batch: Any, values: Any) -> None:
        """Store rows; new ones get fresh optimizer state."""

    @abstractmethod
    def lookup(self, batch: Any) -> Any:
        """Read rows.  # (n, dim)"""

    @abstractmethod
    def update(self, batch: Any, gradient: Any) -> None:
        """Lookup, sum of the gradients of equal keys, one Adagrad step."""

    @abstractmethod
    def insert(self, batch: Any) -> None:
        """Store new keys with initial values."""

    @abstractmethod
    def num_rows(self) -> int:
        """Keys in the table."""

    @abstractmethod
    def close(self) -> None:
        """Free the table."""

    def reset(self, batch: Any, values: Any) -> None:
        """Store rows with fresh optimizer state, whether they are new or not."""
        self.assign(batch, values)

    def to_numpy(self, output: Any) -> Floats:
        """An output of `lookup` as an array."""
        return np.asarray(output)


def check(name: str, got: Floats, expected: Floats, *, tolerance: float = 0.0) -> None:
    """Refuse a wrong answer: a fast wrong table is no table."""
    if got.shape != expected.shape or not np.allclose(got, expected, rtol=0, atol=tolerance):
        shapes = f"{got.shape} and {expected.shape}"
        worst = float(np.abs(got - expected).max()) if got.shape == expected.shape else math.nan
        raise BenchmarkError(
            f"[{name}] expected the known answer within {tolerance}, got a difference of {worst}"
            f" (shapes {shapes})"
        )


class Worker:
    """The commands. Each method that is not private is one; its reply is a JSON object."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._calls: dict[str, Callable[[int], None]] = {}
        self._num_calls: dict[str, int] = {}
        self._position = 0

    def build(self, rows: int, dim: int, batch: int, threads: int, stage: str) -> dict[str, Any]:
        """Create a table and fill it with the known rows."""
        self._workload = Workload(rows, dim, batch, threads)
        self._stage = stage
        start = time.perf_counter()
        self._system.create(self._workload, with_state=stage == "update", presized=True)
        for indices in work.index_ranges(rows, batch):
            values = work.values_of(indices, dim)
            self._system.assign(self._system.batch(indices), self._system.tensor(values))
        return {
            "seconds": time.perf_counter() - start,
            "resident_bytes": resident_bytes(),
            "versions": {"python": sys.version.split()[0], **self._system.versions()},
        }

    def warm_up(self, distribution: str, sample_seconds: float) -> dict[str, Any]:
        """Make the batches, check the answers, and find how many calls fill a sample."""
        indices = work.index_batches(self._workload, distribution)
        batches = [self._system.batch(batch) for batch in indices]
        if self._stage == "lookup":
            self._check_lookup(indices, batches)
            call = self._lookup_call(batches)
        else:
            gradients = work.gradients(self._workload)
            self._check_update(indices[0], batches[0], gradients[0])
            call = self._update_call(batches, [self._system.tensor(g) for g in gradients])
        seconds = math.inf
        for position in range(_WARM_UP_CALLS):
            start = time.perf_counter()
            call(position)
            seconds = min(seconds, time.perf_counter() - start)
        self._calls[distribution] = call
        self._num_calls[distribution] = max(4, math.ceil(sample_seconds / seconds))
        return {"num_calls": self._num_calls[distribution]}

    def sample(self, distribution: str) -> dict[str, Any]:
        """Keys per second of the stage's call."""
        call, num_calls = self._calls[distribution], self._num_calls[distribution]
        with timed() as window:
            for position in range(self._position, self._position + num_calls):
                call(position)
        self._position += num_calls
        rate = num_calls * self._workload.batch / window.seconds
        return {"value": rate / 1e6, "others_cores": window.others_cores}

    def insert(
        self, rows: int, dim: int, batch: int, threads: int, peak_bytes: int
    ) -> dict[str, Any]:
        """Grow a table from empty on warm memory; seconds of each batch."""
        workload, system = Workload(rows, dim, batch, threads), self._system
        system.create(workload, with_state=False, presized=False)
        batches = [system.batch(chunk) for chunk in work.index_ranges(rows, batch, _FIRST_KEYS)]
        system.insert(batches[0])  # starts thread pools and loads code
        system.close()
        touch_and_free(peak_bytes)
        system.create(workload, with_state=False, presized=False)
        system.insert(system.batch(np.arange(_FIRST_KEYS)))
        seconds = []
        with timed() as window:
            for keys in batches:
                start = time.perf_counter()
                system.insert(keys)
                seconds.append(time.perf_counter() - start)
        if system.num_rows() != rows:
            raise BenchmarkError(f"[insert] expected {rows} rows, got {system.num_rows()}")
        return {
            "value": (rows - _FIRST_KEYS) / sum(seconds) / 1e6,
            "batch_seconds": seconds[: (rows - _FIRST_KEYS) // batch],  # full batches
            "others_cores": window.others_cores,
            "versions": {"python": sys.version.split()[0], **system.versions()},
        }

    def grow(
        self, sizes: list[int], dim: int, batch: int, with_state: bool, is_trimmed: bool
    ) -> dict[str, Any]:
        """Memory of a table at each size, above that of the process before the table existed.

        The buffers of a call are in both readings and cancel, or with `is_trimmed` in neither.
        """
        read = trimmed_bytes if is_trimmed else resident_bytes
        workload, system = Workload(sizes[-1], dim, batch), self._system
        system.create(workload, with_state=with_state, presized=False)
        for _ in range(_WARM_UP_CALLS):  # full batches of few keys: warm buffers, a tiny table
            system.insert(system.batch(np.arange(batch) % _FIRST_KEYS))
        system.close()
        before = read()
        system.create(workload, with_state=with_state, presized=False)
        taken: list[int] = []
        done = 0
        for size in sizes:
            for indices in work.index_ranges(size, batch, done):
                system.insert(system.batch(indices))
            done = size
            taken.append(read() - before)
        if system.num_rows() != sizes[-1]:
            raise BenchmarkError(f"[grow] expected {sizes[-1]} rows, got {system.num_rows()}")
        versions = {"python": sys.version.split()[0], **system.versions()}
        return {"taken_bytes": taken, "versions": versions}

    def _lookup_call(self, batches: list[Any]) -> Callable[[int], None]:
        def call(position: int) -> None:
            self._system.lookup(batches[position % len(batches)])

        return call

    def _update_call(self, batches: list[Any], gradients: list[Any]) -> Callable[[int], None]:
        def call(position: int) -> None:
            gradient = gradients[position % len(gradients)]
            self._system.update(batches[position % len(batches)], gradient)

        return call

    def _check_lookup(self, indices: list[Int64s], batches: list[Any]) -> None:
        for number in (0, len(batches) - 1):
            output = self._system.to_numpy(self._system.lookup(batches[number]))
            check("lookup", output, work.values_of(indices[number], self._workload.dim))

    def _check_update(self, indices: Int64s, batch: Any, gradient: Floats) -> None:
        """Two equal steps on rows that are set anew, against Adagrad in float64."""
        values = self._system.tensor(work.values_of(indices, self._workload.dim))
        self._system.reset(batch, values)
        for _ in range(2):
            self._system.update(batch, self._system.tensor(gradient))
        output = self._system.to_numpy(self._system.lookup(batch))
        check("update", output, work.adagrad_rows(indices, gradient, 2), tolerance=1e-4)


def serve(worker: object) -> None:
    """Answer commands, methods of the worker, until stdin ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print goes to stderr
    for line in sys.stdin:
        command = json.loads(line)
        try:
            reply = getattr(worker, command.pop("do"))(**command)
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
