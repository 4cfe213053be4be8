"""Streams that are split into flows, alone, merged and read together."""

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from monolith import data
from monolith.data.columns import Columns
from monolith.errors import DataLossError, FailedPreconditionError
from tests.data.flows.devices import NAMES, counted_split, devices, expected, rows, split
from tests.data.samples import users


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("monolith.data.memory._BLOCK", 64)


def test_each_flow_alone_has_its_samples():
    flows = split(devices())
    assert list(flows) == NAMES
    for place, name in enumerate(NAMES):
        assert users(flows[name].batch(32)) == expected(place)


def together(flows, size=16, depth=0, **options):
    pipelines = {name: flow.batch(size) for name, flow in flows.items()}
    if depth:
        pipelines = {name: pipeline.prefetch(depth) for name, pipeline in pipelines.items()}
    return data.FlowBatches(pipelines, **options)


def test_flows_that_are_read_together_read_the_source_once():
    flows, counter = counted_split()
    with together(flows) as batches:
        streams = list(itertools.zip_longest(*batches.values()))
    assert counter.opened == 1
    assert counter.num_blocks == 17
    for place in range(3):
        assert users(filter(None, (each[place] for each in streams))) == expected(place)


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("position", [0, 1, 4, 9, 17])
def test_flows_together_go_on_where_they_were(position, depth):
    flows = split(devices())
    flows["mobile"] = flows["mobile"].shuffle(50)
    with together(flows, depth=depth) as batches:
        whole = [[users([batch]) for batch in batches[name]] for name in NAMES]
    with together(flows, depth=depth) as batches:
        for number, name in enumerate(NAMES):  # at different places
            list(itertools.islice(batches[name], position // (number + 1)))
        state = json.loads(json.dumps(batches.state_dict()))
    with together(flows, depth=depth, state=state) as batches:
        rest = [[users([batch]) for batch in batches[name]] for name in NAMES]
    assert rest == [each[position // (i + 1) :] for i, each in enumerate(whole)]


def test_a_state_of_flows_together_is_a_state_of_each_flow_alone():
    flows = split(devices())
    with together(flows) as batches:
        list(itertools.islice(batches["pc"], 7))
        next(batches["cloud"])
        state = batches.state_dict()["flows"]
    for place, name, num_read in ((0, "pc", 112), (1, "mobile", 0), (2, "cloud", 16)):
        rest = flows[name].batch(16).resume(state[name])
        assert users(rest) == expected(place)[num_read:]


def test_a_state_of_a_flow_alone_is_a_state_of_flows_together():
    flows = split(devices())
    states = {}
    for name in NAMES:
        with iter(flows[name].batch(16)) as batches:
            list(itertools.islice(batches, 3))
            states[name] = batches.state_dict()
    with together(flows, state={"version": 1, "flows": states}) as batches:
        assert users(batches["mobile"]) == expected(1)[48:]


def test_a_flow_that_is_not_read_is_named_when_too_many_samples_wait():
    flows = split(devices(), max_waiting=100)
    with together(flows) as batches:
        text = (
            r"expected flow 'mobile' to be read too, got 1\d\d samples that wait .*flow 'pc' needs"
        )
        with pytest.raises(FailedPreconditionError, match=text):
            users(batches["pc"])


def test_after_the_other_flows_are_read_the_flow_goes_on():
    flows = split(devices(), max_waiting=100)
    received = {name: [] for name in NAMES}
    with together(flows) as batches:
        while sum(map(len, received.values())) < 1000:
            for name in NAMES:
                try:
                    for batch in batches[name]:
                        received[name] += users([batch])
                except FailedPreconditionError:
                    continue
    assert [received[name] for name in NAMES] == [expected(place) for place in range(3)]


def test_a_flow_that_is_closed_receives_nothing():
    flows = split(devices(), max_waiting=100)
    with together(flows) as batches:
        batches["mobile"].close()
        batches["cloud"].close()
        assert users(batches["pc"]) == expected(0)


def test_flows_that_are_not_asked_for_receive_nothing():
    flows = split(devices(), max_waiting=1)
    with together({"pc": flows["pc"]}) as batches:
        assert users(batches["pc"]) == expected(0)


@pytest.mark.parametrize("depth", [0, 2])
def test_closing_frees_the_source_and_all_threads(depth):
    flows, counter = counted_split()
    before = threading.active_count()
    batches = together(flows, depth=depth)
    next(batches["pc"])
    assert counter.open_cursors == 1
    batches.close()
    assert counter.open_cursors == 0
    assert threading.active_count() == before
    with pytest.raises(ValueError, match="expected an open iteration, got a closed one"):
        next(batches["pc"])


def test_threads_that_each_read_a_flow_wait_for_each_other():
    flows = split(devices(20_000), max_waiting=64)
    with together(flows, patience=60) as batches, ThreadPoolExecutor(3) as pool:
        received = list(pool.map(lambda name: users(batches[name]), NAMES))
    assert received == [expected(place, 20_000) for place in range(3)]


def test_a_flow_waits_for_another_reader_no_longer_than_its_patience():
    flows = split(devices(), max_waiting=64)
    text = "or give patience if another thread"
    with (
        together(flows, patience=0.01) as batches,
        pytest.raises(FailedPreconditionError, match=text),
    ):
        users(batches["pc"])


def test_a_failure_of_the_source_does_not_end_the_flows():
    failures = [RuntimeError("disk"), RuntimeError("disk")]
    source = devices()

    def fail(block):
        if block["user"][0].as_py() == 320 and failures:
            raise failures.pop()
        return block

    flows = split(source.map(fail))
    received = {name: [] for name in NAMES}
    with together(flows) as batches:
        for name in ("pc", "mobile", "pc", "mobile", "cloud"):
            try:
                for batch in batches[name]:
                    received[name] += users([batch])
            except RuntimeError:
                continue
    assert not failures
    assert [received[name] for name in NAMES] == [expected(place) for place in range(3)]


def test_a_flow_is_read_alone_below_a_stage_that_reads_it_again():
    flows, counter = counted_split(100)
    pipelines = {"pc": flows["pc"].repeat(2).batch(16), "cloud": flows["cloud"].batch(16)}
    with data.FlowBatches(pipelines) as batches:
        assert users(batches["pc"]) == expected(0, 100) * 2
        assert users(batches["cloud"]) == expected(2, 100)
    assert counter.opened == 3


def test_the_same_flow_twice_is_read_twice():
    flows, counter = counted_split()
    with data.FlowBatches({"a": flows["pc"].batch(16), "b": flows["pc"].batch(8)}) as batches:
        assert users(batches["a"]) == users(batches["b"]) == expected(0)
    assert counter.opened == 2


def test_progress_is_that_of_the_source():
    with together(split(devices())) as batches:
        assert batches["pc"].progress == (0, 1000)
        users(batches["pc"])
        assert batches["pc"].progress == (1000, 1000)


def test_files_are_split_while_they_are_read_ahead(tmp_path):
    for i in range(3):
        pq.write_table(rows(300, i * 300), tmp_path / f"{i}.parquet", row_group_size=50)
    columns = Columns(["user", "device"], time="t")
    flows = split(data.parquet(tmp_path, columns=columns).interleave(2), max_waiting=1000)
    with together(flows, depth=2) as batches:
        received = [users(batches[name]) for name in NAMES]
    assert [len(each) for each in received] == [len(users(flows[name].batch(9))) for name in NAMES]
    assert sorted(itertools.chain(*received)) == list(range(900))


def test_the_state_of_a_rare_flow_is_near_the_place_of_the_reader():
    source = devices(640)
    flows = source.split(lambda block: np.asarray(block["user"]) == 100, ["most", "rare"])
    with iter(flows["rare"]) as batches:
        next(batches)
        assert batches.state_dict()["state"]["block"] == 2
        assert next(batches, None) is None
        assert batches.state_dict()["state"]["block"] == 10
    with together(flows) as batches:
        users(batches["most"])
        assert users(batches["rare"]) == [100]
        assert batches["rare"].state_dict()["state"]["source"]["block"] == 10


# What decides about the flow of a sample.


def test_a_function_splits_by_a_condition():
    source = data.arrow_table({"user": [7, 8, 9], "label": [1.0, 0.0, 1.0]}, label="label")
    flows = source.split(lambda block: pc.greater(block["label"], 0), ["negative", "positive"])
    assert {name: users(flow.batch(9)) for name, flow in flows.items()} == {
        "negative": [8],
        "positive": [7, 9],
    }


def test_strings_are_split_by_their_names():
    source = data.arrow_table({"user": [7, 8, 9], "os": ["ios", "wp", "ios"]})
    flows = source.split("os", ["wp", "ios"])
    assert users(flows["ios"].drop("os").batch(9)) == [7, 9]
    assert users(
        source.split("os", {"phone": "wp", "other": "ios"})["phone"].drop("os").batch(9)
    ) == [8]


def test_lists_of_one_id_count_as_the_id():
    source = data.arrow_table({"user": [7, 8, 9], "k": [[1], [1, 2], []]})
    flows = source.split("k", {"one": 1, "two": 2}, others="drop")
    assert users(flows["one"].drop("k").batch(9)) == [7]
    assert users(flows["two"].drop("k").batch(9)) == []


def test_large_ids_are_those_of_the_column():
    source = data.arrow_table({"user": [7, 8], "k": pa.array([(1 << 64) - 5, 5], pa.uint64())})
    assert users(source.split("k", {"a": (1 << 64) - 5, "b": 5})["a"].drop("k").batch(9)) == [7]


def test_a_sample_of_no_flow_is_an_error_unless_it_is_left_out():
    source = devices(10)
    text = r"expected column 'device' as the id of one of \['pc', 'cloud'\], got 1; name a flow"
    with pytest.raises(DataLossError, match=text):
        users(source.split("device", {"pc": 0, "cloud": 2})["pc"].batch(9))
    flows = source.split("device", {"pc": 0, "cloud": 2}, others="drop")
    assert users(flows["pc"].batch(9)) == expected(0, 10)
    nobody = source.split(lambda block: np.full(block.num_rows, -7), ["a"])["a"]
    with pytest.raises(DataLossError, match=r"expected a flow of one of \['a'\], got none"):
        users(nobody.batch(9))


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda block: [0.5] * block.num_rows, "3 integers or booleans of the function, got shape"),
        (lambda block: [0], r"3 integers or booleans of the function, got shape \(1,\) of int64"),
        (lambda block: [0, 1, 2], "numbers of flows below 2 of the function, got 2"),
    ],
)
def test_a_function_that_returns_something_else_is_refused(answer, text):
    with pytest.raises(ValueError, match=text):
        users(devices(3).split(answer, ["a", "b"])["a"].batch(9))


@pytest.mark.parametrize(
    ("by", "flows", "options", "text"),
    [
        ("user", "pc", {}, "expected different names of flows, got 'pc'"),
        ("user", [], {}, r"expected different names of flows, got \[\]"),
        ("user", ["a", "a"], {}, "expected different names of flows"),
        ("t", ["a"], {}, r"expected a column of ids, got 't' \(ids: \['user', 'device'\]\)"),
        ("device", {"a": 1, "b": 1}, {}, r"a different id for each flow, got \(1, 1\)"),
        ("device", ["a"], {"others": "keep"}, 'expected others "raise" or "drop", got \'keep\''),
        ("device", ["a"], {"max_waiting": 0}, "expected max_waiting of at least 1, got 0"),
        (len, {"a": 1}, {}, "expected names of flows with a function, got a mapping"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(by, flows, options, text):
    with pytest.raises(ValueError, match=r"\[Pipeline.split\] .*" + text):
        devices(3).split(by, flows, **options)


def test_a_state_of_another_split_is_refused():
    flows = split(devices())
    state = iter(flows["pc"].batch(9)).state_dict()
    with pytest.raises(FailedPreconditionError, match="flow 'mobile' of a split by 'device'"):
        flows["mobile"].batch(9).resume(state)
    with together(flows, 9) as batches:
        state = batches.state_dict()
    with pytest.raises(FailedPreconditionError, match=r"a state of \['pc'\], got one of \['pc', "):
        together({"pc": flows["pc"]}, 9, state=state)
    with pytest.raises(FailedPreconditionError, match="'blocks of 8'"):
        together(flows, 8, state=state)
    with pytest.raises(FailedPreconditionError, match="a state of version 1, got 3"):
        together(flows, 9, state={**state, "version": 3})
