"""Save and load of a table, beside one thread that writes and reads the same bytes in sequence.

Both sides sync what they write; before a read the file is dropped from the cache. Before each read
of either side the memory of a load is touched and freed: the first touch of memory is the machine's
matter, not the disk's, and a host may take back within seconds what an earlier load has freed.
"""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow
import torch

import monolith
from benchmarks import workload as work
from benchmarks.harness import (
    ROOT,
    BenchmarkError,
    Rules,
    Sample,
    interleave,
    say,
    timed,
    touch_and_free,
)
from benchmarks.ours import table_config
from benchmarks.question import Question
from benchmarks.stage import QUICK_ROWS, Options, run_stage, sizes_of
from benchmarks.workload import Workload
from monolith.table import Table
from monolith.table.disk import load_table, save_tables

SIZES = ((5_000_000, 16), (2_000_000, 64))  # rows with Adagrad state, dim
_FOLDER = ROOT / "build" / "benchmarks" / "disk"
_PIECE = 1 << 20  # bytes of one read or write
_MAX_DISCARDS = 4
_VERSIONS = {
    "monolith": monolith.__version__,
    "pyarrow": pyarrow.__version__,
    "torch": torch.__version__,
}


def drop_from_cache(paths: list[Path]) -> None:
    """The next read of the files comes from the disk."""
    for path in paths:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Disk:
    """A table, its save, and the same bytes in one file."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._table = Table(table_config(workload.dim, with_state=True))
        for indices in work.index_ranges(workload.rows, workload.batch):
            keys = torch.from_numpy(work.keys_of(indices))
            values = torch.from_numpy(work.values_of(indices, workload.dim))
            self._table.assign(keys, values)
        self._save, self._plain = _FOLDER / "save", _FOLDER / "plain"
        shutil.rmtree(_FOLDER, ignore_errors=True)
        _FOLDER.mkdir(parents=True)
        self.save()
        self._bytes = [path.read_bytes() for path in self._files()]
        self.num_bytes = sum(map(len, self._bytes))
        self.write()

    def _files(self) -> list[Path]:
        return sorted(self._save.rglob("*.arrow"))

    def _write_save(self) -> None:
        save_tables(self._table, self._save, num_threads=self._workload.threads)

    def _read_save(self) -> Table:
        return load_table(self._save, num_threads=self._workload.threads)

    def save(self) -> Sample:
        """MB per second of a save."""
        shutil.rmtree(self._save, ignore_errors=True)
        with timed() as window:
            self._write_save()
        num_bytes = sum(path.stat().st_size for path in self._files())
        return Sample(num_bytes / window.seconds / 1e6, window.others_cores)

    def write(self) -> Sample:
        """MB per second of writing the same bytes."""
        self._plain.unlink(missing_ok=True)
        with timed() as window, open(self._plain, "wb", buffering=0) as file:
            for data in self._bytes:
                for start in range(0, len(data), _PIECE):
                    file.write(memoryview(data)[start : start + _PIECE])
            os.fsync(file.fileno())
        return Sample(self.num_bytes / window.seconds / 1e6, window.others_cores)

    def load(self) -> Sample:
        """MB per second of a load into a new table."""
        self._prepare_read(self._files())
        with timed() as window:
            table = self._read_save()
        self._check(table)
        table.close()
        return Sample(self.num_bytes / window.seconds / 1e6, window.others_cores)

    def read(self) -> Sample:
        """MB per second of reading the same bytes."""
        self._prepare_read([self._plain])
        memory, num_bytes = bytearray(_PIECE), 0
        with timed() as window, open(self._plain, "rb", buffering=0) as file:
            while num_read := file.readinto(memory):
                num_bytes += num_read
        if num_bytes != self.num_bytes:
            raise BenchmarkError(f"[disk] expected {self.num_bytes} bytes, got {num_bytes}")
        return Sample(num_bytes / window.seconds / 1e6, window.others_cores)

    def _prepare_read(self, paths: list[Path]) -> None:
        drop_from_cache(paths)
        touch_and_free(3 * self.num_bytes)  # the file in the cache, and its table with its index

    def _check(self, table: Table) -> None:
        indices = work.index_batches(self._workload, "uniform")[0]
        keys = torch.from_numpy(work.keys_of(indices))
        is_equal = torch.equal(table.lookup(keys), self._table.lookup(keys))
        if len(table) != self._workload.rows or not is_equal:
            raise BenchmarkError(f"[disk] expected the saved rows, got {len(table)} others")


def measure(disk: Disk, workload: Workload, rules: Rules, what: str = "disk") -> None:
    """Print one line for the save and one for the load, each beside the disk."""
    sides: dict[str, tuple[Callable[[], Sample], Callable[[], Sample]]] = {
        f"{what}_save": (disk.save, disk.write),
        f"{what}_load": (disk.load, disk.read),
    }
    for name, (ours, plain) in sides.items():
        series = interleave({"monolith": ours, "sequential": plain}, rules)
        question = Question(name, "MB/s", sizes_of(workload), rules, _VERSIONS)
        for system in series:
            notes = {"num_bytes": disk.num_bytes}
            question.answer(series, system, "sequential", system=system, notes=notes)


def run(
    options: Options,
    make: Callable[[Workload], Disk] = Disk,
    what: str = "disk",
    sizes: Sequence[tuple[int, int]] = SIZES,
) -> None:
    """Print two lines per size and side."""
    rules = replace(options.rules, max_discards=min(options.rules.max_discards, _MAX_DISCARDS))
    for rows, dim in sizes:
        workload = Workload(min(rows, QUICK_ROWS) if options.is_quick else rows, dim)
        say(f"[{what}] {workload.rows:,} rows, dim {dim}, Adagrad state")
        try:
            measure(make(workload), workload, rules, what)
        finally:
            shutil.rmtree(_FOLDER, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
