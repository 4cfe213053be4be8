"""Tables on servers as an engine: the facts of all engines, and how little is sent."""

import copy
import dataclasses
import threading

import pytest
import torch

from monolith.cluster import LocalServers, ShardedTable
from monolith.cluster.servers import ps_label
from monolith.cluster.servers_engine import ServersEngine, servers_engine
from monolith.cluster.shard_hosts import GroupHost
from monolith.cluster.table_group import TableGroup
from monolith.cluster.transport import LocalTransport, Transport
from monolith.errors import DataLossError, FailedPreconditionError, NotFoundError
from monolith.features import BagFeature, PendingGradients
from monolith.features.engine import Gradients
from monolith.observe.metrics import MemorySink
from monolith.ops import Ragged
from monolith.table import (
    MinCount,
    OneBit,
    Probabilistic,
    Segment,
    Table,
    TableConfig,
    Zeros,
    restore_tables,
    save_tables,
)
from monolith.table.optimizers import SGD, Adagrad
from monolith.table.reference import ReferenceTable
from monolith.table.routing import FloorModRouting, PartitionRouting
from tests.suites.engine import CONFIGS, FEATURES, EngineSuite, lists, meaning, read, train
from tests.suites.table_base import NOW, assert_same_bits, assert_same_rows, keys

X, Y = BagFeature("x", "a"), BagFeature("y", "b")
SMALL = [TableConfig(name, Segment(1, SGD(1.0), Zeros())) for name in "ab"]
PER_CALL = [  # what rows and admission draw depends on the number of the update
    TableConfig("a", Segment(2, Adagrad(0.3), precision="bf16"), admission=Probabilistic(3)),
    TableConfig("b", Segment(3, SGD(0.5), view=OneBit()), admission=MinCount(2)),
]


def sharded(servers, configs, clock=lambda: NOW, routing=None):
    routing = routing or PartitionRouting(len(servers))
    return [
        ShardedTable.over(config, servers.shards(config, routing), routing=routing, clock=clock)
        for config in configs
    ]


def on_servers(num_servers):
    def make(configs, features, clock=lambda: NOW):
        servers = LocalServers(num_servers)
        return servers_engine(servers)(sharded(servers, configs, clock), features)

    return make


class TestOneServer(EngineSuite):
    make = staticmethod(on_servers(1))


class TestThreeServers(EngineSuite):
    make = staticmethod(on_servers(3))


class Spy(Transport):
    """The way to a server that keeps the calls; it may lie about the answers."""

    def __init__(self, host, calls, answer=None):
        self._local, self._calls, self._answer = LocalTransport(host), calls, answer
        self.device = host.device

    def send(self, call):
        self._calls.append((self.device, call.verb, call.arguments))
        pending = self._local.send(call)
        return pending if self._answer is None else pending._replace(value=self._answer)


def watched(servers, calls, features=(X, Y), **options):
    def connect(names):
        return [Spy(host, calls, **options) for host in servers.groups(names)]

    return PendingGradients(ServersEngine(sharded(servers, SMALL), list(features), connect))


def ids_of(x, y):
    return {"x": Ragged.from_lists(x), "y": Ragged.from_lists(y)}


def test_a_step_is_one_message_to_each_server_each_way():
    calls = []
    with LocalServers(2) as servers:
        pending = watched(servers, calls)
        numbers = list(range(100))
        read(pending, ids_of([numbers], [numbers]))[0].sum().backward()
        pending.apply()
        assert [verb for _, verb, _ in calls] == ["pull", "pull", "push", "push"]
        assert [server for server, _, _ in calls] == [ps_label(i) for i in (0, 1, 0, 1)]


