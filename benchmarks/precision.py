"""Rows of 16-bit weights beside those of float32: memory per key, rates of lookup and apply.

SGD, so that rows have no state. All tables live in this process; memory is RSS before and after a
table is filled, malloc's free memory given back.
"""

import functools
import sys
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.harness import (
    BenchmarkError,
    Rules,
    Sample,
    Series,
    interleave,
    say,
    timed,
    trimmed_bytes,
)
from benchmarks.question import Question
from benchmarks.stage import QUICK_ROWS, Options, run_stage
from benchmarks.workload import keys_of
from monolith.table import Segment, Table, TableConfig
from monolith.table.optimizers import SGD

_PRECISIONS = ("fp32", "fp16", "bf16")
_ROWS = 2_000_000
_BATCH = 65_536
_NUM_BATCHES = 16


def build(rows: int, dim: int, precision: str) -> tuple[Table, Series]:
    """A table with all of its rows, and its bytes per key."""
    table = Table(TableConfig("bench", Segment(dim, SGD(0.01), precision=precision)))
    table.lookup_or_insert(torch.tensor([-1]))  # what a first call allocates is not the table's
    before = trimmed_bytes()
    for first in range(0, rows, _BATCH):
        indices = np.arange(first, min(first + _BATCH, rows), dtype=np.int64)
        table.lookup_or_insert(torch.from_numpy(keys_of(indices)))
    return table, Series([(trimmed_bytes() - before) / rows])


def batches(rows: int) -> list[torch.Tensor]:
    """Keys of the table, drawn uniformly."""
    random = np.random.default_rng(1)
    size = min(_BATCH, rows)
    drawn = (random.integers(0, rows, size, dtype=np.int64) for _ in range(_NUM_BATCHES))
    return [torch.from_numpy(keys_of(indices)) for indices in drawn]


def sample(call: Callable[[torch.Tensor], object], keys: list[torch.Tensor]) -> Sample:
    """Million keys per second of a call on every batch."""
    with timed() as window:
        for batch in keys:
            call(batch)
    return Sample(sum(map(len, keys)) / window.seconds / 1e6, window.others_cores)


def check(tables: dict[str, Table], keys: torch.Tensor) -> None:
    """The weights of every precision lie beside those of float32."""
    exact = tables["fp32"].lookup(keys)
    for precision, table in tables.items():
        error = float((table.lookup(keys) - exact).abs().max())
        if error > 0.05 * 2.0**-7:
            raise BenchmarkError(f"{precision} weights are {error} away from float32")


def measure(rows: int, dim: int, rules: Rules) -> None:
    """Print the lines of one dimension."""
    say(f"[precision] {rows:,} rows, dim {dim}: {', '.join(_PRECISIONS)}")
    built = {precision: build(rows, dim, precision) for precision in _PRECISIONS}
    tables = {precision: table for precision, (table, _) in built.items()}
    keys = batches(rows)
    check(tables, keys[0])
    gradient = torch.full((len(keys[0]), dim), 1e-3)
    calls: dict[str, dict[str, Callable[[torch.Tensor], object]]] = {
        "precision_lookup": {p: t.lookup for p, t in tables.items()},
        "precision_apply": {
            p: functools.partial(t.apply_gradients, grads=gradient) for p, t in tables.items()
        },
    }
    series = {"precision_memory": {precision: each for precision, (_, each) in built.items()}}
    for name, by_precision in calls.items():
        contenders = {p: functools.partial(sample, call, keys) for p, call in by_precision.items()}
        for warm_up in contenders.values():
            warm_up()
        series[name] = interleave(contenders, rules)
    sizes = {"rows": rows, "dim": dim, "batch": len(keys[0])}
    for name, each in series.items():
        unit = "B/key" if name == "precision_memory" else "M keys/s"
        for precision in _PRECISIONS:
            notes = {"precision": precision, "threads": torch.get_num_threads()}
            Question(name, unit, sizes, rules).answer(each, precision, "fp32", notes=notes)
    for table in tables.values():
        table.close()


def run(options: Options) -> None:
    """Print three lines per dimension and precision."""
    for dim in (16, 64):
        measure(QUICK_ROWS if options.is_quick else _ROWS, dim, options.rules)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
