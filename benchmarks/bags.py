"""Pooled lookups and updates of keys in bags, beside those by key and torch's `embedding_bag`.

The rates are of keys, whatever the size of the bags: what a verb by key takes for a key, and its
pooled one for the same key in a bag.
"""

import functools
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional

import monolith
from benchmarks import workload as work
from benchmarks.harness import Measurement, Rules, Sample, emit, interleave, ratios, say, timed
from benchmarks.ours import fill_known, table_config
from benchmarks.stage import QUICK_ROWS, Options, run_stage, sizes_of
from benchmarks.worker import check
from benchmarks.workload import Workload
from monolith.table import BagGradients, Bags, Table

Call = Callable[[int], object]
_BAG_SIZES = (1, 4, 20)
_ROWS = 2_000_000
_DIM = 16
_DISTRIBUTION = "uniform"
_VERSIONS = {"monolith": monolith.__version__, "torch": torch.__version__}


class Bench:
    """A table and a fixed tensor with the same rows, and the calls on them.

    Args:
        workload: sizes.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        torch.set_num_threads(workload.threads)
        self.table = Table(table_config(workload.dim, with_state=True))
        self._weight = fill_known(self.table, workload)
        batches = work.index_batches(workload, _DISTRIBUTION)
        self._ids = [torch.from_numpy(batch) for batch in batches]
        self._keys = [torch.from_numpy(work.keys_of(batch)) for batch in batches]
        self._gradients = torch.from_numpy(work.gradients(workload)[0])

    def lookups(self, size: int) -> dict[str, Call]:
        """Pooled lookups of bags of `size`, by key, and torch's; their answers are checked."""
        splits = self._splits(size)
        bags = [Bags(keys, splits) for keys in self._keys]

        def gather(number: int) -> torch.Tensor:
            ids = self._ids[number % len(bags)]
            return functional.embedding_bag(
                ids, self._weight, splits, mode="sum", include_last_offset=True
            )

        def pooled(number: int) -> torch.Tensor:
            return self.table.lookup_bags(bags[number % len(bags)]).values

        def by_key(number: int) -> torch.Tensor:
            return self.table.lookup(self._keys[number % len(bags)])

        check("bags", pooled(0).numpy(), gather(0).numpy(), tolerance=1e-4)
        return {"monolith": pooled, "lookup": by_key, "torch": gather}

    def updates(self, size: int) -> dict[str, Call]:
        """Gradients of bags of `size`, and of each key."""
        splits = self._splits(size)
        gradients = self._gradients[: len(splits) - 1]
        queues = [[BagGradients(Bags(keys, splits), gradients)] for keys in self._keys]

        def pooled(number: int) -> object:
            return self.table.apply_bag_gradients(queues[number % len(queues)])

        def by_key(number: int) -> object:
            return self.table.apply_gradients(self._keys[number % len(queues)], self._gradients)

        return {"monolith": pooled, "apply_gradients": by_key}

    def _splits(self, size: int) -> torch.Tensor:
        batch = self.workload.batch
        return torch.from_numpy(np.append(np.arange(0, batch, size), batch))


def sample(call: Call, batch: int, seconds: float) -> Sample:
    """Million keys per second of one contender."""
    num_calls = 0
    with timed() as window:
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            call(num_calls)
            num_calls += 1
    return Sample(num_calls * batch / window.seconds / 1e6, window.others_cores)


def measure(name: str, bench: Bench, size: int, calls: dict[str, Call], rules: Rules) -> None:
    """Print the rate of the pooled verb, and its ratio to each other contender."""
    batch = bench.workload.batch
    contenders = {
        system: functools.partial(sample, call, batch, rules.sample_seconds)
        for system, call in calls.items()
    }
    for warm_up in contenders.values():
        warm_up()
    series = interleave(contenders, rules)
    measurement = Measurement(
        name=name,
        system="monolith",
        unit="M keys/s",
        series=series["monolith"],
        sizes={**sizes_of(bench.workload, _DISTRIBUTION), "bag_size": size},
        versions=_VERSIONS,
        ratios=ratios(series, "monolith", [system for system in calls if system != "monolith"]),
    )
    emit(measurement, rules)


def run(options: Options) -> None:
    """Print one line per verb, number of threads and size of bags."""
    for threads in (1, 2):
        workload = Workload(QUICK_ROWS if options.is_quick else _ROWS, _DIM, threads=threads)
        say(f"[bags] {workload.rows:,} rows, dim {_DIM}, {threads} thread(s)")
        bench = Bench(workload)
        for size in _BAG_SIZES:
            measure("lookup_bags", bench, size, bench.lookups(size), options.rules)
        for size in _BAG_SIZES:
            measure("apply_bag_gradients", bench, size, bench.updates(size), options.rules)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
