"""Many tables over parameter servers (of the seed's group `distributed_ps_test`)."""

import gc
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from monolith.cluster import LocalServers
from monolith.native_training.tables import DistributedMultiTypeHashTable
from monolith.native_training.test_utils import generate_test_hash_table_config
from monolith.observe.metrics import MemorySink
from monolith.ops import Ragged
from monolith.table import Segment, TableConfig, Zeros
from monolith.table.optimizers import SGD, PolynomialDecay
from monolith.table.routing import FloorModRouting
from tests.native_training.tables.kinds import on_every_kind
from tests.suites.table_base import NOW, column, floats, keys

pytestmark = pytest.mark.thorough

every_count = pytest.mark.parametrize("num_ps", [1, 2, 3, 7])
both_paths = pytest.mark.parametrize("is_raw", [True, False])


def config_of(name, dim=1, rate=1.0, **options):
    return TableConfig(name, Segment(dim, SGD(rate), Zeros()), **options)


@pytest.fixture
def make(servers_of):
    """(number of servers, configs or dims by slot) -> table."""

    def make(num_ps, given, **options):
        configs = {n: config_of(n, c) if isinstance(c, int) else c for n, c in given.items()}
        return DistributedMultiTypeHashTable(
            configs, servers_of(num_ps), clock=lambda: NOW, **options
        )

    return make


def num_python_calls(call):
    """Calls of Python functions that are made inside of a call."""
    counted = []
    gc.collect()
    gc.disable()  # finalizers of whatever else is garbage are calls too
    sys.setprofile(lambda frame, event, argument: counted.append(event == "call"))
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return sum(counted)


@both_paths
@pytest.mark.parametrize("num_ps", [1, 2])
def test_slots_that_are_not_asked_for_cost_no_python(make, is_raw, num_ps):
    def num_calls(num_slots):
        schedule = PolynomialDecay(1.0, 10)
        slots = {f"s{i:03}": config_of(f"s{i:03}", rate=schedule) for i in range(num_slots)}
        table = make(num_ps, slots, is_raw=is_raw)
        pairs = {"s001": (keys(7, 8), column(1, 2))}
        calls = [
            lambda: table.lookup({"s001": keys(7, 8)}),
            lambda: table.assign(pairs),
            lambda: table.apply_gradients(pairs),
        ]
        for call in calls:  # what the first call of a process sets up is not counted
            call()
        return [num_python_calls(call) for call in calls]

    assert num_calls(3) == num_calls(300)


@pytest.mark.req("NT-DPS-T4")
@on_every_kind
@both_paths
def test_only_slots_that_are_asked_for_are_returned(make, is_raw):
    table = make(2, {"a": 1, "b": 2}, is_raw=is_raw)
    assert list(table.lookup({"b": keys(1, 2)})) == ["b"]
    assert table.lookup({}) == {}


@on_every_kind
@both_paths
def test_equal_ids_of_two_slots_are_two_rows(make, is_raw):
    table = make(2, {"a": 1, "b": 1}, is_raw=is_raw)
    table.assign({"a": (keys(7), column(1)), "b": (keys(7), column(2))})
    rows = table.lookup({"a": keys(7, 7), "b": keys(7)})
    assert rows["a"].tolist() == [[1], [1]]
    assert rows["b"].tolist() == [[2]]


@on_every_kind
@both_paths
@every_count
def test_gradients_of_equal_ids_make_one_step(make, num_ps, is_raw):
    table = make(num_ps, {"a": 1}, is_raw=is_raw)
    applied = table.apply_gradients({"a": (keys(0, 3, 0, 1), column(2, 2, 2, 2))})
    assert applied.num_applied == 3
    assert table.lookup({"a": keys(0, 3, 0, 1)})["a"].tolist() == [[-4], [-2], [-4], [-2]]


@both_paths
def test_a_call_without_ids_changes_nothing(make, is_raw):
    table = make(2, {"a": 1}, is_raw=is_raw)
    assert table.apply_gradients({}) == (0, 0, 0, 0)
    table.assign({"a": (keys(), torch.empty(0, 1))})
    assert table.lookup({"a": keys()})["a"].shape == (0, 1)


def test_rates_follow_the_step(make):
    decay = PolynomialDecay(1.0, 10, 2.0)
    table = make(2, {"a": TableConfig("a", Segment(1, SGD(decay), Zeros()))})
    found = []
    for step in (0, 1):
        table.apply_gradients({"a": (keys(5), column(2))}, step=step)
        found += table.lookup({"a": keys(5)})["a"].flatten().tolist()
    assert found == [-2, pytest.approx(-4.2)]