def test_the_counts_of_all_tables_are_one_message_to_each_server():
    calls = []
    with LocalServers(2) as servers:
        pending = watched(servers, calls)
        numbers = list(range(100))
        read(pending, ids_of([numbers], [[7]]))[0].sum().backward()
        pending.apply()
        calls.clear()
        engine = pending.engine
        stats, reports = engine.stats(), engine.memory_reports()
        verbs = ["stats", "stats", "memory_report", "memory_report"]
        assert [verb for _, verb, _ in calls] == verbs
        assert {name: counts["num_rows"] for name, counts in stats.items()} == {"a": 100, "b": 1}
        for name, table in engine.tables.items():
            assert stats[name] == table.stats()
            assert reports[name] == table.memory_report()


def test_the_time_of_each_servers_part_of_a_lookup_goes_to_the_sink():
    sink = MemorySink()
    with LocalServers(2) as servers:
        make_engine = servers_engine(servers, sink, "clicks")
        pending = PendingGradients(make_engine(sharded(servers, SMALL), [X, Y]))
        for numbers in (list(range(100)), [7]):  # the second asks one of the servers
            read(pending, ids_of([numbers], [[]]))[0].sum().backward()
            pending.apply()
    tags = [{"model_name": "clicks", "ps": str(server)} for server in range(2)]
    assert sorted(sink.summary("embedding_lookup", tag).num_times for tag in tags) == [1, 2]


@pytest.mark.req("NT-DPS-T13")
def test_admission_counts_every_occurrence():
    configs = [dataclasses.replace(config, admission=MinCount(999)) for config in SMALL]
    with LocalServers(2) as servers:
        pending = PendingGradients(servers_engine(servers)(sharded(servers, configs), [X, Y]))
        sizes = []
        for _ in range(2):
            read(pending, ids_of([[7] * 999 + [8] * 998], [[]]))[0].sum().backward()
            pending.apply()
            sizes.append([len(table) for table in tables_of(pending)])
    assert sizes == [[0, 0], [1, 0]]


@pytest.mark.req("NT-DPS-T12", "NT-DPS-T13")
def test_equal_ids_are_sent_once():
    calls = []
    with LocalServers(2) as servers:
        pending = watched(servers, calls)
        read(pending, ids_of([[7] * 999 + [8] * 1001], [[]]))[0].sum().backward()
        pending.apply()
    keys_of = {verb: [] for verb in ("pull", "push")}
    for _, verb, arguments in calls:
        keys_of[verb] += arguments[0].tolist()
    assert {verb: sorted(sent) for verb, sent in keys_of.items()} == {
        "pull": [7, 8],
        "push": [7, 8],
    }
    counts = torch.cat([arguments[3] for _, verb, arguments in calls if verb == "push"])
    assert sorted(counts.tolist()) == [999, 1001]


def test_a_server_without_keys_is_not_read_and_counts_the_update():
    calls = []
    with LocalServers(2) as servers:
        pending = watched(servers, calls)
        read(pending, ids_of([[7]], [[]]))[0].sum().backward()
        pending.apply()
        assert [verb for _, verb, _ in calls] == ["pull", "push", "push"]
        numbers = [[shard.num_update_calls for shard in t.shards()] for t in tables_of(pending)]
        assert numbers == [[1, 1], [0, 0]]


def tables_of(pending):
    return pending.engine.tables.values()


@pytest.mark.parametrize("num_servers", [1, 2, 5])
def test_draws_of_each_call_are_those_of_one_table(num_servers):
    features = [BagFeature("visited", "a", "mean"), BagFeature("kept", "b")]
    ours = PendingGradients(on_servers(num_servers)(PER_CALL, features))
    theirs = PendingGradients(meaning(PER_CALL, features, lambda: NOW))
    for found, expected in zip(train(ours), train(theirs), strict=True):
        assert_same_bits(found, expected)
    for one, other in zip(tables_of(ours), tables_of(theirs), strict=True):
        assert_same_rows(one, other)


