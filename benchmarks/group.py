"""A step over many tables in fused calls, next to one table with all their rows.

A step is a lookup of a batch and an update with Adagrad; the keys of a batch come table by table.
"""

import functools
import sys
from collections.abc import Callable

import numpy as np
import torch

import monolith
from benchmarks import workload as work
from benchmarks.bags import sample
from benchmarks.harness import Measurement, emit, interleave, ratios, say
from benchmarks.ours import table_config
from benchmarks.stage import Options, run_stage, sizes_of
from benchmarks.worker import check
from benchmarks.workload import Workload
from monolith.cluster.table_group import TableGroup
from monolith.ops import Ragged
from monolith.table import Table

_NUM_TABLES = 100
_ROWS = 2_000_000  # of all tables
_QUICK_ROWS = 20_000
_DIM = 16
_BATCH = 26 * 4_096
_DISTRIBUTION = "uniform"
_VERSIONS = {"monolith": monolith.__version__, "torch": torch.__version__}


class Bench:
    """A group of tables and one table, with the same rows.

    Args:
        workload: sizes; the rows are those of all tables.
    """

    def __init__(self, workload: Workload) -> None:
        torch.set_num_threads(workload.threads)
        self._rows_of_table = workload.rows // _NUM_TABLES
        self._table = Table(table_config(_DIM, with_state=True))
        self._group = TableGroup(
            Table(table_config(_DIM, with_state=True, name=f"table_{number:03}"))
            for number in range(_NUM_TABLES)
        )
        for indices in work.index_ranges(workload.rows, workload.batch):
            values = torch.from_numpy(work.values_of(indices, _DIM))
            keys = self._keys(indices)
            self._group.assign(keys, values.flatten())
            self._table.assign(keys.values, values)
        batches = work.index_batches(workload, _DISTRIBUTION)
        self._batches = [self._keys(np.sort(batch)) for batch in batches]
        self._grads = torch.from_numpy(work.gradients(workload)[0])

    def _keys(self, indices: work.Int64s) -> Ragged:
        """Keys of ascending indices, a row for each table."""
        counts = np.bincount(indices // self._rows_of_table, minlength=_NUM_TABLES)
        values = torch.from_numpy(work.keys_of(indices))
        return Ragged.from_lengths(values, torch.from_numpy(counts))

    def steps(self) -> dict[str, Callable[[int], object]]:
        """A step of each contender; before the first one their rows are equal."""
        flat_grads = self._grads.flatten()

        def group(number: int) -> torch.Tensor:
            keys = self._batches[number % len(self._batches)]
            rows = self._group.lookup(keys)
            self._group.apply_gradients(keys, flat_grads)
            return rows

        def table(number: int) -> torch.Tensor:
            keys = self._batches[number % len(self._batches)].values
            rows = self._table.lookup(keys)
            self._table.apply_gradients(keys, self._grads)
            return rows

        for number in range(2):
            expected = table(number).numpy()
            check("group", group(number).numpy().reshape(expected.shape), expected, tolerance=0)
        return {"group": group, "one_table": table}


def run(options: Options) -> None:
    """Print the rate of the group, and its ratio to that of one table."""
    rules = options.rules
    rows = _QUICK_ROWS if options.is_quick else _ROWS
    workload = Workload(rows, _DIM, _BATCH)
    say(f"[group] {_NUM_TABLES} tables, {rows:,} rows in all, dim {_DIM}")
    contenders = {
        system: functools.partial(sample, step, _BATCH, rules.sample_seconds)
        for system, step in Bench(workload).steps().items()
    }
    for warm_up in contenders.values():
        warm_up()
    series = interleave(contenders, rules)
    measurement = Measurement(
        name="group",
        system="monolith",
        unit="M keys/s",
        series=series["group"],
        sizes={**sizes_of(workload, _DISTRIBUTION), "tables": _NUM_TABLES},
        versions=_VERSIONS,
        ratios=ratios(series, "group", ["one_table"]),
    )
    emit(measurement, rules)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
