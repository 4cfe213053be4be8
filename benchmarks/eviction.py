"""Eviction: memory of a table after half of its rows were replaced, and a sweep beside lookups."""

import functools
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from benchmarks import workload as work
from benchmarks.harness import BenchmarkError, Rules, Sample, Series, say, trimmed_bytes
from benchmarks.ours import table_config
from benchmarks.question import Question
from benchmarks.readers import Call, measure_beside, rate, run_threads
from benchmarks.stage import QUICK_ROWS, Options, run_stage, sizes_of
from benchmarks.workload import Workload
from monolith.table import Expiry, Table

_DIM = 16
_ROWS = 10_000_000
_DAY = 86_400


def make() -> Table:
    """A table whose rows live one day; the clock is far ahead, so that no time is clamped."""
    config = replace(table_config(_DIM, with_state=True), expiry=Expiry(1))
    return Table(config, clock=lambda: 100 * _DAY)


def batches(first: int, end: int, batch: int) -> Iterator[torch.Tensor]:
    """Keys of some indices."""
    for indices in work.index_ranges(end, batch, first):
        yield torch.from_numpy(work.keys_of(indices))


def fill(
    table: Table, first: int, end: int, batch: int, now: int, num_threads: int | None = None
) -> None:
    """Rows of the indices [first, end), at a time."""
    for keys in batches(first, end, batch):
        table.lookup_or_insert(keys, now=now, num_threads=num_threads)


def measure_churn(workload: Workload, rules: Rules) -> None:
    """Half of the rows expire and as many new ones come, beside a table of new ones only."""
    rows, batch = workload.rows, workload.batch
    warm = make()  # what a first call allocates is not the table's
    fill(warm, 0, batch, batch, now=0)
    warm.close()

    before = trimmed_bytes()
    churned = make()
    fill(churned, 0, rows // 2, batch, now=0)
    fill(churned, rows // 2, rows, batch, now=_DAY)
    if churned.evict() != rows // 2:
        raise BenchmarkError("[eviction] expected half of the rows to expire")
    fill(churned, rows, rows + rows // 2, batch, now=_DAY)
    series = {"churned": Series([(trimmed_bytes() - before) / rows])}
    report = churned.memory_report()["total_bytes"]
    churned.close()

    before = trimmed_bytes()
    fresh = make()
    fill(fresh, rows // 2, rows + rows // 2, batch, now=_DAY)
    series["fresh"] = Series([(trimmed_bytes() - before) / rows])
    notes = {"report_over_fresh": round(report / fresh.memory_report()["total_bytes"], 4)}
    fresh.close()
    question = Question("eviction_memory", "B/key", sizes_of(workload), rules)
    question.answer(series, "churned", "fresh", notes=notes)


class Swept:
    """A table of which a tenth expires, again and again."""

    def __init__(self, workload: Workload) -> None:
        self._workload, self._table = workload, make()
        self._num_expired = workload.rows // 10
        self._fill(self._num_expired, workload.rows, now=2 * _DAY)
        kept = Workload(workload.rows - self._num_expired, workload.dim, workload.batch)
        drawn = work.index_batches(kept, "uniform")
        self._keys = [torch.from_numpy(work.keys_of(each + self._num_expired)) for each in drawn]
        self.num_sweeps = 0

    def _fill(self, first: int, end: int, now: int) -> None:
        """With one thread, so that every wait for a lock is the sweep's."""
        fill(self._table, first, end, self._workload.batch, now, num_threads=1)

    def take(self, with_sweep: bool, seconds: float) -> Sample:
        """Million keys per second of one thread of lookups."""
        self._fill(0, self._num_expired, now=_DAY)
        if with_sweep:
            calls: list[Call] = [self._lookup, self._evict]
        else:
            self._table.evict()
            calls = [self._lookup]
        loops, others_cores = run_threads(calls, seconds)
        if len(self._table) != self._workload.rows - self._num_expired:
            raise BenchmarkError(f"[eviction] expected no expired rows, got {len(self._table)}")
        return Sample(rate(loops[:1], self._workload.batch), others_cores)

    def _lookup(self, number: int) -> None:
        self._table.lookup(self._keys[number % len(self._keys)], num_threads=1)

    def _evict(self, number: int) -> None:
        self._table.evict()
        self.num_sweeps += 1

    def waits(self) -> dict[str, Any]:
        """The longest waits of writers for a lock and of readers for a row."""
        stats = self._table.stats()
        names = ("num_evicted", "lock_waits", "lock_wait_max_ns", "reader_wait_max_ns")
        return {name: stats[name] for name in names}


def measure_sweep(workload: Workload, rules: Rules) -> None:
    """Lookups beside sweeps and alone, in turns."""
    swept = Swept(workload)
    take = functools.partial(swept.take, seconds=rules.sample_seconds)
    for with_sweep in (True, False):
        take(with_sweep)
    measure_beside(
        "eviction_sweep",
        take,
        sizes_of(workload, "uniform"),
        lambda: {**swept.waits(), "num_sweeps": swept.num_sweeps},
        rules,
    )


def run(options: Options) -> None:
    """Print one line for memory and one for the sweep."""
    workload = Workload(QUICK_ROWS if options.is_quick else _ROWS, _DIM, threads=1)
    say(f"[eviction] {workload.rows:,} rows, dim {_DIM}: half of them replaced")
    measure_churn(workload, options.rules)
    say(f"[eviction] {workload.rows:,} rows, dim {_DIM}: lookups beside a sweep")
    measure_sweep(workload, options.rules)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
