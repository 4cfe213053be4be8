"""Streams that are merged in turns or by time."""

import heapq
import itertools
import json
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith import data
from monolith.data.columns import Columns
from monolith.errors import FailedPreconditionError
from tests.data.flows.devices import counted_split, devices, expected, split
from tests.data.samples import users, write_parquet


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("monolith.data.memory._BLOCK", 64)


def stream(values, times=None):
    """Samples with these users and times."""
    times = values if times is None else times
    table = pa.table({"user": pa.array(values, pa.int64()), "t": pa.array(times, pa.int64())})
    return data.arrow_table(table, columns=Columns(["user"], time="t"))


def in_turns(*lists):
    """A sample of each list in turns, without the lists that are at their end."""
    return [x for xs in itertools.zip_longest(*lists) for x in xs if x is not None]


def test_samples_of_streams_are_taken_in_turns():
    lists = [
        list(range(start, start + count)) for start, count in ((0, 300), (1000, 10), (2000, 130))
    ]
    merged = stream(lists[0]).merge(stream(lists[1]), stream(lists[2]))
    assert users(merged.batch(32)) == in_turns(*lists)


def smallest_first(lists):
    """(stream, user) in the order in which the smallest next time goes first."""
    rests, order = [list(times) for times in lists], []
    while any(rests):
        number = min((rest[0], i) for i, rest in enumerate(rests) if rest)[1]
        order.append(1000 * number + len(lists[number]) - len(rests[number]))
        rests[number].pop(0)
    return order


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.integers(-4, 4), max_size=12), min_size=1, max_size=4), st.integers(1, 5)
)
def test_the_smallest_next_time_goes_first_and_ties_keep_the_order_of_streams(lists, size):
    streams = [
        stream(range(1000 * number, 1000 * number + len(times)), times).batch(size)
        for number, times in enumerate(lists)
    ]
    assert users(streams[0].merge(*streams[1:], by="time").batch(3)) == smallest_first(lists)


def test_streams_in_order_are_merged_as_by_a_heap():
    generator = random.Random(0)
    lists = [sorted(generator.choices(range(5000), k=200)) for _ in range(3)]
    merged = stream(lists[0]).merge(stream(lists[1]), stream(lists[2]), by="time")
    assert users(merged.batch(32)) == list(heapq.merge(*lists))


def test_flows_of_one_split_are_merged_with_one_pass_over_the_source():
    flows, counter = counted_split()
    merged = flows["pc"].merge(flows["mobile"], flows["cloud"])
    with iter(merged.batch(100, drop_remainder=True)) as batches:
        assert sorted(users(batches)) == list(range(1000))
    assert (counter.opened, counter.num_blocks, counter.open_cursors) == (1, 17, 0)


def test_flows_of_one_split_take_turns_within_a_block():
    flows = split(devices(64))
    merged = flows["pc"].merge(flows["mobile"], flows["cloud"])
    assert users(merged.batch(64)) == in_turns(*(expected(place, 64) for place in range(3)))


def test_a_rare_flow_does_not_make_others_wait():
    source = stream(range(64_000))
    flows = source.split(lambda block: np.asarray(block["user"]) % 8000 == 7999, ["most", "rare"])
    with iter(flows["rare"].merge(flows["most"]).batch(64)) as batches:
        assert users([next(batches)]) == list(range(64))
        assert batches.progress[0] <= 128


def test_flows_by_time_come_back_in_the_order_of_the_source():
    flows, counter = counted_split()
    merged = flows["cloud"].merge(flows["pc"], flows["mobile"], by="time")
    assert users(merged.batch(64)) == list(range(1000))
    assert counter.opened == 1


def test_a_flow_without_samples_for_long_is_an_error_by_time():
    source = stream(range(6400))
    parts = source.split(
        lambda block: np.asarray(block["user"]) >= 6000, ["a", "b"], max_waiting=1000
    )
    with pytest.raises(
        FailedPreconditionError, match=r"flow 'a' to be read too, got 10\d\d samples"
    ):
        users(parts["a"].merge(parts["b"], by="time").batch(64))


def merged_streams(folder):
    (folder / "files").mkdir()
    paths = write_parquet(folder / "files", num_files=3, num_samples=33, row_group_size=7)
    single = Columns(["user"])
    files = data.parquet(paths, columns=single).shuffle_files(3).interleave(2)
    flows = split(devices(400))
    stages = [flows["pc"].shuffle(40), flows["mobile"].filter(is_even), flows["cloud"].batch(7)]
    first = stream(range(10_000, 10_120))
    return {
        "streams": first.merge(stream(range(50)), stream(range(100, 230))),
        "time": first.merge(stream(range(50), [9, 3] * 25), stream(range(230)), by="time"),
        "flows": stages[0].merge(*stages[1:]),
        "flows by time": flows["pc"].merge(flows["mobile"], flows["cloud"], by="time"),
        "flows and a stream": stages[0].drop("device").merge(first, stages[1].drop("device")),
        "two splits": flows["pc"].merge(split(devices(90))["cloud"], flows["cloud"]),
        "taken and repeated": flows["pc"].take(60).merge(flows["cloud"].repeat(2), flows["mobile"]),
        "epochs": flows["pc"].merge(flows["cloud"]).shuffle(30).repeat(3),
        "files": files.merge(data.arrow_table({"user": range(40)}, columns=single)),
        "merged again": first.merge(stream(range(50)).merge(stream(range(100, 140)))),
        "split again": split(flows["pc"].merge(flows["cloud"]), others="drop")["cloud"],
    }