@both_paths
def test_rates_are_given_by_slot(make, is_raw):
    table = make(2, {"a": 1, "b": 1}, is_raw=is_raw)
    pairs = {slot: (keys(1, 2), column(1, 1)) for slot in ("b", "a")}
    table.apply_gradients(pairs, learning_rates={"b": [3.0]})
    rows = table.lookup({slot: keys(1, 2) for slot in ("a", "b")})
    assert rows["a"].flatten().tolist() == [-1, -1]
    assert rows["b"].flatten().tolist() == [-3, -3]


def test_rates_are_those_of_the_object_that_updates():
    with LocalServers(2) as servers:
        DistributedMultiTypeHashTable({"a": config_of("a", rate=1.0)}, servers)
        table = DistributedMultiTypeHashTable({"a": config_of("a", rate=5.0)}, servers)
        table.apply_gradients({"a": (keys(1), column(1))})
        assert table.lookup({"a": keys(1)})["a"].tolist() == [[-5]]


def test_tables_outlive_the_object():
    with LocalServers(2) as servers, servers.run():
        configs = {"a": generate_test_hash_table_config(1)}
        DistributedMultiTypeHashTable(configs).assign({"a": (keys(1, 2), column(1, 2))})
        table = DistributedMultiTypeHashTable(configs)
        assert table.lookup({"a": keys(2, 1)})["a"].tolist() == [[2], [1]]


@pytest.mark.req("NT-DPS-T5")
@on_every_kind
def test_reinitialize_gives_the_status_server_by_server(make):
    table = make(2, {"slot0": 1, "slot2": 2})
    table.assign({"slot2": (keys(2, 3), floats([4, 4], [8, 8]))})
    assert table.reinitialize("slot2", keys(1, 2, 3)).tolist() == [1, 0, 1]  # of 2, of 1 and 3
    assert table.lookup({"slot2": keys(1, 2, 3)})["slot2"].eq(0).all()
    assert table.reinitialize("slot3", keys(1, 2, 3)).tolist() == [-1, -1, -1]


@pytest.mark.req("NT-DPS-T5")
@on_every_kind
@pytest.mark.parametrize("options", [{"is_raw": False}, {"transfer_float16": True}])
def test_without_the_raw_path_there_is_no_raw_call(make, options):
    table = make(2, {"a": 1}, **options)
    with pytest.raises(NotImplementedError, match=r"\.reinitialize\] expected the raw path"):
        table.reinitialize("a", keys(1))
    with pytest.raises(NotImplementedError, match=r"\.raw_lookup\] expected the raw path"):
        table.raw_lookup(Ragged.from_lists([[1]]))


@on_every_kind
def test_multi_table_vector_17_of_the_reference_system(make):
    table = make(1, {"slot0": 1, "not_used": 2, "slot1": 2, "slot2": 2})
    table.assign_add(
        {
            "slot0": (keys(0), column(1)),
            "slot1": (keys(1), floats([2, 2])),
            "slot2": (keys(2, 3), floats([4, 4], [8, 8])),
        }
    )
    assert table.reinitialize("slot2", keys(1, 2, 3)).tolist() == [0, 1, 1]
    assert table.lookup({"slot2": keys(1, 2, 3)})["slot2"].eq(0).all()
    assert table.reinitialize("slot3", keys(1, 2, 3)).tolist() == [-1, -1, -1]


class TestFloat16:
    """Rows and gradients travel as float16; tables keep float32."""

    VALUE = 1 / 3

    @pytest.mark.req("NT-DPS-T6")
    @on_every_kind
    def test_rows_are_rounded_on_their_way_and_not_in_the_table(self, servers_of):
        servers, configs = servers_of(2), {"a": config_of("a")}
        half = DistributedMultiTypeHashTable(configs, servers, transfer_float16=True)
        half.assign({"a": (keys(5), column(self.VALUE))})
        full = DistributedMultiTypeHashTable(configs, servers)
        assert torch.equal(full.lookup({"a": keys(5)})["a"], column(self.VALUE))
        found = half.lookup({"a": keys(5)})["a"]
        assert found.dtype == torch.float32
        assert torch.equal(found, column(self.VALUE).half().float())

    @pytest.mark.req("NT-DPS-T6")
    @on_every_kind
    def test_gradients_are_rounded_on_their_way_and_summed_as_float32(self, servers_of):
        servers, configs = servers_of(2), {"a": config_of("a")}
        half = DistributedMultiTypeHashTable(configs, servers, transfer_float16=True)
        half.apply_gradients({"a": (keys(5, 5), column(self.VALUE, self.VALUE))})
        full = DistributedMultiTypeHashTable(configs, servers)
        expected = -2 * column(self.VALUE).half().float()
        assert torch.equal(full.lookup({"a": keys(5)})["a"], expected)

    def test_what_float16_cannot_hold_is_refused(self, make):
        table = make(2, {"a": 1, "b": 1}, transfer_float16=True)
        text = r"expected gradients in the range of float16, got 70000; transfer float32"
        with pytest.raises(ValueError, match=text):
            table.apply_gradients({"a": (keys(1, 2), column(70000, 1))})
        assert table.lookup({"a": keys(1, 2)})["a"].tolist() == [[0], [0]]
        table.assign({"b": (keys(1), column(70000))})
        with pytest.raises(ValueError, match="expected rows in the range of float16"):
            table.lookup({"b": keys(1)})

    def test_an_infinite_gradient_is_left_to_the_table(self, make):
        skipping = {"a": config_of("a", non_finite="skip")}
        table = make(2, skipping, transfer_float16=True)
        applied = table.apply_gradients({"a": (keys(1, 2), column(float("inf"), 1))})
        assert (applied.num_applied, applied.num_skipped) == (1, 1)


