"""Admission: updates of existing keys with and without a rule, and the cost of a refused key.

One thread. The rule is `MinCount(2)` with its default cap; refused keys are new ones, so each
becomes a candidate, and past the cap each replaces the oldest one. Counted keys are refused too,
but are candidates already: each was seen once before, below the cap.
"""

import itertools
import sys
from dataclasses import replace

import numpy as np
import torch

from benchmarks import workload as work
from benchmarks.harness import BenchmarkError, Sample, say, timed
from benchmarks.ours import fill, table_config
from benchmarks.question import Question, key_batches
from benchmarks.stage import QUICK_ROWS, Options, run_stage, sizes_of
from benchmarks.workload import Workload
from monolith.table import MinCount, Table

_DIM = 16
_ROWS = 20_000_000
_CALLS = 64  # of a sample


class Bench:
    """One table and the calls on it."""

    def __init__(self, workload: Workload, rule: MinCount | None) -> None:
        self._workload = workload
        self._table = Table(replace(table_config(workload.dim, with_state=True), admission=rule))
        fill(self._table, workload)
        self._existing = key_batches(workload)
        self._grads = torch.from_numpy(work.gradients(workload)[0])
        self._first_new = itertools.count(workload.rows, workload.batch)

    def existing(self) -> Sample:
        """Nanoseconds per key of updates of keys that have rows."""
        return self._sample([self._existing[i % len(self._existing)] for i in range(_CALLS)], 0)

    def refused(self) -> Sample:
        """Nanoseconds per key of updates of new keys, all of which are refused."""
        size = self._workload.batch
        firsts = itertools.islice(self._first_new, _CALLS)
        batches = [np.arange(first, first + size, dtype=np.int64) for first in firsts]
        return self._sample([torch.from_numpy(work.keys_of(batch)) for batch in batches], size)

    def counted(self) -> Sample:
        """Nanoseconds per key of updates of candidates, seen for the second time and refused."""
        size = self._workload.batch
        firsts = itertools.islice(self._first_new, _CALLS // 2)
        indices = [np.arange(first, first + size, dtype=np.int64) for first in firsts]
        batches = [torch.from_numpy(work.keys_of(batch)) for batch in indices]
        self._sample(batches, size)
        return self._sample(batches, size)

    def _sample(self, batches: list[torch.Tensor], num_refused: int) -> Sample:
        got = set()
        with timed() as window:
            for keys in batches:
                applied = self._table.apply_gradients(keys, self._grads, num_threads=1)
                got.add(applied.num_refused)
        if got != {num_refused}:
            raise BenchmarkError(f"[admission] expected {num_refused} refused keys, got {got}")
        num_keys = len(batches) * self._workload.batch
        return Sample(window.seconds * 1e9 / num_keys, window.others_cores)


def run(options: Options) -> None:
    """Print one line each for existing, counted and refused keys."""
    workload = Workload(QUICK_ROWS if options.is_quick else _ROWS, _DIM, threads=1)
    say(f"[admission] {workload.rows:,} rows, dim {_DIM}: with MinCount(2), and without a rule")
    ruled, free = Bench(workload, MinCount(2)), Bench(workload, None)
    questions = {
        "admission_existing": {"MinCount": ruled.existing, "no rule": free.existing},
        "admission_counted": {"MinCount": ruled.counted},
        "admission_refused": {"MinCount": ruled.refused},
    }
    for name, takes in questions.items():
        for warm_up in takes.values():
            warm_up()
        Question(name, "ns/key", sizes_of(workload, "uniform"), options.rules).measure(takes)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
