"""Rows per second of processor time of an import from the reference system's dumps.

Rows of Adagrad from a dump of one table (TFRecord), and from a dump of many tables (blocks of
Snappy) with metadata. Files are warm; a sample is an import of all rows into a new table.
"""

import functools
import shutil
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from benchmarks import workload as work
from benchmarks.harness import ROOT, BenchmarkError, Sample, interleave, say, timed
from benchmarks.ours import table_config
from benchmarks.question import Question
from benchmarks.stage import QUICK_ROWS, Options, run_stage, sizes_of
from benchmarks.workload import Int64s, Workload
from monolith.checkpoint.reference_dump import import_dumps, open_dumps
from monolith.table import Table
from monolith.util.tfrecord import tfrecord_frame

_ROWS, _DIM = 1_000_000, 16
_TIME = 1_700_000_000
_BLOCK_BYTES = 262_144  # of Snappy, before compression
_FOLDER = ROOT / "build" / "benchmarks" / "imports"


def entries(indices: Int64s) -> Iterator[bytes]:
    """Yield the `EntryDump` messages of rows whose weights and norms are their known values."""
    values = work.values_of(indices, _DIM).astype("<f4")
    number = np.dtype([("tag", "u1"), ("value", "<f4")])
    numbers = 5 * _DIM
    layout = [
        ("id_tag", "u1"), ("id", "<i8"), ("num", number, _DIM),
        ("heads", "u1", 6), ("norm", number, _DIM), ("time", "u1", 6),
    ]  # fmt: skip
    rows = np.zeros(len(indices), layout)
    rows["id_tag"], rows["id"] = 0x09, work.keys_of(indices)
    rows["num"]["tag"], rows["num"]["value"] = 0x15, values
    rows["heads"] = [0x1A, numbers + 4, 0x0A, numbers + 2, 0x0A, numbers]  # opt, dump, adagrad
    rows["norm"]["tag"], rows["norm"]["value"] = 0x0D, np.abs(values)
    rows["time"] = [0x20, *(_TIME >> 7 * i & 0x7F | (i < 4) << 7 for i in range(5))]
    data, size = rows.tobytes(), rows.itemsize
    return (data[at : at + size] for at in range(0, len(data), size))


def frames(workload: Workload) -> Iterator[bytes]:
    """Yield the records of all rows."""
    for indices in work.index_ranges(workload.rows, workload.batch):
        yield from map(tfrecord_frame, entries(indices))


def write_dumps(workload: Workload) -> dict[str, Path]:
    """Write both kinds of dumps, and return their folders."""
    codec = pa.Codec("snappy")
    folders = {kind: _FOLDER / kind for kind in ("table", "tables")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    one = folders["table"] / "MonolithHashTable_bench-00000-of-00001"
    many = folders["tables"] / "MonolithMultiHashTable_0-00000-of-00001"
    with one.open("wb") as plain, many.open("wb") as packed:
        block = bytearray()

        def close_block() -> None:
            data = codec.compress(bytes(block), asbytes=True)
            packed.write(struct.pack(">I", len(data)) + data)
            block.clear()

        for frame in frames(workload):
            plain.write(frame)
            if len(block) + len(frame) > _BLOCK_BYTES:
                close_block()
            block += frame
        close_block()
    name = b"bench"
    metadata = b"\x0a" + bytes([len(name)]) + name + b"\x10" + varint(workload.rows)
    meta = folders["tables"] / "MonolithMultiHashTable_0.meta-00000-of-00001"
    meta.write_bytes(tfrecord_frame(metadata))
    return folders


def varint(number: int) -> bytes:
    """Encode a number as protobuf does."""
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])


def take(folder: Path, workload: Workload) -> Sample:
    """Measure the million rows per second of an import into a new table."""
    with Table(table_config(_DIM, with_state=True)) as table:
        with timed() as window:
            start = time.process_time()
            import_dumps(open_dumps(folder), [table])
            seconds = time.process_time() - start
        check(table, workload)
    return Sample(workload.rows / seconds / 1e6, window.others_cores)


def check(table: Table, workload: Workload) -> None:
    """Compare the number of rows, and some of them, with what was written."""
    indices = next(iter(work.index_ranges(workload.rows, 1000)))
    rows = table.lookup_entry(torch.from_numpy(work.keys_of(indices))).rows
    weights = torch.from_numpy(work.values_of(indices, _DIM))
    columns = list(rows.columns.values())
    if len(table) != workload.rows or not torch.equal(columns[0], weights):
        raise BenchmarkError(f"[imports] expected {workload.rows:,} known rows, got {len(table):,}")
    if not torch.equal(columns[1], weights.abs()) or not (rows.times == _TIME).all():
        raise BenchmarkError("[imports] expected the written norms and times, got others")


def measure(workload: Workload, options: Options) -> None:
    """Print a line for each kind of dump."""
    takes: dict[str, Callable[[], Sample]] = {
        kind: functools.partial(take, folder, workload)
        for kind, folder in write_dumps(workload).items()
    }
    for take_one in takes.values():
        take_one()
    series = interleave(takes, options.rules)
    for kind in takes:
        question = Question(f"import_{kind}", "M rows/s", sizes_of(workload), options.rules)
        question.answer(series, kind)


def run(options: Options) -> None:
    """Measure both kinds of dumps."""
    rows = QUICK_ROWS if options.is_quick else _ROWS
    say(f"[imports] {rows:,} rows, dim {_DIM}, Adagrad")
    shutil.rmtree(_FOLDER, ignore_errors=True)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        measure(Workload(rows, _DIM, threads=1), options)
    finally:
        torch.set_num_threads(num_threads)
        shutil.rmtree(_FOLDER, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
