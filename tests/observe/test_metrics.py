import math

import pytest

from monolith.observe.metrics import MemorySink, NullSink

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


def test_the_null_sink_takes_everything():
    NullSink().count("requests", 1, TAGS)
    NullSink().time("lookup", 1.0, TAGS)
