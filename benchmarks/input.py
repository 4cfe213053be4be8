"""Samples from Parquet to batches on one core: 26 ids, 13 floats and a label each, batch 4,096.

Files are warm. Beside it Arrow's own reader, which gives record batches of the same columns: what
is between them is the making of tensors, checks and the cut into batches.
"""

import functools
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import torch

from benchmarks.harness import ROOT, BenchmarkError, Sample, interleave, say, timed
from benchmarks.question import Question
from benchmarks.stage import Options, run_stage
from monolith import data

_BATCH = 4096
_SAMPLES, _QUICK_SAMPLES = 1_000_000, 50_000
_FILES = 4
_FEATURES, _DENSE = 26, 13
_FOLDER = ROOT / "build" / "benchmarks" / "input"


def write(folder: Path, num_samples: int, with_dictionary: bool) -> None:
    """Parquet files of made-up samples."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    source = data.synthetic(num_samples, num_features=_FEATURES, num_dense=_DENSE)
    size = num_samples // _FILES
    for i in range(_FILES):
        block = source.stage.read(i * size, size)  # type: ignore[attr-defined]
        pq.write_table(
            data.as_table(block), folder / f"{i}.parquet", compression="snappy",
            use_dictionary=with_dictionary, row_group_size=100_000,
        )  # fmt: skip


def sample(count: Callable[[], int], num_samples: int) -> Sample:
    """Million ids per second of processor time."""
    with timed() as window:
        start = time.process_time()
        got = count()
        seconds = time.process_time() - start
    if got != num_samples:
        raise BenchmarkError(f"[input] expected {num_samples} samples, got {got}")
    return Sample(num_samples * _FEATURES / seconds / 1e6, window.others_cores)


def of_pipeline(source: data.Pipeline) -> int:
    """Samples of all batches."""
    return sum(len(batch) for batch in source)


def of_arrow(folder: Path) -> int:
    """The same by Arrow alone, without tensors."""
    count = 0
    for path in sorted(folder.iterdir()):
        for rows in pq.ParquetFile(path).iter_batches(_BATCH, use_threads=False):
            count += rows.num_rows
    return count


def run(options: Options) -> None:
    """A line for each kind of file, plain and shuffled."""
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
    finally:
        shutil.rmtree(_FOLDER, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
