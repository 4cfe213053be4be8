"""What TensorBoard's readers find in the files of the sink."""

import json
import math
import os
import subprocess
import sys
import threading

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from monolith.observe import TensorBoardSink, TensorSummary
from monolith.observe.event_files import summary_metadata
from tests.observe.tensorboard_reader import RunReader


@pytest.fixture
def sink(tmp_path):
    with TensorBoardSink(tmp_path) as sink:
        yield sink


def reader(folder):
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def scalars(folder, tag):
    return [(event.step, event.value) for event in reader(folder).Scalars(tag)]


def test_gauges_are_scalars_of_the_flushes_that_followed(sink, tmp_path):
    for step, values in [(10, [1.0, 0.5]), (20, []), (30, [0.25])]:
        for value in values:
            sink.gauge("loss", value, {})
        sink.flush(step)
    assert scalars(tmp_path, "loss") == [(10, 0.5), (30, 0.25)]


def test_counters_are_scalars_of_their_totals(sink, tmp_path):
    for step in (1, 2):
        sink.count("requests", 2, {"ps": "0", "model": "clicks"})
        sink.flush(step)
    assert scalars(tmp_path, "requests/model=clicks,ps=0") == [(1, 2), (2, 4)]


def test_times_are_scalars_of_mean_and_p99(sink, tmp_path):
    for step in (1, 2):
        for number in range(1, 201):
            sink.time("lookup", number * step, {"ps": "0"})
        sink.flush(step)
    assert scalars(tmp_path, "lookup/mean_microseconds/ps=0") == [(1, 100.5), (2, 201)]
    assert scalars(tmp_path, "lookup/p99_microseconds/ps=0") == [(1, 198), (2, 396)]


def test_events_are_texts_of_the_next_flush(sink, tmp_path):
    sink.event("save", {"path": "a", "loss": math.nan})
    sink.flush(7)
    (event,) = reader(tmp_path).Tensors("save")
    text = make_ndarray(event.tensor_proto).item().decode()
    assert event.step == 7
    assert json.loads(text) == {"path": "a", "loss": None}


def test_the_data_provider_finds_scalars_texts_and_tensors_of_plugins(sink, tmp_path):
    sink.gauge("loss", 1.0, {})
    sink.event("save", {})
    metadata = summary_metadata("monolith", b"{}", description="what it is")
    sink.write_tensor(TensorSummary("weights", torch.tensor([0.5, 0.25]), metadata), 3)
    sink.flush(3)
    run = RunReader(tmp_path, ["monolith"])
    assert list(run.scalars()) == ["loss"]
    assert list(run.tensors("text")) == ["save"]
    series = run.tensors("monolith")["weights"]
    assert (series.plugin_content, series.description) == (b"{}", "what it is")
    ((step, values),) = run.values("weights")
    assert (step, values.tolist()) == (3, [0.5, 0.25])


def test_close_writes_what_came_since_the_last_flush(tmp_path):
    sink = TensorBoardSink(tmp_path)
    sink.flush(5)
    sink.gauge("loss", 1.0, {})
    sink.close()
    sink.count("late", 1, {})
    sink.close()
    assert scalars(tmp_path, "loss") == [(5, 1.0)]


def test_a_closed_sink_takes_no_more(tmp_path):
    sink = TensorBoardSink(tmp_path)
    sink.close()
    with pytest.raises(ValueError, match=r"\[TensorBoard\] expected an open file"):
        sink.flush(1)


def test_a_run_that_was_resumed_replaces_the_steps_after_its_first(tmp_path):
    for steps, value in [((10, 20, 30, 40), 1.0), ((30, 40, 50), 2.0)]:
        with TensorBoardSink(tmp_path) as sink:
            sink.event("start", {})  # has no step of its own
            for step in steps:
                sink.gauge("loss", value, {})
                sink.flush(step)
    assert scalars(tmp_path, "loss") == [(10, 1), (20, 1), (30, 2), (40, 2), (50, 2)]
    assert len(os.listdir(tmp_path)) == 2


def test_a_folder_that_cannot_be_written_is_an_error_at_once(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"\[TensorBoard\] expected a folder .* got .*file \("):
        TensorBoardSink(tmp_path / "file")


def test_flushes_of_other_threads_lose_nothing(sink, tmp_path):
    def work(number):
        for step in range(50):
            sink.gauge(f"gauge{number}", step, {})
            sink.flush(step)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    accumulator = reader(tmp_path)
    assert [len(accumulator.Scalars(f"gauge{i}")) for i in range(4)] == [50] * 4


WRITER = """
import sys
from monolith.observe import TensorBoardSink

sink = TensorBoardSink(sys.argv[1])
step = 0
while True:
    step += 1
    for name in range(50):
        sink.gauge(f"gauge{name}", step, {})
    sink.flush(step)
    print(step, flush=True)
"""


@pytest.mark.dist
def test_a_killed_writer_leaves_all_that_it_flushed(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        steps = [int(process.stdout.readline()) for _ in range(20)]
        process.kill()
        steps += map(int, process.stdout.read().split())
    assert process.returncode == -9
    last = scalars(tmp_path, "gauge49")
    assert last[: len(steps)] == [(step, step) for step in steps]
    assert len(last) <= len(steps) + 1
