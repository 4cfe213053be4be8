"""What following a table costs: the touched log, reading it, cuts with a cursor, and saves.

Updates are `apply_gradients` with Adagrad. The logged table's cursor reads before every sample, so
each sample notes each of its rows anew. A save beside updates writes at most 100 MB/s with one
thread, beside one thread that updates: a table of rows, and one whose keys all wait for admission.
A sample is of whole saves: at first nearly every update keeps an old row for the save, later few
do; `begin_ratio` is that of the first seconds. Before each sample the memory of a save is touched
and freed, as before loads in `disk.py`.
"""

import dataclasses
import functools
import itertools
import shutil
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch

from benchmarks import workload as work
from benchmarks.harness import (
    ROOT,
    BenchmarkError,
    Rules,
    Sample,
    Window,
    say,
    timed,
    touch_and_free,
)
from benchmarks.ours import fill, table_config
from benchmarks.question import Question, key_batches
from benchmarks.stage import QUICK_ROWS, Options, run_stage, sizes_of
from benchmarks.workload import Workload
from monolith.table import MinCount, Table
from monolith.table.disk import save_tables
from monolith.table.rows import RowMemory, Touched

_ROWS, _DIM = 2_000_000, 16
_SAVED_ROWS = 5_000_000
_NUM_READ = 1_000_000
_NUM_OPENED = 50
_SMALL_BATCH = 4096
_MIN_SECONDS = 3.0  # of a sample
_SAVE_BYTES_PER_SECOND = 100e6
_FOLDER = ROOT / "build" / "benchmarks" / "changes"


def make(workload: Workload) -> Table:
    """A table with all of its rows and Adagrad state."""
    table = Table(table_config(workload.dim, with_state=True))
    fill(table, workload)
    return table


def make_asking(workload: Workload) -> Table:
    """A table without rows: all keys are candidates, and stay so."""
    rule = MinCount(1 << 30, max_bytes=1 << 30)
    table = Table(dataclasses.replace(table_config(workload.dim, with_state=True), admission=rule))
    for indices in work.index_ranges(workload.rows, workload.batch):
        keys = torch.from_numpy(work.keys_of(indices))
        table.apply_gradients(keys, torch.ones(len(keys), workload.dim))
    return table


def measure_log(workload: Workload, rules: Rules) -> None:
    """Updates with the log on, beside a table whose log is off."""
    batches = key_batches(workload)
    gradient = torch.from_numpy(work.gradients(workload)[0])
    logged, plain = make(workload), make(workload)
    logged.changes("reader")

    def sample(table: Table) -> Sample:
        if table is logged:
            table.changes("reader")
        with timed() as window:
            for keys in batches:
                table.apply_gradients(keys, gradient, num_threads=workload.threads)
        num_keys = len(batches) * workload.batch
        return Sample(num_keys / window.seconds / 1e6, window.others_cores)

    for table in (logged, plain):
        sample(table)
    takes = {"on": functools.partial(sample, logged), "off": functools.partial(sample, plain)}
    Question("changes_log", "M keys/s", sizes_of(workload, "uniform"), rules).measure(takes)


def measure_read(workload: Workload, num_read: int, rules: Rules) -> None:
    """Reading the keys of many changes."""
    table = make(workload)
    table.changes("reader")
    changed = [
        torch.from_numpy(work.keys_of(each)) for each in work.index_ranges(num_read, workload.batch)
    ]

    def sample() -> Sample:
        for keys in changed:
            gradient = torch.ones(len(keys), workload.dim)
            table.apply_gradients(keys, gradient, num_threads=workload.threads)
        with timed() as window:
            touched = table.changes("reader")
        if len(touched.keys) != num_read or len(touched.tombstones):
            raise BenchmarkError(f"[changes] expected {num_read} keys, got {len(touched.keys)}")
        return Sample(num_read / window.seconds / 1e6, window.others_cores)

    sample()
    question = Question("changes_read", "M keys/s", sizes_of(workload), rules)
    question.measure({"read": sample}, lambda: {"num_changed": num_read})


