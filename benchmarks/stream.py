"""Samples of a stream to batches: what they cost, how many come, and how soon.

cost     processor time of this process for each sample: messages of Kafka with 100 samples over
         16 partitions, and a folder that grows, beside the same records in files
rate     samples per second of these messages, all of which wait at the broker
latency  time from the production of an event to its batch, at 1,000 events per second and batches
         of at most 50 ms

The broker is librdkafka's mock in a process of its own, which shares the cores with this one and
keeps messages in memory.
"""

import functools
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

import confluent_kafka
import numpy as np
import pyarrow as pa

from benchmarks.harness import ROOT, BenchmarkError, Sample, Series, interleave, timed
from benchmarks.question import VERSIONS, Question
from benchmarks.stage import Options, run_stage
from monolith import data
from monolith.data import Batch, Columns, RecordFormat, RecordWriter, stream
from tests.data.stream.broker_process import Broker, running

_PARTITIONS, _IN_MESSAGE, _BATCH = 16, 100, 4_096
_SAMPLES, _QUICK_SAMPLES = 50 * _BATCH, 5 * _BATCH  # whole batches, so that none ends by time
_FEATURES = 8
_EVENTS_PER_SECOND, _BATCH_SECONDS = 1_000, 0.05
_SECONDS, _QUICK_SECONDS = 20.0, 2.0
_FOLDER = ROOT / "build" / "benchmarks" / "stream"
_COLUMNS = Columns([f"feature_{i}" for i in range(_FEATURES)], labels=["label"])
_FORMAT = RecordFormat("example")
_NAMED_VERSIONS = {**VERSIONS, "confluent_kafka": str(confluent_kafka.__version__)}


def make_messages(num_samples: int) -> list[bytes]:
    """Return messages of framed records, 100 samples each."""
    random = np.random.default_rng(0)
    columns = {
        name: random.integers(0, 1 << 40, num_samples) for name in _COLUMNS.names()[:_FEATURES]
    }
    table = pa.table({**columns, "label": random.random(num_samples).astype(np.float32)})
    writer = RecordWriter("example")
    records = [writer.framing.frame(record) for record in writer.records(table)]
    return [b"".join(records[i : i + _IN_MESSAGE]) for i in range(0, num_samples, _IN_MESSAGE)]


def count(batches: Iterable[Batch], num_samples: int) -> int:
    """Return the number of samples of batches, up to the expected number."""
    seen = 0
    for batch in batches:
        seen += len(batch)
        if seen >= num_samples:
            break
    return seen


def read(source: data.Pipeline, num_samples: int, *, is_rate: bool) -> Sample:
    """Return nanoseconds of processor time for each sample, or thousands of samples per second."""
    with timed() as window:
        start, begin = time.process_time(), time.perf_counter()
        with iter(source) as batches:
            seen = count(batches, num_samples)
            cost, seconds = time.process_time() - start, time.perf_counter() - begin
    if seen != num_samples:
        raise BenchmarkError(f"[stream] expected {num_samples} samples, got {seen}")
    value = num_samples / seconds / 1e3 if is_rate else 1e9 * cost / num_samples
    return Sample(value, window.others_cores)


def measure_cost(broker: Broker, options: Options) -> None:
    """Compare a stream with files that have the same records."""
    num_samples = _QUICK_SAMPLES if options.is_quick else _SAMPLES
    messages = make_messages(num_samples)
    shutil.rmtree(_FOLDER, ignore_errors=True)
    _FOLDER.mkdir(parents=True)
    topic = broker.topic(_PARTITIONS)
    for partition in range(_PARTITIONS):
        own = messages[partition::_PARTITIONS]
        broker.send(topic, *own, partition=partition)
        (_FOLDER / f"{partition}.records").write_bytes(b"".join(own))
    sources: dict[str, data.Pipeline] = {
        "kafka": stream.kafka(broker.servers, topic, _FORMAT, columns=_COLUMNS),
        "tail": stream.tail(_FOLDER, _FORMAT, columns=_COLUMNS),
        "files": data.examples(_FOLDER, columns=_COLUMNS),
    }
    batched = {
        name: source.batch(_BATCH) if name == "files" else source.batch(_BATCH, seconds=1.0)
        for name, source in sources.items()
    }
    sizes = {
        "samples": num_samples, "in_message": _IN_MESSAGE, "partitions": _PARTITIONS,
        "features": _FEATURES, "batch": _BATCH, "bytes": sum(map(len, messages)),
    }  # fmt: skip
    takes: dict[str, Callable[[], Sample]] = {
        name: functools.partial(read, source, num_samples, is_rate=False)
        for name, source in batched.items()
    }
    for take in takes.values():
        take()  # warm
    rules = options.rules
    series = interleave(takes, rules)
    unit = "ns of processor time per sample"
    question = Question("stream_cost", unit, sizes, rules, _NAMED_VERSIONS)
    for name in takes:
        question.answer(series, name, "files", system=name)
    rates = {
        name: functools.partial(read, batched[name], num_samples, is_rate=True)
        for name in ("kafka", "tail")
    }
    question = Question("stream_rate", "k samples/s", sizes, rules, _NAMED_VERSIONS)
    rate = interleave(rates, rules)
    for name in rates:
        question.answer(rate, name, system=name)


_PRODUCER = """
import sys, time, confluent_kafka
servers, topic, rate, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
producer = confluent_kafka.Producer({"bootstrap.servers": servers, "linger.ms": 0})
start = time.time()
for number in range(int(rate * seconds)):
    left = start + number / rate - time.time()
    if left > 0:
        time.sleep(left)
    value = b'{"sent": %d}' % (time.time_ns() // 1000)
    producer.produce(topic, value, partition=number % 16)
    producer.poll(0)
producer.flush()
"""


def measure_latency(broker: Broker, options: Options) -> None:
    """Measure the time from the production of an event to its batch."""
    seconds = _QUICK_SECONDS if options.is_quick else _SECONDS
    topic = broker.topic(_PARTITIONS)
    broker.send(topic, b'{"sent": 0}')  # connects, and is read before the clock runs
    source = stream.kafka(broker.servers, topic, "json", columns=Columns(["sent"]))
    late: list[np.ndarray] = []
    command = [sys.executable, "-c", _PRODUCER, broker.servers, topic]
    with iter(source.batch(_BATCH, seconds=_BATCH_SECONDS)) as batches, timed() as window:
        next(batches)
        arguments = [str(_EVENTS_PER_SECOND), str(seconds)]
        with subprocess.Popen([*command, *arguments]) as producer:
            left = int(_EVENTS_PER_SECOND * seconds)
            while left > 0:
                sent = next(batches).features["sent"].values.numpy()
                late.append(time.time_ns() // 1_000 - sent)
                left -= len(sent)
        if producer.returncode:
            raise BenchmarkError(f"[stream] the producer ended with {producer.returncode}")
    times = np.concatenate(late) / 1e3
    sizes = {
        "events": len(times), "events_per_second": _EVENTS_PER_SECOND,
        "batch_ms": 1e3 * _BATCH_SECONDS, "partitions": _PARTITIONS,
    }  # fmt: skip
    notes = {f"p{share}": float(np.percentile(times, share)) for share in (50, 99)}
    question = Question("stream_latency", "ms", sizes, options.rules, _NAMED_VERSIONS)
    series = {"kafka": Series([notes["p50"]], [window.others_cores])}
    question.answer(series, "kafka", system="kafka", notes=notes)


def run(options: Options) -> None:
    """Measure all of it with one broker."""
    with running() as broker:
        measure_cost(broker, options)
        measure_latency(broker, options)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
