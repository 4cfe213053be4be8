import math
import threading

import pytest
import torch

from monolith.observe import MemorySink, MultiSink, NullSink, TensorSummary

TAGS = {"model_name": "clicks", "ps": "0"}


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_counter_adds_up():
    sink = MemorySink()
    sink.count("requests", 1, TAGS)
    sink.count("requests", 2, TAGS)
    assert sink.total("requests", TAGS) == 3
    assert sink.total("errors", TAGS) == 0


def test_tags_make_another_series_and_their_order_does_not():
    sink = MemorySink()
    sink.time("lookup", 5.0, TAGS)
    assert sink.summary("lookup", {"ps": "0", "model_name": "clicks"}).num_times == 1
    assert sink.summary("lookup", {"ps": "1", "model_name": "clicks"}).num_times == 0


def test_a_summary_has_minimum_maximum_mean_and_p99():
    sink = MemorySink()
    for number in range(1, 201):
        sink.time("lookup", float(number), TAGS)
    assert sink.summary("lookup", TAGS) == (200, 1, 200, 100.5, 198)


@pytest.mark.parametrize(("seconds", "expected"), [(60, 1), (300, 2), (900, 3)])
def test_a_summary_is_that_of_its_interval(seconds, expected):
    clock = Clock()
    sink = MemorySink(clock)
    for clock.now in (0.0, 700.0, 890.0):
        sink.time("lookup", 1.0, TAGS)
    clock.now = 900.0
    assert sink.summary("lookup", TAGS, seconds).num_times == expected


def test_old_times_go():
    clock = Clock()
    sink = MemorySink(clock)
    sink.time("lookup", 1.0, TAGS)
    clock.now = 901.0
    sink.time("lookup", 2.0, TAGS)
    assert sink.summary("lookup", TAGS, 10_000) == (1, 2, 2, 2, 2)


def test_an_empty_interval_has_no_numbers():
    summary = MemorySink().summary("lookup", TAGS)
    assert summary.num_times == 0
    assert all(map(math.isnan, summary[1:]))


def test_a_gauge_keeps_its_last_value_and_its_value_at_each_flush():
    sink = MemorySink()
    assert sink.value("rows", {}) is None
    for step, values in [(10, [1.0, 2.0]), (20, []), (30, [4.0])]:
        for value in values:
            sink.gauge("rows", value, {})
        sink.flush(step)
    assert sink.value("rows", {}) == 4.0
    assert sink.history("rows", {}) == [(10, 2.0), (30, 4.0)]


def test_memory_keeps_events_and_the_names_of_series():
    sink = MemorySink()
    fields = {"step": 3}
    sink.event("save", fields)
    fields["step"] = 4
    sink.count("requests", 1, TAGS)
    sink.gauge("rows", 1, {})
    sink.time("lookup", 1, TAGS)
    assert sink.events == [("save", {"step": 3})]
    assert sink.names == {"requests", "rows", "lookup"}


def write_everything(sink):
    sink.count("requests", 2, TAGS)
    sink.gauge("rows", 3, TAGS)
    sink.time("lookup", 4, TAGS)
    sink.event("save", {"step": 5})
    sink.flush(6)
    sink.close()
    sink.close()


def test_every_sink_of_a_list_gets_everything():
    sinks = [MemorySink(), MemorySink()]
    write_everything(MultiSink(sinks))
    for sink in sinks:
        assert sink.total("requests", TAGS) == 2
        assert sink.history("rows", TAGS) == [(6, 3)]
        assert sink.summary("lookup", TAGS).maximum == 4
        assert sink.events == [("save", {"step": 5})]


class BrokenSink(NullSink):
    num_calls = 0

    def _fail(self, *args):
        self.num_calls += 1
        raise OSError(28, "no space left")

    count = gauge = time = event = flush = close = _fail


def test_a_sink_that_fails_stops_neither_the_run_nor_other_sinks_and_is_logged_once(caplog):
    broken, memory = BrokenSink(), MemorySink()
    sink = MultiSink([broken, memory])
    for step in range(100):
        sink.flush(step)
    sink.count("requests", 1, TAGS)
    assert memory.total("requests", TAGS) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "BrokenSink failed; the run goes on"
    ]
    assert "no space left" in caplog.text


def test_the_end_tells_how_often_a_sink_failed(caplog):
    broken = BrokenSink()
    write_everything(MultiSink([broken]))
    assert broken.num_calls == 6
    assert caplog.messages == ["BrokenSink failed; the run goes on", "BrokenSink failed 6 times"]


def test_tensors_go_to_the_sinks_that_write_them():
    memory = MemorySink()
    sink = MultiSink([NullSink(), MultiSink([memory]), MultiSink([NullSink()])])
    summary = TensorSummary("weights", torch.ones(2), b"")
    sink.write_tensor(summary, 7)
    assert memory.tensors == [(7, summary)]
    assert sink.writes_tensors
    assert not MultiSink([NullSink()]).writes_tensors


def test_the_null_sink_drops_everything():
    write_everything(NullSink())


def test_measurements_of_many_threads_are_all_counted():
    sink = MemorySink()

    def work():
        for _ in range(1000):
            sink.count("requests", 1, TAGS)
            sink.time("lookup", 1.0, TAGS)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sink.total("requests", TAGS) == sink.summary("lookup", TAGS).num_times == 4000