def is_even(block):
    return np.asarray(block["user"]) % 2 == 0


CASES = [
    "streams", "time", "flows", "flows by time", "flows and a stream", "two splits",
    "taken and repeated", "epochs", "files", "merged again", "split again",
]  # fmt: skip


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("name", CASES)
def test_resume_at_random_positions_gives_the_remaining_stream(tmp_path, name, depth):
    source = merged_streams(tmp_path)[name].batch(9)
    source = source.prefetch(depth) if depth else source
    with iter(source) as batches:
        states, whole = [json.dumps(batches.state_dict())], []
        for batch in batches:
            whole.append(users([batch]))
            states.append(json.dumps(batches.state_dict()))
    assert len(whole) > 4
    assert whole == [users([batch]) for batch in source]
    for position in random.Random(name).sample(range(len(states)), min(12, len(states))):
        with source.resume(json.loads(states[position])) as rest:
            assert [users([batch]) for batch in rest] == whole[position:]


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_resume_at_every_position_of_a_merge(tmp_path, name):
    source = merged_streams(tmp_path)[name].batch(2)
    with iter(source) as batches:
        states = [json.dumps(batches.state_dict())]
        whole = []
        for batch in batches:
            whole.append(users([batch]))
            states.append(json.dumps(batches.state_dict()))
    for position, state in enumerate(states):
        with source.resume(json.loads(state)) as rest:
            parts = [users([batch]) for batch in itertools.islice(rest, 8)]
        assert parts == whole[position : position + 8]


def test_closing_a_merge_closes_all_streams():
    flows, counter = counted_split()
    with iter(flows["pc"].merge(flows["mobile"]).batch(9).prefetch(2)) as batches:
        next(batches)
    assert counter.open_cursors == 0


def test_a_stream_that_cannot_be_opened_closes_the_others(tmp_path):
    flows, counter = counted_split()
    (tmp_path / "a.csv").write_text("user,device,t\n1,2,3\n")
    columns = Columns(["user", "device"], time="t")
    gone = data.csv(tmp_path / "a.csv", columns=columns)
    merged = flows["pc"].merge(gone)
    with pytest.raises(KeyError):
        merged.stage.open(0, {"sources": [{"source": None, "skip": 0}, {"source": {}, "skip": 0}]})
    assert counter.open_cursors == 0


def test_after_a_failure_the_same_batch_is_tried_again():
    failures = [RuntimeError("disk")]

    def fail(block):
        if block["user"][0].as_py() >= 100 and failures:
            raise failures.pop()
        return block

    flows = split(devices(400).map(fail))
    good = split(devices(400))
    batches = iter(flows["pc"].merge(flows["cloud"]).batch(30))
    received = users([next(batches)])
    with pytest.raises(RuntimeError, match="disk"):
        received += users(batches)
    rest = users(batches)
    whole = users(good["pc"].merge(good["cloud"]).batch(30))
    assert whole[len(whole) - len(rest) :] == rest
    assert received == whole[: len(received)]


def test_progress_counts_a_shared_source_once():
    flows = split(devices(640))
    batches = iter(
        flows["pc"].drop("device").merge(flows["cloud"].drop("device"), stream([1])).batch(1000)
    )
    assert batches.progress == (0, 641)
    list(batches)
    assert batches.progress == (641, 641)


def test_skipped_samples_of_all_streams_are_counted():
    bad = [data.arrow_table({"user": [1, 2], "x": [0.5, None]}, on_error="skip") for _ in range(2)]
    batches = iter(bad[0].merge(bad[1], bad[0].take(1)).batch(9))
    assert users([next(batches)]) == [1, 1, 1]
    assert sum(batches.num_skipped.values()) == 3


def test_columns_that_differ_are_refused():
    other = data.arrow_table({"user": [1], "price": [0.5]})
    text = r"expected the columns of stream 0, {'t': 'time', 'user': 'ids'}, got {'price': 'dense'"
    with pytest.raises(ValueError, match=text):
        stream([1]).merge(other)


def test_a_merge_by_time_needs_times():
    plain = data.arrow_table({"user": [1]})
    with pytest.raises(ValueError, match=r"got 'time' \(time column: None\)"):
        plain.merge(plain, by="time")
    with pytest.raises(ValueError, match=r'expected by "turns", or "time" .* got \'random\''):
        stream([1]).merge(stream([2]), by="random")


def test_ids_and_lists_of_ids_are_merged():
    one = data.arrow_table({"user": [1, 2]})
    many = data.arrow_table({"user": [[7, 8], []]})
    (batch,) = one.merge(many).batch(9)
    assert batch.features["user"].to_lists() == [[1], [7, 8], [2], []]


def test_columns_in_another_order_are_merged():
    left = data.arrow_table({"user": [1], "item": [2]})
    right = data.arrow_table({"item": [4], "user": [3]})
    (batch,) = left.merge(right).batch(9)
    assert batch.features["item"].to_lists() == [[2], [4]]


def test_the_stages_of_every_stream_are_described():
    lines = stream([1]).merge(stream([2]).take(1), by="time").describe()
    assert lines == [
        "2 streams merged by 't'",
        "stream 0: table: 1 samples",
        "stream 1: table: 1 samples",
        "stream 1: the first 1",
    ]
