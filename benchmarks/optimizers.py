"""Apply with Adam and FTRL beside Adagrad: what share of its bytes per second they reach.

More state is more memory to move; beyond that, an optimizer should cost little. All tables live in
this process and take turns.
"""

import functools
import sys
from dataclasses import replace

import torch

from benchmarks import workload as work
from benchmarks.harness import BenchmarkError, Sample, interleave, say, timed
from benchmarks.ours import fill, table_config
from benchmarks.question import Question, key_batches
from benchmarks.stage import QUICK_ROWS, Options, run_stage, sizes_of
from benchmarks.workload import LEARNING_RATE, Workload
from monolith.table import Segment, Table
from monolith.table.optimizers import FTRL, Adagrad, Adam, Optimizer

_DIM = 16
_ROWS = 20_000_000
_OPTIMIZERS = {
    "adagrad": Adagrad(LEARNING_RATE),
    "adam": Adam(LEARNING_RATE),
    "ftrl": FTRL(LEARNING_RATE),
}
_LINE_BYTES = 64
_META_BYTES = 8


def moved_bytes(optimizer: Optimizer, dim: int) -> int:
    """Of one key: its gradient, a line of the index, and its row, read and written."""
    state = sum(column.num_bytes for column in optimizer.state(dim))
    return 4 * dim + _LINE_BYTES + 2 * (4 * dim + state + _META_BYTES)


def make(optimizer: Optimizer, workload: Workload) -> Table:
    """A table with all of its rows."""
    config = table_config(workload.dim, with_state=True)
    table = Table(replace(config, segments=Segment(workload.dim, optimizer)))
    fill(table, workload)
    return table


def sample(
    table: Table, optimizer: Optimizer, batches: list[torch.Tensor], workload: Workload
) -> Sample:
    """Gigabytes per second of an apply of every batch."""
    gradient = torch.from_numpy(work.gradients(workload)[0])
    with timed() as window:
        applied = [
            table.apply_gradients(keys, gradient, num_threads=workload.threads) for keys in batches
        ]
    if any(each.num_inserted for each in applied):
        raise BenchmarkError("[optimizers] expected keys that have rows")
    num_bytes = len(batches) * workload.batch * moved_bytes(optimizer, workload.dim)
    return Sample(num_bytes / window.seconds / 1e9, window.others_cores)


def run(options: Options) -> None:
    """Print one line per optimizer."""
    workload = Workload(QUICK_ROWS if options.is_quick else _ROWS, _DIM)
    say(f"[optimizers] {workload.rows:,} rows, dim {_DIM}: {', '.join(_OPTIMIZERS)}")
    batches = key_batches(workload)
    takes = {
        name: functools.partial(sample, make(optimizer, workload), optimizer, batches, workload)
        for name, optimizer in _OPTIMIZERS.items()
    }
    for warm_up in takes.values():
        warm_up()
    series = interleave(takes, options.rules)
    question = Question("optimizers", "GB/s", sizes_of(workload, "uniform"), options.rules)
    for name, optimizer in _OPTIMIZERS.items():
        notes = {"optimizer": name, "bytes_per_key": moved_bytes(optimizer, _DIM)}
        question.answer(series, name, "adagrad", notes=notes)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
