"""Batches made ahead beside a consumer that holds the GIL: plain Python for 5 ms of each batch.

A sample has 26 ids, 13 floats and a label; batch 4,096, `prefetch(2)`, files in the page cache.
Beside it the same without `prefetch`, and the consumer alone, which no reader can beat. `overlap`
is the part of the time of reading that prefetch hides: 1 hides all of it, 0 nothing.
"""

import functools
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks import input as parquet_files
from benchmarks import records as record_files
from benchmarks.harness import BenchmarkError, Sample, interleave, say, timed
from benchmarks.question import Question
from benchmarks.stage import Options, run_stage
from monolith import data

_BATCH, _DEPTH = 4096, 2
_SAMPLES, _QUICK_SAMPLES = 262_144, 16_384
_COPIES = 4  # files
_SECONDS = 0.005  # of a batch in the consumer


def busy(count: int) -> int:
    """Plain Python that gives the GIL away only when it is asked to."""
    total = 0
    for i in range(count):
        total += i & 1
    return total


def calibrate() -> int:
    """Turns of `busy` that take as long as the consumer's part of a batch, undisturbed."""
    count, best = 50_000, float("inf")
    for _ in range(20):
        start = time.perf_counter()
        busy(count)
        best = min(best, time.perf_counter() - start)
    return round(count * _SECONDS / best)


def consume(source: data.Pipeline, turns: int, num_samples: int) -> Sample:
    """Samples per second of a pass."""
    with timed() as window:
        got = 0
        for batch in source:
            busy(turns)
            got += len(batch)
    if got != num_samples:
        raise BenchmarkError(f"[ahead] expected {num_samples} samples, got {got}")
    return Sample(num_samples / window.seconds, window.others_cores)


def consume_nothing(turns: int, num_samples: int) -> Sample:
    """The same of the consumer alone."""
    with timed() as window:
        for _ in range(num_samples // _BATCH):
            busy(turns)
    return Sample(num_samples / window.seconds, window.others_cores)


def sources(folder: Path, num_samples: int) -> dict[str, data.Pipeline]:
    """Files of each format."""
    parquet_files.write(folder / "parquet", num_samples, with_dictionary=False)
    (folder / "records").mkdir()
    table = record_files.make_table("example_batch", num_samples // _COPIES)
    data.RecordWriter("example_batch").write(table, folder / "records" / "0")
    for i in range(1, _COPIES):
        shutil.copy(folder / "records" / "0", folder / "records" / str(i))
    return {
        "parquet": data.parquet(folder / "parquet").batch(_BATCH),
        "example_batch": record_files.pipeline("example_batch", folder / "records"),
    }


def run(options: Options) -> None:
    """A line for each format."""
    torch.set_num_threads(1)
    num_samples = _QUICK_SAMPLES if options.is_quick else _SAMPLES
    turns = calibrate()
    with tempfile.TemporaryDirectory() as folder:
        for name, source in sources(Path(folder), num_samples).items():
            say(f"[ahead] {name}: {num_samples:,} samples")
            ahead = source.prefetch(_DEPTH)
            takes = {
                "monolith": functools.partial(consume, ahead, turns, num_samples),
                "without": functools.partial(consume, source, turns, num_samples),
                "consumer": functools.partial(consume_nothing, turns, num_samples),
            }
            for warm_up in takes.values():
                warm_up()
            series = interleave(takes, options.rules)
            ours, without, alone = (1 / statistics.median(series[each].values) for each in takes)
            sizes = {"samples": num_samples, "batch": _BATCH, "depth": _DEPTH, "consumer_ms": 5}
            question = Question(f"ahead_{name}", "samples/s", sizes, options.rules)
            overlap = round((without - ours) / (without - alone), 3)
            question.answer(series, "monolith", "consumer", notes={"overlap": overlap})
            question.answer(series, "without", "consumer", system="without prefetch")


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
