"""Samples from Parquet to batches on one core: 26 ids, 13 floats and a label each, batch 4,096.

Files are warm. Beside it Arrow's own reader, which gives record batches of the same columns: what
is between them is the making of tensors, checks and the cut into batches. Then files of 300 columns
of which a task uses 26, beside the reading of all columns. Then the memory of a long stream:
shuffled epochs over the files, and how much more the process holds at the end of it than after the
first tenth.
"""

import functools
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import torch

from benchmarks.harness import (
    ROOT,
    BenchmarkError,
    Sample,
    Series,
    interleave,
    resident_bytes,
    say,
    timed,
)
from benchmarks.question import Question
from benchmarks.stage import Options, run_stage
from monolith import data
from monolith.data.memory import SyntheticSource

_BATCH = 4096
_SAMPLES, _QUICK_SAMPLES = 1_000_000, 50_000
_FILES = 4
_FEATURES, _DENSE = 26, 13
_WIDE, _QUICK_WIDE = 100_000, 5_000  # samples of the wide files
_WIDE_FEATURES, _WIDE_DENSE = 250, 49  # and a label
_USED = [*(f"feature_{i}" for i in range(25)), "label"]
_FOLDER = ROOT / "build" / "benchmarks" / "input"


def write(
    folder: Path,
    num_samples: int,
    with_dictionary: bool,
    num_features: int = _FEATURES,
    num_dense: int = _DENSE,
) -> None:
    """Parquet files of made-up samples."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    source = SyntheticSource(num_samples, num_features, num_dense, 1_000_000, 1, seed=0)
    size = num_samples // _FILES
    for i in range(_FILES):
        block = source.read(i * size, size)
        pq.write_table(
            data.as_table(block), folder / f"{i}.parquet", compression="snappy",
            use_dictionary=with_dictionary, row_group_size=100_000,
        )  # fmt: skip


def sample(
    count: Callable[[], int], num_samples: int, per_sample: float = _FEATURES / 1e6
) -> Sample:
    """Million ids per second of processor time, or another quantity of each sample."""
    with timed() as window:
        start = time.process_time()
        got = count()
        seconds = time.process_time() - start
    if got != num_samples:
        raise BenchmarkError(f"[input] expected {num_samples} samples, got {got}")
    return Sample(num_samples * per_sample / seconds, window.others_cores)


def of_pipeline(source: data.Pipeline) -> int:
    """Samples of all batches."""
    return sum(len(batch) for batch in source)


def of_arrow(folder: Path, columns: list[str] | None = None) -> int:
    """The same by Arrow alone, without tensors."""
    count = 0
    for path in sorted(folder.iterdir()):
        file = pq.ParquetFile(path)
        for rows in file.iter_batches(_BATCH, columns=columns, use_threads=False):
            count += rows.num_rows
    return count


def measure_wide(folder: Path, options: Options) -> None:
    """Rows per second of files with 300 columns of which 26 are used, and the bytes that are read.

    "all" is the same pipeline without `select`: it decodes and copies every column.
    """
    num_samples = _QUICK_WIDE if options.is_quick else _WIDE
    write(folder, num_samples, False, _WIDE_FEATURES, _WIDE_DENSE)
    whole = data.parquet(folder)
    calls: dict[str, Callable[[], int]] = {
        "monolith": functools.partial(of_pipeline, whole.select(*_USED).batch(_BATCH)),
        "all": functools.partial(of_pipeline, whole.batch(_BATCH)),
        "arrow": functools.partial(of_arrow, folder, _USED),
    }
    num_bytes = {name: bytes_read(call) for name, call in calls.items()}
    takes = {
        name: functools.partial(sample, call, num_samples, 1.0) for name, call in calls.items()
    }
    sizes = {
        "samples": num_samples, "batch": _BATCH, "columns": len(whole.columns.names()),
        "used": len(_USED), "file_bytes": sum(path.stat().st_size for path in folder.iterdir()),
    }  # fmt: skip
    series = interleave(takes, options.rules)
    question = Question("input_wide", "samples/s of one core", sizes, options.rules)
    for system in takes:
        notes = {"bytes_read": num_bytes[system]}
        question.answer(series, system, "all", system=system, notes=notes)


def bytes_read(count: Callable[[], int]) -> int:
    """Bytes that the process reads from files during a call."""
    before = _bytes_read()
    count()
    return _bytes_read() - before


def _bytes_read() -> int:
    return int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])


def measure_memory(folder: Path, stream_bytes: int, options: Options) -> None:
    """MiB that the process grew between a tenth of the stream and its end."""
    size = sum(path.stat().st_size for path in folder.iterdir())
    num_epochs = max(10, stream_bytes // size)
    source = data.parquet(folder).shuffle(100_000).repeat(num_epochs).batch(_BATCH).prefetch(2)

    def grow() -> Sample:
        num_samples, early = 0, 0
        with timed() as window:
            for batch in source:
                num_samples += len(batch)
                if early == 0 and num_samples * 10 > num_epochs * _rows(folder):
                    early = resident_bytes()
        if num_samples != num_epochs * _rows(folder):
            raise BenchmarkError(f"[input] expected whole epochs, got {num_samples} samples")
        return Sample((resident_bytes() - early) / 2**20, window.others_cores)

    sizes = {"bytes": num_epochs * size, "batch": _BATCH, "window": 100_000}
    question = Question("input_memory", "MiB", sizes, options.rules)
    taken = grow()
    question.answer({"monolith": Series([taken.value], [taken.others_cores])}, "monolith")


def _rows(folder: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in folder.iterdir())


def run(options: Options) -> None:
    """A line for each kind of file, plain and shuffled; for wide files; and one for the memory."""
    torch.set_num_threads(1)
    num_samples = _QUICK_SAMPLES if options.is_quick else _SAMPLES
    say(f"[input] {num_samples:,} samples from Parquet")
    try:
        for with_dictionary in (False, True):
            folder = _FOLDER / ("dictionary" if with_dictionary else "plain")
            write(folder, num_samples, with_dictionary)
            plain = data.parquet(folder)
            calls: dict[str, Callable[[], int]] = {
                "monolith": functools.partial(of_pipeline, plain.batch(_BATCH)),
                "shuffled": functools.partial(of_pipeline, plain.shuffle(100_000).batch(_BATCH)),
                "arrow": functools.partial(of_arrow, folder),
            }
            takes = {
                name: functools.partial(sample, call, num_samples) for name, call in calls.items()
            }
            for warm_up in takes.values():
                warm_up()
            sizes = {
                "samples": num_samples, "batch": _BATCH, "ids": _FEATURES, "dense": _DENSE,
                "dictionary": with_dictionary, "threads": 1,
            }  # fmt: skip
            series = interleave(takes, options.rules)
            question = Question("input_parquet", "M ids/s of one core", sizes, options.rules)
            for system in takes:
                question.answer(series, system, "arrow", system=system)
        say("[input] 26 of 300 columns")
        measure_wide(_FOLDER / "wide", options)
        say("[input] the memory of a long stream")
        stream_bytes = 10**8 if options.is_quick else 10**10
        measure_memory(_FOLDER / "plain", stream_bytes, options)
    finally:
        shutil.rmtree(_FOLDER, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