def update(table: Table, keys: torch.Tensor, workload: Workload) -> None:
    """Change the rows of the keys, in calls of a batch."""
    for part in torch.split(keys, workload.batch):
        table.apply_gradients(part, torch.ones(len(part), workload.dim))


def measure_open(table: Table, changed: torch.Tensor, workload: Workload, rules: Rules) -> None:
    """Opening a cut with a cursor, while another cursor has not read the notes in the log."""

    def sample() -> Sample:
        seconds: list[float] = []
        with timed() as window:
            for keys in torch.split(changed, _SMALL_BATCH)[:_NUM_OPENED]:
                update(table, keys, workload)
                before = time.perf_counter()
                snapshot = table.cut(cursor="opened")
                seconds.append(time.perf_counter() - before)
                snapshot.changes()
                snapshot.close()
        return Sample(sorted(seconds)[int(0.99 * len(seconds))] * 1e3, window.others_cores)

    table.changes("behind")
    update(table, changed, workload)
    sample()
    notes = {"num_notes": len(changed), "num_opened": _NUM_OPENED}
    question = Question("cut_open", "ms, p99", sizes_of(workload), rules)
    question.measure({"opened": sample}, lambda: notes)
    for cursor in table.cursors():
        table.drop_cursor(cursor)


def measure_cut_changes(
    table: Table, changed: torch.Tensor, workload: Workload, rules: Rules
) -> None:
    """Reading the keys that changed up to a cut, and reading the keys that changed."""

    def read(is_cut: bool) -> tuple[Touched, Window]:
        with table.cut(cursor="cut") if is_cut else nullcontext() as snapshot, timed() as window:
            touched = snapshot.changes() if snapshot else table.changes("table")
        return touched, window

    def sample(is_cut: bool) -> Sample:
        read(is_cut)
        update(table, changed, workload)
        touched, window = read(is_cut)
        if len(touched.keys) != len(changed):
            raise BenchmarkError(f"[changes] expected {len(changed)} keys, got {len(touched.keys)}")
        return Sample(len(changed) / window.seconds / 1e6, window.others_cores)

    takes = {name: functools.partial(sample, name == "cut") for name in ("cut", "table")}
    for take in takes.values():
        take()
    question = Question("cut_changes", "M keys/s", sizes_of(workload), rules)
    question.measure(takes, lambda: {"num_changed": len(changed)})


def measure_entries(table: Table, changed: torch.Tensor, workload: Workload, rules: Rules) -> None:
    """Rows of changed keys at a cut, on one thread, before and after they change again."""
    memory = RowMemory()
    with table.cut(cursor="cut") as snapshot:
        keys = snapshot.changes().keys

        def sample(is_cut: bool) -> Sample:
            with timed() as window:
                for part in torch.split(keys, workload.batch):
                    entries = (
                        snapshot.lookup_entry(part, memory=memory)
                        if is_cut
                        else table.lookup_entry(part)
                    )
                    if not entries.present.all():
                        raise BenchmarkError("[changes] expected a row for every changed key")
            return Sample(len(keys) / window.seconds / 1e6, window.others_cores)

        takes = {name: functools.partial(sample, name == "cut") for name in ("cut", "table")}
        for since in ("unchanged", "changed"):
            for take in takes.values():
                take()
            sizes = {**sizes_of(workload), "since_the_cut": since}
            question = Question("cut_entries", "M keys/s of one thread", sizes, rules)
            question.measure(takes, lambda: {"num_changed": len(keys)})
            update(table, changed, workload)


def measure_cuts(workload: Workload, num_changed: int, rules: Rules) -> None:
    """Cuts of a table that read a cursor."""
    table = make(workload)
    order = torch.randperm(workload.rows, generator=torch.Generator().manual_seed(1))
    changed = torch.from_numpy(work.keys_of(order[:num_changed].numpy()))
    measure_open(table, changed, workload, rules)
    measure_cut_changes(table, changed, workload, rules)
    with table.cut(cursor="cut") as snapshot:
        snapshot.changes()
    update(table, changed, workload)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        measure_entries(table, changed, dataclasses.replace(workload, threads=1), rules)
    finally:
        torch.set_num_threads(num_threads)