def test_hosts_of_python_tables_give_the_same_bits():
    def connect(names):
        by_name = {config.name: config for config in PER_CALL}
        tables = [ReferenceTable(by_name[name], clock=lambda: NOW) for name in names]
        return [LocalTransport(GroupHost(TableGroup(tables)))]

    features = [BagFeature("visited", "a", "mean"), BagFeature("kept", "b")]
    tables = [ShardedTable.local(config, 1, clock=lambda: NOW) for config in PER_CALL]
    ours = PendingGradients(ServersEngine(tables, features, connect))
    theirs = PendingGradients(meaning(PER_CALL, features, lambda: NOW))
    for found, expected in zip(train(ours), train(theirs), strict=True):
        assert_same_bits(found, expected)


@pytest.mark.parametrize("num_others", [1, 4])
def test_tables_of_servers_are_restored_in_any_number_of_servers(tmp_path, num_others):
    ours, others = (PendingGradients(on_servers(n)(CONFIGS, FEATURES)) for n in (2, num_others))
    train(ours, num_steps=2)
    save_tables(list(tables_of(ours)), tmp_path)
    restore_tables(list(tables_of(others)), tmp_path)
    for found, expected in zip(train(others), train(ours), strict=True):
        assert_same_bits(found, expected)


def test_many_ids_on_several_threads_have_the_bits_of_the_core():
    draw = torch.Generator().manual_seed(5)
    lengths = torch.randint(0, 9, (4000,), generator=draw)
    numbers = torch.randint(0, 9000, (int(lengths.sum()),), generator=draw)
    ids = {"x": Ragged.from_lengths(numbers, lengths), "y": Ragged.from_lengths(-numbers, lengths)}
    seen = []
    for make in (on_servers(2), meaning):
        engine = make(SMALL, [X, Y], lambda: NOW)
        matrix, looked = engine.lookup(ids, None, None, "initial")
        values = torch.randn(4000, 2, generator=draw.manual_seed(1))
        summed = engine.sum([(looked, Gradients(values, {}))])
        engine.step(summed, [0.1, 0.2], [NOW, NOW])
        seen.append(
            [
                matrix,
                torch.tensor([float(summed.norm)]),
                engine.lookup(ids, None, None, "initial")[0],
            ]
        )
    for found, expected in zip(*seen, strict=True):
        assert_same_bits(found, expected)


def test_a_cut_has_a_step_wholly_or_not_at_all():
    with LocalServers(2) as servers:
        pending = watched(servers, [])
        table = pending.engine.tables["a"]
        read(pending, ids_of([list(range(50))], [[]]))[0].sum().backward()
        with table._gate.alone():
            stepping = threading.Thread(target=pending.apply)
            stepping.start()
            assert len(table) == 0
        stepping.join()
        assert len(table) == 50


def test_a_lookup_may_run_while_a_step_waits():
    with LocalServers(2) as servers:
        pending = watched(servers, [])
        read(pending, ids_of([[7]], [[8]]))[0].sum().backward()
        with pending.engine.tables["b"]._gate.alone():
            stepping = threading.Thread(target=pending.apply)
            stepping.start()
            matrix, _ = pending.engine.lookup(ids_of([[7]], [[8]]), None, None, "zeros")
            assert matrix.tolist() == [[0.0, 0.0]]
        stepping.join()


def test_an_error_names_the_server():
    with LocalServers(2) as servers:
        engine = servers_engine(servers)(sharded(servers, SMALL), [X, Y])
        servers.restart(1)
        text = r"got a closed one \(table '.'\) \(shard 1 on /job:ps/task:1/device:CPU:0\)$"
        with pytest.raises(FailedPreconditionError, match=text):
            engine.lookup(ids_of([list(range(9))], [[]]), None, None, "zeros")


@pytest.mark.parametrize(
    "answer", [None, torch.zeros(3), torch.zeros(1).double(), torch.zeros(1, 1)]
)
def test_an_answer_of_another_shape_is_refused(answer):
    with LocalServers(1) as servers:
        pending = watched(servers, [], answer=answer if answer is not None else "rows")
        text = (
            r"shard 0 on /job:ps/task:0/device:CPU:0: expected an answer of float32 of shape \(1,\)"
        )
        with pytest.raises(DataLossError, match=text):
            pending.engine.lookup(ids_of([[7]], [[]]), None, None, "zeros")


