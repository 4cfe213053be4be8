import json
import math
import threading
import time

import fsspec
import numpy as np
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from monolith.observe import JsonLinesSink

TAGS = {"ps": "0", "model": "clicks"}


def lines(path):
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "metrics.jsonl"


@pytest.fixture
def sink(path):
    with JsonLinesSink(path) as sink:
        yield sink


def test_a_flush_writes_a_line_with_step_time_and_measurements(sink, path):
    before = time.time()
    sink.gauge("loss", 0.25, {})
    sink.count("requests", 2, TAGS)
    for number in range(1, 201):
        sink.time("lookup", float(number), {})
    sink.flush(100)
    (line,) = lines(path)
    assert before <= line.pop("time") <= time.time()
    assert line == {
        "step": 100,
        "gauges": {"loss": 0.25},
        "counters": {"requests/model=clicks,ps=0": 2.0},
        "microseconds": {"lookup": {"count": 200, "mean": 100.5, "p99": 198.0, "max": 200.0}},
    }


def test_an_interval_has_its_gauges_and_times_and_all_counters(sink, path):
    sink.gauge("loss", 1.0, {})
    sink.time("lookup", 5.0, {})
    sink.count("requests", 1, {})
    sink.flush(1)
    sink.count("requests", 2, {})
    sink.flush(2)
    sink.flush(3)
    second, third = lines(path)[1:]
    assert (second["gauges"], second["microseconds"]) == ({}, {})
    assert second["counters"] == {"requests": 3.0}
    assert (third["step"], third["counters"]) == (3, {"requests": 3.0})


def test_an_event_is_a_line_at_once(sink, path):
    sink.event("start", {})
    sink.flush(7)
    sink.event("save", {"path": "a/b", "rows": 3})
    start, _, save = lines(path)
    assert (start["event"], start["step"], start["fields"]) == ("start", 0, {})
    assert (save["step"], save["fields"]) == (7, {"path": "a/b", "rows": 3})


def test_numbers_that_json_does_not_have_are_null(sink, path):
    sink.gauge("loss", math.nan, {})
    sink.gauge("rate", math.inf, {})
    fields = {"a": [np.float32("nan"), np.int64(3)], "b": torch.tensor(0.5), "c": {1: None}}
    sink.event("bad", {**fields, "d": ValueError("x")})
    sink.flush(1)
    event, line = lines(path)
    assert line["gauges"] == {"loss": None, "rate": None}
    assert event["fields"] == {"a": [None, 3], "b": 0.5, "c": {"1": None}, "d": "x"}


def test_a_file_is_continued_also_after_a_torn_line(tmp_path):
    path = tmp_path / "m"
    path.write_text('{"step": 1}\n{"st')
    for step in (2, 3):
        sink = JsonLinesSink(path)
        sink.flush(step)
        sink.close()
    first, torn, *rest = path.read_text().splitlines()
    assert (first, torn) == ('{"step": 1}', '{"st')
    assert [json.loads(line)["step"] for line in rest] == [2, 3]


def test_close_writes_what_came_since_the_last_flush(sink, path):
    sink.flush(5)
    sink.gauge("loss", 1.0, {})
    sink.close()
    sink.close()
    assert [(line["step"], line["gauges"]) for line in lines(path)] == [
        (5, {}),
        (5, {"loss": 1.0}),
    ]


def test_events_of_a_run_that_goes_on_have_its_step(sink, path):
    sink.restart(391)
    sink.event("run_started", {})
    sink.flush(400)
    sink.restart(395)
    sink.event("run_recovered", {})
    assert [line["step"] for line in lines(path)] == [391, 400, 395]


def test_a_closed_sink_takes_no_more(sink):
    sink.close()
    with pytest.raises(ValueError, match=r"\[JsonLinesSink\] expected an open sink, got a closed"):
        sink.flush(1)


@pytest.mark.parametrize(("name", "reason"), [("file/m", "File exists: .*file"), ("", "Is a dir")])
def test_a_path_that_cannot_be_written_is_an_error_at_once(tmp_path, name, reason):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=rf"got .*{name} \(.*{reason}.*; choose another path"):
        JsonLinesSink(tmp_path / name)


def test_lines_of_several_threads_are_whole(sink, path):

    def work(number):
        for step in range(50):
            sink.count("steps", 1, {})
            sink.event("step", {"thread": number, "step": step, "text": "x" * 500})
            sink.flush(step)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.close()
    content = lines(path)
    assert len(content) == 400
    assert max(line["counters"]["steps"] for line in content if "counters" in line) == 200


def test_each_run_has_new_files_in_a_store(tmp_path):
    folder = f"memory://lines-{tmp_path.name}"
    for step in (1, 2):
        with JsonLinesSink(f"{folder}/m.jsonl") as sink:
            sink.flush(step)
    system = fsspec.filesystem("memory")
    names = [f"{folder}/m.0000{number}.jsonl" for number in (0, 1)]
    assert [json.loads(system.cat_file(name))["step"] for name in names] == [1, 2]
    assert len(system.ls(folder)) == 2


def test_a_store_that_cannot_be_written_is_an_error_at_once(monkeypatch):
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", raise_denied)
    with pytest.raises(ValueError, match=r"got memory://a/m.jsonl \(denied\); choose another path"):
        JsonLinesSink("memory://a/m.jsonl")


def raise_denied(*arguments, **options):
    raise PermissionError("denied")


def test_a_path_of_this_machine_may_have_a_scheme(tmp_path):
    with JsonLinesSink(f"file://{tmp_path}/m.jsonl") as sink:
        sink.flush(1)
    assert lines(tmp_path / "m.jsonl")[0]["step"] == 1