@dataclass
class Beside:
    """Updates of one thread, with and without a save; the seconds of each call."""

    table: Table
    workload: Workload
    seconds: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    begins: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    num_saves: int = 0

    def _save(self) -> None:
        start = time.perf_counter()
        while time.perf_counter() - start < _MIN_SECONDS:
            rate = _SAVE_BYTES_PER_SECOND
            save_tables(self.table, _FOLDER, num_threads=1, max_bytes_per_second=rate)
            self.num_saves += 1

    def take(self, is_beside: bool) -> Sample:
        """Million keys per second while tables are saved, or for a while alone."""
        batches = key_batches(self.workload)
        gradient = torch.from_numpy(work.gradients(self.workload)[0])
        seconds: list[float] = []
        touch_and_free(self.table.memory_report()["total_bytes"])
        with ThreadPoolExecutor(1) as saver, timed() as window:
            save = saver.submit(self._save if is_beside else bool)
            start = time.perf_counter()
            while (before := time.perf_counter()) - start < _MIN_SECONDS or not save.done():
                keys = batches[len(seconds) % len(batches)]
                self.table.apply_gradients(keys, gradient, num_threads=1)
                seconds.append(time.perf_counter() - before)
        save.result()
        self.seconds[is_beside] += seconds
        ends = itertools.accumulate(seconds)
        self.begins[is_beside].append(sum(end < _MIN_SECONDS for end in ends))
        num_keys = len(seconds) * self.workload.batch
        return Sample(num_keys / window.seconds / 1e6, window.others_cores)

    def notes(self) -> dict[str, float]:
        """What the samples do not say."""
        begins = {key: statistics.median(values) for key, values in self.begins.items()}
        return {
            "num_saves": self.num_saves,
            "begin_ratio": round(begins[True] / begins[False], 4),
            "pause_p99_ms": self._pause_ms(0.99),
            "pause_max_ms": self._pause_ms(1.0),
        }

    def _pause_ms(self, quantile: float) -> float:
        """How much longer a call took beside a save than the usual one alone, in milliseconds."""
        calls = sorted(self.seconds[True])
        late = calls[min(len(calls) - 1, int(quantile * len(calls)))]
        return round((late - statistics.median(self.seconds[False])) * 1e3, 3)


def measure_save(name: str, table: Table, workload: Workload, rules: Rules) -> None:
    """Updates beside a save and alone, in turns."""
    shutil.rmtree(_FOLDER, ignore_errors=True)
    try:
        beside = Beside(table, workload)
        takes = {
            "beside": functools.partial(beside.take, True),
            "alone": functools.partial(beside.take, False),
        }
        sizes = sizes_of(workload, "uniform")
        Question(name, "M keys/s of one thread", sizes, rules).measure(takes, beside.notes)
    finally:
        shutil.rmtree(_FOLDER, ignore_errors=True)


def run(options: Options) -> None:
    """Print one line per question."""
    rows = QUICK_ROWS if options.is_quick else _ROWS
    say(f"[changes] {rows:,} rows, dim {_DIM}: the log")
    measure_log(Workload(rows, _DIM), options.rules)
    measure_read(Workload(rows, _DIM), min(rows, _NUM_READ), options.rules)
    saved = QUICK_ROWS if options.is_quick else _SAVED_ROWS
    say(f"[changes] {saved:,} rows, dim {_DIM}: cuts with a cursor")
    measure_cuts(Workload(saved, _DIM), min(saved // 2, _NUM_READ), options.rules)
    say(f"[changes] {saved:,} rows: updates beside a save of 100 MB/s")
    small = Workload(saved, _DIM, batch=_SMALL_BATCH, threads=1)
    measure_save("save_beside", make(small), small, options.rules)
    say(f"[changes] {rows:,} candidates: updates beside a save of 100 MB/s")
    asking = Workload(rows, _DIM, batch=2 * _SMALL_BATCH, threads=1)
    measure_save("save_beside_admission", make_asking(asking), asking, options.rules)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
