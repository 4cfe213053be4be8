"""What small tables cost: empty ones, a thousand of ten rows, and the time to create a thousand.

The baseline of the time is the creation of a thousand `nn.EmbeddingBag(10, 16)`.
"""

import functools
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

from benchmarks.harness import BenchmarkError, Rules, Sample, Series, resident_bytes, say, timed
from benchmarks.ours import table_config
from benchmarks.question import Question
from benchmarks.stage import Options, run_stage
from benchmarks.worker import check
from monolith.table import Table

_NUM_TABLES = 1_000
_ROWS = 10
_DIM = 16
_NUM_REPEATS = 7


def sizes_of(rows: int) -> dict[str, int]:
    """The size fields of a JSON line."""
    return {"tables": _NUM_TABLES, "rows": rows, "dim": _DIM}


def measure_memory(rules: Rules) -> None:
    """RSS of a thousand tables: while empty, and with ten rows each."""
    configs = [table_config(_DIM, with_state=False, name=f"t{n}") for n in range(_NUM_TABLES)]
    keys = torch.arange(_ROWS) << 40
    warm_up = Table(table_config(_DIM, with_state=False))
    warm_up.lookup_or_insert(keys)
    before = resident_bytes()
    tables = [Table(config) for config in configs]
    empty = (resident_bytes() - before) / _NUM_TABLES
    for table in tables:
        table.lookup_or_insert(keys)
    filled = resident_bytes() - before
    for table in tables:
        check("small_tables", table.lookup(keys).numpy(), table.lookup_or_insert(keys).numpy())
        if len(table) != _ROWS:
            raise BenchmarkError(f"[small_tables] expected {_ROWS} rows, got {len(table)}")
        table.close()
    series = {"empty": Series([empty]), "filled": Series([filled / 2**20])}
    Question("empty_table", "B", sizes_of(0), rules).answer(series, "empty")
    Question("thousand_tables", "MiB", sizes_of(_ROWS), rules).answer(series, "filled")


def creation(create: Callable[[int], object]) -> Sample:
    """Milliseconds to create a thousand; the median of a few times makes one sample."""
    milliseconds = []
    with timed() as window:
        for _ in range(_NUM_REPEATS):
            start = time.perf_counter()
            made = [create(number) for number in range(_NUM_TABLES)]
            milliseconds.append((time.perf_counter() - start) * 1e3)
            for each in made:
                if isinstance(each, Table):
                    each.close()
    return Sample(statistics.median(milliseconds), window.others_cores)


def measure_creation(rules: Rules) -> None:
    """Time to create a thousand empty tables."""
    configs = [table_config(_DIM, with_state=False, name=f"t{n}") for n in range(_NUM_TABLES)]

    def create_table(number: int) -> Table:
        return Table(configs[number])

    def create_module(_number: int) -> nn.EmbeddingBag:
        return nn.EmbeddingBag(_ROWS, _DIM)

    contenders = {
        "monolith": functools.partial(creation, create_table),
        "torch": functools.partial(creation, create_module),
    }
    for warm_up in contenders.values():
        warm_up()
    Question("create_tables", "ms", sizes_of(0), rules).measure(contenders)


def run(options: Options) -> None:
    """Print one line for each of the three."""
    say(f"[small_tables] {_NUM_TABLES:,} tables: memory, then creation")
    measure_memory(options.rules)
    measure_creation(options.rules)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