class TestRaw:
    """Calls without a cost per slot."""

    def test_keys_come_as_one_ragged_batch(self, make):
        table = make(3, {"a": 1, "b": 2})
        batch = Ragged.from_lists([[7, 8, 7], [7]])
        applied = table.raw_apply_gradients(batch, torch.tensor([1.0, 2, 4, 8, 16]), step=1)
        assert applied.num_applied == 3
        assert table.raw_lookup(batch).tolist() == [-5, -2, -5, -8, -16]

    def test_python_does_as_much_for_many_slots_as_for_few(self, make):
        def num_calls(num_slots):
            table = make(2, {f"{i:03}": 1 for i in range(num_slots)})
            lengths = torch.full((num_slots,), 900 // num_slots)
            batch, grads = Ragged.from_lengths(torch.arange(900), lengths), torch.ones(900)
            table.raw_apply_gradients(batch, grads)
            update = num_python_calls(lambda: table.raw_apply_gradients(batch, grads))
            return update, num_python_calls(lambda: table.raw_lookup(batch))

        assert num_calls(3) == num_calls(300)

    def test_wrong_batches_are_refused(self, make):
        table = make(2, {"a": 1, "b": 2})
        batch = Ragged.from_lists([[7], [8]])
        with pytest.raises(TypeError, match=r"raw_lookup\] expected keys as a Ragged, got list"):
            table.raw_lookup([[7]])
        with pytest.raises(ValueError, match="keys with 2 rows, one per slot, got 1"):
            table.raw_lookup(Ragged.from_lists([[7]]))
        with pytest.raises(ValueError, match=r"expected grads with 3 numbers.*got 4"):
            table.raw_apply_gradients(batch, torch.ones(4))
        with pytest.raises(TypeError, match="keys of dtype int64"):
            table.raw_lookup(Ragged(torch.ones(2), torch.tensor([0, 1, 2])))


class TestRefusals:
    def test_unknown_slots(self, make):
        table = make(2, {"a": 1, "b": 1})
        with pytest.raises(
            ValueError, match=r"lookup\] expected slots of the table, got 'z'; it has a, b"
        ):
            table.lookup({"z": keys(1)})

    def test_values_of_another_shape(self, make):
        table = make(2, {"a": 1})
        with pytest.raises(ValueError, match=r"values .*\(1, 1\).*\(1, 2\).*slot 'a'"):
            table.assign({"a": (keys(1), torch.ones(1, 2))})

    def test_ids_of_another_dtype(self, make):
        table = make(2, {"a": 1})
        with pytest.raises(TypeError, match=r"ids of dtype int64, got int32 \(slot 'a'\)"):
            table.lookup({"a": keys(1).int()})

    def test_rates_of_unknown_slots(self, make):
        table = make(2, {"a": 1})
        text = r"\[DistributedMultiTypeHashTable.apply_gradients\] expected learning rates of the"
        with pytest.raises(ValueError, match=text):
            table.apply_gradients({"a": (keys(1), column(1))}, learning_rates={"z": [1.0]})

    def test_a_step_below_zero(self, make):
        table = make(2, {"a": 1})
        text = r"\[DistributedMultiTypeHashTable.{}\] expected step .*got -1 \(table 'a'\)"
        with pytest.raises(ValueError, match=text.format("apply_gradients")):
            table.apply_gradients({"a": (keys(1), column(1))}, step=-1)
        with pytest.raises(ValueError, match=text.format("lookup")):
            table.lookup({"a": keys(1)}, step=-1)

    @both_paths
    def test_a_gradient_that_is_not_finite_leaves_every_server_as_it_was(self, make, is_raw):
        skipping = config_of("b", non_finite="skip")
        table = make(3, {"a": config_of("a"), "b": skipping}, is_raw=is_raw)
        bad = column(1, 1, float("nan"))
        with pytest.raises(ValueError, match=r"finite.*table 'a'"):
            table.apply_gradients({"a": (keys(0, 1, 2), bad)})
        assert table.lookup({"a": keys(0, 1, 2)})["a"].flatten().tolist() == [0, 0, 0]
        assert table.apply_gradients({"b": (keys(0, 1, 2), bad)}).num_skipped == 1

    @pytest.mark.parametrize(
        ("configs", "error", "text"),
        [
            ({}, ValueError, "the config of at least one table, got none"),
            ({"a": 1.0}, TypeError, r"as HashTableConfigInstance or TableConfig, got float"),
            ({"a": config_of("b")}, ValueError, "by the name of their table, got 'b' under 'a'"),
        ],
    )
    def test_configs_that_cannot_be_served(self, configs, error, text):
        with LocalServers(2) as servers:
            with pytest.raises(error, match=text):
                DistributedMultiTypeHashTable(configs, servers)
            assert servers[0].table_names == []


def test_lookup_times_of_each_server_go_to_the_sink(make):
    sink = MemorySink()
    table = make(2, {"a": 1}, sink=sink, model_name="clicks")
    table.lookup({"a": keys(0, 1)})
    table.lookup({"a": keys(1)})
    table.assign({"a": (keys(0), column(1))})
    tags = [{"model_name": "clicks", "ps": ps} for ps in ("0", "1")]
    found = [sink.summary("embedding_lookup", each) for each in tags]
    assert [summary.num_times for summary in found] == [1, 2]
    assert found[0].minimum > 0


@both_paths
def test_updates_of_several_threads_all_count(make, is_raw):
    table = make(3, {"a": 1, "b": 2}, is_raw=is_raw)
    ids = torch.arange(-50, 50)

    def update(_):
        for _ in range(20):
            table.apply_gradients({"a": (ids, torch.ones(100, 1)), "b": (ids, torch.ones(100, 2))})
            table.lookup({"a": ids})

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(update, range(4)))
    rows = table.lookup({"a": ids, "b": ids})
    assert all(own.eq(-80).all() for own in rows.values())