def test_gradients_that_a_table_refuses_reach_no_server():
    calls = []
    with LocalServers(2) as servers:
        engine = watched(servers, calls).engine
        _, looked = engine.lookup(lists(x=[[1]], y=[[2]]), None, None, "zeros")
        summed = engine.sum([(looked, Gradients(torch.tensor([[1.0, float("nan")]]), {}))])
        text = r"expected finite gradients, got norm nan \(table 'b'\); choose non_finite"
        with pytest.raises(ValueError, match=text):
            engine.step(summed, [1.0, 1.0], [NOW, NOW])
        assert not [verb for _, verb, _ in calls if verb == "push"]


@pytest.mark.parametrize("policy", ["skip", "clip"])
def test_what_is_not_finite_is_skipped_or_clipped_by_occurrence(policy):
    options = {"non_finite": policy, "clip_value": 2.0 if policy == "clip" else None}
    configs = [TableConfig(n, Segment(1, SGD(1.0), Zeros()), **options) for n in "ab"]
    seen = []
    for make in (on_servers(3), meaning):
        engine = make(configs, [X, Y], lambda: NOW)
        _, looked = engine.lookup(ids_of([[7], [7], [9]], [[7], [7], [9]]), None, None, "zeros")
        values = torch.tensor([[1.0, 1.0], [float("inf"), 2.0], [float("nan"), 3.0]])
        applied = engine.step(engine.sum([(looked, Gradients(values, {}))]), [1.0, 1.0], [NOW] * 2)
        stats = [(len(t), t.stats()["num_skipped"]) for t in engine.tables.values()]
        rows = [t.lookup(keys(7, 9)).tolist() for t in engine.tables.values()]
        seen.append((list(applied), stats, rows))
    assert seen[0] == seen[1]


def test_tables_that_are_not_on_the_servers_are_refused():
    with LocalServers(2) as servers:
        by_key = sharded(servers, SMALL[:1], routing=FloorModRouting(2))
        text = r"over 3 servers, got FloorModRouting over 2 \(table 'a'\)"
        with pytest.raises(ValueError, match=text):
            ServersEngine(by_key, [X], lambda names: [None] * 3)
        with pytest.raises(
            NotFoundError, match=r"shards of the tables, got none of b \(/job:ps/ta"
        ):
            servers_engine(servers)([Table(SMALL[1])], [Y])
        by_hash = sharded(servers, SMALL[1:])
        text = r"one routing, got FloorModRouting \(table 'a'\) and PartitionRouting \(table 'b'\)"
        with pytest.raises(ValueError, match=text):
            servers_engine(servers)([*by_key, *by_hash], [X, Y])
        with pytest.raises(TypeError, match="expected tables as ShardedTable, got Table"):
            servers_engine(servers)([Table(SMALL[1])], [Y])


def test_a_copy_of_an_engine_is_refused():
    with LocalServers(2) as servers:
        engine = servers_engine(servers)(sharded(servers, SMALL), [X, Y])
        with pytest.raises(TypeError, match="expected a table that holds its rows itself"):
            copy.deepcopy(engine)


def test_an_engine_that_is_closed_leaves_the_rows_on_the_servers():
    servers = LocalServers(2)
    for num_rows in (0, 2):
        engine = servers_engine(servers)(sharded(servers, SMALL), [X, Y])
        assert len(engine.tables["a"]) == num_rows
        pending = PendingGradients(engine)
        read(pending, lists(x=[[1], [2]], y=[[3], [4]]))[0].sum().backward()
        pending.apply()
        engine.close()
    with pytest.raises(FailedPreconditionError, match="expected open tables, got a closed one"):
        engine.lookup(lists(x=[[1]], y=[[2]]), None, None, "initial")
