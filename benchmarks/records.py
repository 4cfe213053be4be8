"""Records to batches: files of each format, read whole, in batches of 4,096; one thread.

A sample has 26 features of one id, 13 floats and a label. Checks are on, checksums too, and files
are in the page cache. Beside it the same records decoded in plain Python.
"""

import functools
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from benchmarks import python_records
from benchmarks.harness import BenchmarkError, Sample, say, timed
from benchmarks.question import Question
from benchmarks.stage import Options, run_stage
from monolith import data

_FEATURES, _DENSE, _BATCH = 26, 13, 4096
_SAMPLES, _QUICK_SAMPLES = 65_536, 4096
_PYTHON_SAMPLES = 400
_MILLION = 1e6
_READ = {
    "example_batch": data.example_batches,
    "instance": data.instances,
    "example": data.examples,
    "tf_example": data.tfrecords,
}


def ids_of(kind: str) -> list[str]:
    """Names of the features; an Instance has slots."""
    return [f"slot_{i + 1}" if kind == "instance" else f"feature_{i}" for i in range(_FEATURES)]


def make_table(kind: str, num_samples: int) -> pa.Table:
    """Samples: fids of 40-bit signatures, in tf.train.Example integers below a million."""
    random = np.random.default_rng(0)
    columns = {}
    for i, name in enumerate(ids_of(kind)):
        most = 1_000_000 if kind == "tf_example" else 1 << 40
        slot = 0 if kind == "tf_example" else (i + 1) << 48
        columns[name] = pa.array(slot | random.integers(0, most, num_samples))
    for i in range(_DENSE):
        columns[f"dense_{i}"] = pa.array(random.random(num_samples, np.float32))
    columns["label"] = pa.array(random.integers(0, 2, num_samples).astype(np.float32))
    return pa.table(columns)


def pipeline(kind: str, path: Path) -> data.Pipeline:
    """The file in batches."""
    columns = data.Columns(ids_of(kind), [f"dense_{i}" for i in range(_DENSE)], ["label"])
    return _READ[kind](path, columns=columns).batch(_BATCH)


def check(batch: data.Batch, records: list[bytes], kind: str) -> None:
    """Refuse a batch that differs from the records, decoded in plain Python."""
    rows = [row for record in records for row in python_records.DECODERS[kind](record)]
    rows = rows[: len(batch)]
    for name, ragged in batch.features.items():
        if ragged.to_lists()[: len(rows)] != [row[name] for row in rows]:
            raise BenchmarkError(f"wrong ids of {name} in {kind}")
    for name, values in (*batch.dense.items(), *batch.labels.items()):
        if values.tolist()[: len(rows)] != [row[name][0] for row in rows]:
            raise BenchmarkError(f"wrong numbers of {name} in {kind}")


def sample(source: data.Pipeline, seconds: float) -> Sample:
    """Million ids per second of whole passes."""
    num_ids = 0
    with timed() as window:
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            num_ids += sum(len(batch) for batch in source) * _FEATURES
    return Sample(num_ids / window.seconds / _MILLION, window.others_cores)


def sample_python(records: list[bytes], kind: str) -> Sample:
    """The same of a pass in plain Python."""
    decode = python_records.DECODERS[kind]
    with timed() as window:
        num_ids = sum(len(decode(record)) for record in records) * _FEATURES
    return Sample(num_ids / window.seconds / _MILLION, window.others_cores)


def run(options: Options) -> None:
    """Print a line for each format."""
    torch.set_num_threads(1)
    num_samples = _QUICK_SAMPLES if options.is_quick else _SAMPLES
    sizes = {"samples": num_samples, "features": _FEATURES, "batch": _BATCH, "threads": 1}
    with tempfile.TemporaryDirectory() as folder:
        for kind in _READ:
            say(f"[records] {kind}: {num_samples:,} samples")
            table, path = make_table(kind, num_samples), Path(folder) / kind
            writer = data.RecordWriter(kind)
            writer.write(table, path)
            few = writer.records(table.slice(0, _PYTHON_SAMPLES))
            source = pipeline(kind, path)
            check(next(iter(source)), few, kind)
            takes = {
                "monolith": functools.partial(sample, source, options.rules.sample_seconds),
                "python": functools.partial(sample_python, few, kind),
            }
            for warm_up in takes.values():
                warm_up()
            size = path.stat().st_size / num_samples
            question = Question(
                f"records_{kind}", "M ids/s", {**sizes, "bytes": round(size)}, options.rules
            )
            question.measure(takes)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
