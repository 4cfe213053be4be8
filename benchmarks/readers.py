"""Python threads that read and write one table, for scaling.py and eviction.py.

Every reader calls `lookup(num_threads=1)`. The gather that they are compared with is torch's
`embedding_bag` of one id per bag on a fixed table: a prefetched copy of rows, without an index.
"""

import functools
import resource
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from benchmarks import workload as work
from benchmarks.harness import Rules, Sample, timed
from benchmarks.ours import fill_known, table_config
from benchmarks.question import Question
from benchmarks.worker import check
from benchmarks.workload import Workload
from monolith.table import Table

Call = Callable[[int], None]
NUM_READERS = 2


@dataclass
class Loop:
    """What one thread did until the deadline."""

    call: Call
    num_calls: int = 0
    seconds: float = 0.0
    num_preemptions: int = 0

    def run(self, barrier: threading.Barrier, seconds: float) -> None:
        """Call again and again, for at least `seconds`."""
        torch.set_num_threads(1)
        barrier.wait(timeout=60)
        switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        start = time.perf_counter()
        while self.seconds < seconds:
            self.call(self.num_calls)
            self.num_calls += 1
            self.seconds = time.perf_counter() - start
        self.num_preemptions = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw - switches


def run_threads(calls: list[Call], seconds: float) -> tuple[list[Loop], float]:
    """Run the calls in one thread each; also the cores that other processes used."""
    loops = [Loop(call) for call in calls]
    barrier = threading.Barrier(len(loops))
    threads = [threading.Thread(target=loop.run, args=(barrier, seconds)) for loop in loops]
    with timed() as window:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return loops, window.others_cores


def rate(loops: list[Loop], batch: int) -> float:
    """Million keys per second of all loops together."""
    return sum(loop.num_calls * batch / loop.seconds for loop in loops) / 1e6


def measure_beside(
    name: str,
    take: Callable[[bool], Sample],
    sizes: dict[str, Any],
    notes: Callable[[], dict[str, Any]],
    rules: Rules,
) -> None:
    """Print the rate of one reader beside something and alone, in turns: `take(is_beside)`."""
    contenders = {
        "beside": functools.partial(take, True),
        "alone": functools.partial(take, False),
    }
    Question(name, "M keys/s of one reader", sizes, rules).measure(contenders, notes)


class Bench:
    """A table and a fixed tensor with the same rows, and the calls on them."""

    def __init__(self, workload: Workload, distribution: str) -> None:
        self.workload, self.distribution = workload, distribution
        self.table = Table(table_config(workload.dim, with_state=True))
        self._weight = fill_known(self.table, workload)
        batches = work.index_batches(workload, distribution)
        self._ids = [torch.from_numpy(batch) for batch in batches]
        self._keys = [torch.from_numpy(work.keys_of(batch)) for batch in batches]
        self._gradients = [torch.from_numpy(each) for each in work.gradients(workload)]
        self._offsets = torch.arange(workload.batch + 1)
        expected = work.values_of(batches[0], workload.dim)
        check("scaling", self.table.lookup(self._keys[0]).numpy(), expected)
        check("scaling", self._gather(self._ids[0]).numpy(), expected)

    def _gather(self, ids: torch.Tensor) -> torch.Tensor:
        return functional.embedding_bag(
            ids, self._weight, self._offsets, mode="sum", include_last_offset=True
        )

    def lookup_call(self, thread: int = 0) -> Call:
        """Each thread begins at another batch."""
        start = thread * len(self._keys) // NUM_READERS

        def call(number: int) -> None:
            self.table.lookup(self._keys[(start + number) % len(self._keys)], num_threads=1)

        return call

    def gather_call(self, thread: int) -> Call:
        """The same batches on the fixed tensor."""
        start = thread * len(self._ids) // NUM_READERS

        def call(number: int) -> None:
            self._gather(self._ids[(start + number) % len(self._ids)])

        return call

    def update_call(self) -> Call:
        """A writer: applies gradients, with one thread."""

        def call(number: int) -> None:
            keys = self._keys[number % len(self._keys)]
            gradient = self._gradients[number % len(self._gradients)]
            self.table.apply_gradients(keys, gradient, num_threads=1)

        return call