def test_a_handle_waits_for_updates(make):
    table = make(2, {"a": 1})
    handle = table.assign({"a": (keys(1), column(1))}).as_op()
    handle.wait()
    assert handle.is_done()


def test_dims_come_in_the_order_of_names(make):
    assert make(2, {"b": 3, "a": 2}).get_table_dim_sizes() == [2, 3]


class TestTime:
    """The clock of the object that updates counts, not that of a server."""

    CONFIG = config_of("a")

    def table(self, servers, clock):
        return DistributedMultiTypeHashTable({"a": self.CONFIG}, servers, clock=lambda: clock)

    def times(self, servers):
        hosts = servers.shards(self.CONFIG, FloorModRouting(2))
        return [host.table.lookup_entry(keys(i)).rows.times.item() for i, host in enumerate(hosts)]

    def test_a_clock_ahead_of_the_servers_gives_the_time(self):
        with LocalServers(2) as servers:
            table = self.table(servers, 4_000_000_000)
            table.assign({"a": (keys(0, 1), column(1, 1))})
            assert self.times(servers) == [4_000_000_000] * 2

    @pytest.mark.parametrize("verb", ["assign", "assign_add", "apply_gradients", "reinitialize"])
    def test_a_time_ahead_of_the_clock_is_clamped_and_counted_once(self, verb):
        with LocalServers(2) as servers:
            table = self.table(servers, 1000)
            values = {"a": (keys(0, 1), column(1, 1))}
            arguments = ("a", keys(0, 1)) if verb == "reinitialize" else (values,)
            getattr(table, verb)(*arguments, now=1_000_000)
            assert self.times(servers) == [4600, 4600]
            hosts = servers.shards(self.CONFIG, FloorModRouting(2))
            assert [host.table.stats()["num_clamped_times"] for host in hosts] == [1, 0]

    @pytest.mark.parametrize("now", [-1, "noon"])
    def test_a_time_that_is_none_is_refused_before_a_server_changes(self, make, now):
        table = make(2, {"a": 1, "b": 1})
        text = r"\[DistributedMultiTypeHashTable.assign\] expected now .*\(table 'a and 1 more'\)"
        with pytest.raises((TypeError, ValueError), match=text):
            table.assign({"b": (keys(1), column(1))}, now=now)

    def test_a_slot_that_is_not_there_counts_no_clamped_time(self):
        with LocalServers(2) as servers:
            table = self.table(servers, 1000)
            table.reinitialize("z", keys(0), now=1_000_000)
            assert table.tables["a"].stats()["num_clamped_times"] == 0
