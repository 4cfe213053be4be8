"""Tables on servers of other processes, here behind a connection without a wire."""

import dataclasses
import random

import pytest
import torch

from monolith.checkpoint import Contents, save
from monolith.cluster import RemoteServers
from monolith.cluster.call_host import Call
from monolith.cluster.remote_servers import CLIENTS
from monolith.cluster.servers_engine import servers_engine
from monolith.errors import (
    AbortedError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from monolith.features import BagFeature, PendingGradients
from monolith.observe.metrics import MemorySink
from monolith.ops import Ragged
from monolith.table import Expiry, MinCount, Segment, Table, TableConfig, Zeros
from monolith.table.optimizers import SGD, Adagrad
from monolith.table.reference import ReferenceTable
from monolith.table.replay import Record
from monolith.table.routing import FloorModRouting, PartitionRouting
from tests.cluster.direct_connection import DirectConnection, connections, remote_servers
from tests.suites.engine import read
from tests.suites.table_base import NOW, assert_equal_rows, exported, keys
from tests.suites.table_concurrency import run_together

CONFIG = TableConfig("user", Segment(1, SGD(1.0), Zeros()))


X, Y = BagFeature("x", "a"), BagFeature("y", "b")
SMALL = [TableConfig(name, Segment(1, SGD(1.0), Zeros())) for name in "ab"]


def engine(servers, configs=SMALL, features=(X, Y), sink=None):
    routing = PartitionRouting(len(servers))
    tables = [servers.table(config, routing, lambda: NOW) for config in configs]
    return PendingGradients(servers_engine(servers, sink)(tables, list(features)))


def push(pending, x, y=()):
    """One step with gradients of ones."""
    ids = {"x": Ragged.from_lists([list(x)]), "y": Ragged.from_lists([list(y)])}
    read(pending, ids)[0].sum().backward()
    return pending.apply()


def tables_of(pending):
    return pending.engine.tables


def numbers_of(servers):
    """Numbers of update calls of the tables of each server."""
    hosts = [connection.host for connection in servers._connections]
    statuses = [host.status()["tables"] for host in hosts]
    return [[table["update_calls"] for table in status.values()] for status in statuses]


def test_a_step_is_one_message_to_each_server_each_way():
    calls, many = [], range(100)
    servers = remote_servers(2, calls)
    pending = engine(servers)
    push(pending, many, many)
    calls.clear()
    push(pending, many, many)
    assert [(server, verb) for server, verb, _ in calls] == [
        *((server, "pull") for server in range(2)),
        *((server, "push") for server in range(2)),
    ]


def test_pushes_are_numbered_as_updates_of_one_table():
    servers = remote_servers(2)
    pending = engine(servers)
    push(pending, [7])
    push(pending, [8], [1])
    tables_of(pending)["a"].assign(keys(1), torch.ones(1, 1))
    push(pending, [8], [1])
    assert numbers_of(servers) == [[4, 2], [4, 2]]


def test_the_numbers_of_pushes_follow_a_restore():
    servers = remote_servers(2)
    pending = engine(servers)
    push(pending, [7])
    tables_of(pending)["a"].num_update_calls = 0
    push(pending, [7])
    assert numbers_of(servers) == [[1, 0], [1, 0]]


def two_clients(num_servers, calls=None):
    """Two clients of the same servers."""
    ways = connections(num_servers, calls)
    others = [DirectConnection(way.host, calls) for way in ways]
    return [RemoteServers(each, worker=(i, 2)) for i, each in enumerate((ways, others))]


@pytest.mark.thorough
def test_pushes_of_two_clients_at_once_equal_the_replay_of_every_server(monkeypatch):
    records = {}

    def recorded(config, **options):
        records.setdefault(config.name, []).append(Record())
        return Table(config, record=records[config.name][-1], **options)

    monkeypatch.setattr("monolith.table.Table", recorded)
    segment = Segment(3, Adagrad(0.1), precision="bf16")  # rounds by the number of the update
    configs = [TableConfig(name, segment, admission=MinCount(2)) for name in "ab"]
    engines = [engine(servers, configs) for servers in two_clients(2)]

    def work(pending, seed):
        draw = random.Random(seed)
        for _ in range(20):
            push(pending, draw.choices(range(40), k=30), draw.choices(range(40), k=30))

    run_together(*(lambda i=i: work(engines[i], i) for i in range(2)))
    for config in configs:
        table = tables_of(engines[0])[config.name]
        reference = ReferenceTable(dataclasses.replace(config, admission=None))
        for record in records[config.name]:
            record.replay(reference)
        assert_equal_rows(exported(table), exported(reference))
        assert len(table) == 40


def test_pushes_of_several_clients_have_numbers_of_their_own():
    calls = []
    first, second = two_clients(1, calls)
    both = [engine(servers) for servers in (first, second)]
    for i in (0, 1, 1, 0, 0):
        push(both[i], [7])
    sent = [arguments[-1].tolist()[0] for _, verb, arguments in calls if verb == "push"]
    assert sent == [0, 1, 3, 2, 4]
    assert numbers_of(first) == [[6, 0]]


@pytest.mark.parametrize("worker", [(-1, 1), (1, 1), (0, 0)])
def test_a_client_that_is_none_is_refused(worker):
    with pytest.raises(ValueError, match=r"\[RemoteServers\] expected worker \(index, number"):
        remote_servers(1, worker=worker)


def test_servers_in_another_order_are_refused_by_name():
    text = r"expected server 0 of 2, got server 1 of 2 \(/job:ps/task:1.*order of their numbers"
    with pytest.raises(InvalidArgumentError, match=text):
        RemoteServers(connections(2)[::-1])
    with pytest.raises(InvalidArgumentError, match="expected server 0 of 1, got server 0 of 2"):
        RemoteServers(connections(2)[:1])


def test_another_routing_of_a_table_is_refused():
    servers = remote_servers(2)
    servers.table(CONFIG, PartitionRouting(2))
    with pytest.raises(InvalidArgumentError, match=r"expected shard 0 of PartitionRouting\(2\)"):
        servers.table(CONFIG, FloorModRouting(2))


def test_closed_servers_answer_no_more():
    with remote_servers(1) as servers:
        table = servers.table(CONFIG, PartitionRouting(1))
    with pytest.raises(UnavailableError, match=r"got none since .*closed"):
        len(table)


def swept(every_seconds=2):
    """(servers, their table, clock) of a table whose rows live for a day, swept at intervals."""
    clock, servers = [9 * 86_400], remote_servers(2)
    table = servers.table(
        dataclasses.replace(CONFIG, expiry=Expiry(1)), PartitionRouting(2), lambda: clock[0]
    )
    table.assign(keys(1, 2, 3), torch.ones(3, 1), now=clock[0] - 86_400 * 2)
    table.assign(keys(4), torch.ones(1, 1))
    servers.sweep("user", every_seconds, lambda: clock[0])
    return servers, table, clock


def test_a_client_sweeps_expired_rows_on_all_servers():
    servers, table, clock = swept()
    clock[0] += 2
    assert servers._sweeps["user"].check() == 3
    assert exported(table).keys.tolist() == [4]


def test_a_later_sweep_takes_the_place_and_ends_with_the_connection():
    servers, _, _ = swept()
    first = servers._sweeps["user"]
    servers.sweep("user", 5)
    second = servers._sweeps["user"]
    assert (first.is_running, second.is_running) == (False, True)
    servers.close()
    assert not second.is_running


def test_only_tables_that_were_made_are_swept():
    text = r"\[RemoteServers.sweep\] expected a table that was made here, got 'user'"
    with pytest.raises(NotFoundError, match=text):
        remote_servers(1).sweep("user", 5)


# Transfers of 16 bits

VALUES = torch.tensor([1.0, -3.25, 1 / 3, 1e-3, 300.5, 6e-5])


def transferred(transfer):
    """A table after one push of gradients `VALUES`, and what a read of it gives."""
    servers = remote_servers(2, transfer=transfer)
    pending = engine(servers, [CONFIG], [BagFeature("x", "user")])
    rows = Ragged.from_lists([[i] for i in range(len(VALUES))])
    matrix = read(pending, {"x": rows})[0]
    matrix.backward(-VALUES[:, None])
    pending.apply()
    return tables_of(pending)["user"], read(pending, {"x": rows})[0].detach().flatten()


@pytest.mark.req("NT-DPS-T6")
@pytest.mark.parametrize(
    ("transfer", "dtype"), [("float16", torch.float16), ("bfloat16", torch.bfloat16)]
)
def test_narrow_transfers_round_once_each_way_and_rows_stay_wide(transfer, dtype):
    table, pooled = transferred(transfer)
    rounded = VALUES.to(dtype).float()
    assert torch.equal(table.lookup(torch.arange(6)).flatten(), rounded)
    assert torch.equal(pooled, rounded)
    error = ((rounded - VALUES) / VALUES).abs().max()
    assert 0 < error <= {"float16": 2**-11, "bfloat16": 2**-9}[transfer] * (1 + 2**-10)


def test_a_row_between_two_narrow_numbers_is_read_rounded():
    servers = remote_servers(2, transfer="bfloat16")
    pending = engine(servers, [CONFIG], [BagFeature("x", "user")])
    tables_of(pending)["user"].assign(torch.arange(6), VALUES[:, None])
    pooled = read(pending, {"x": Ragged.from_lists([[i] for i in range(6)])})[0]
    assert torch.equal(pooled.detach().flatten(), VALUES.bfloat16().float())


def test_float16_refuses_what_it_cannot_hold():
    servers = remote_servers(1, transfer="float16")
    pending = engine(servers, [CONFIG], [BagFeature("x", "user")])
    ids = {"x": Ragged.from_lists([[7]])}
    read(pending, ids)[0].backward(torch.tensor([[1e6]]))
    with pytest.raises(ValueError, match=r"expected gradients in the range of float16, got 1e\+06"):
        pending.apply()
    tables_of(pending)["user"].assign(keys(7), torch.tensor([[1e6]]))
    with pytest.raises(ValueError, match="expected rows in the range of float16, got 1e"):
        read(pending, ids)


def test_an_unknown_transfer_is_refused():
    text = r"\[RemoteServers\] expected transfer as one of float32, .*, got 'int8'"
    with pytest.raises(ValueError, match=text):
        remote_servers(1, transfer="int8")


# Servers that come back empty


def saved(servers, folder, pending):
    trainer = {CLIENTS: servers.clients_state()}
    tables = list(tables_of(pending).values())
    prefix = save(Contents(tables=tables, trainer=trainer, step=1), folder)
    servers.recovery = lambda: prefix
    return prefix


def rows_of(pending):
    return {name: exported(table) for name, table in tables_of(pending).items()}


def test_a_server_that_comes_back_empty_has_its_rows_of_the_checkpoint(tmp_path):
    servers, many = remote_servers(3), list(range(60))
    pending = engine(servers)
    push(pending, many, many)
    saved(servers, tmp_path, pending)
    before = rows_of(pending)
    servers._connections[1].restart()
    for name, rows in rows_of(pending).items():
        assert_equal_rows(rows, before[name])


def test_other_servers_keep_their_newer_rows_and_lost_pushes_are_counted(tmp_path, caplog):
    sink, servers, many = MemorySink(), remote_servers(3), list(range(60))
    pending = engine(servers)
    servers.sink = sink
    push(pending, many)
    prefix = saved(servers, tmp_path, pending)
    for _ in range(4):
        push(pending, many)
    servers._connections[1].restart()
    push(pending, many)
    owners = PartitionRouting(3).shard_of(torch.tensor(many))
    expected = torch.where(owners == 1, -2.0, -6.0)
    assert torch.equal(tables_of(pending)["a"].lookup(torch.tensor(many)).flatten(), expected)
    assert numbers_of(servers) == [[6, 0]] * 3
    assert servers.lost_pushes == 4
    assert sink.total("lost_pushes", {"ps": "1"}) == 4
    assert f"those of {prefix}, and 4 pushes are lost" in caplog.text


def test_a_push_whose_answer_was_lost_with_its_server_is_done_again(tmp_path):
    servers, many = remote_servers(2), list(range(60))
    pending = engine(servers)
    push(pending, many)
    saved(servers, tmp_path, pending)
    servers._connections[0].restart_in("push")
    push(pending, many)
    rows = tables_of(pending)["a"].lookup(torch.tensor(many)).flatten()
    assert torch.equal(rows, torch.full((60,), -2.0))
    assert (servers.lost_pushes, numbers_of(servers)) == (0, [[2, 0], [2, 0]])


def test_a_server_that_comes_back_does_no_write_again_that_its_checkpoint_has(tmp_path):
    servers, many = remote_servers(2), list(range(60))
    pending = engine(servers)
    push(pending, many)
    saved(servers, tmp_path, pending)
    connection, client = servers._connections[0], pending.engine._client
    handle = servers._groups["a", "b"][0]
    _, _, arguments = [call for call in connection.calls if call[:2] == (0, "push")][-1]
    connection.restart()
    before = rows_of(pending)
    number = max(connection.host._hosts[handle.number]._clients[client._client].writes)
    again = connection.send(handle, Call(client._client, number, 0, "push", arguments))
    assert again.result()[1] > 0  # as many rows as were new the first time
    for name, rows in rows_of(pending).items():
        assert_equal_rows(rows, before[name])


def test_two_servers_that_come_back_empty_are_both_restored(tmp_path):
    servers, many = remote_servers(3), list(range(60))
    pending = engine(servers)
    push(pending, many)
    saved(servers, tmp_path, pending)
    for connection in servers._connections[:2]:
        connection.restart()
    push(pending, many)
    assert len(tables_of(pending)["a"]) == 60


def test_a_second_client_of_a_table_follows_it_to_a_new_life(tmp_path):
    servers, many = remote_servers(2), list(range(60))
    pending = engine(servers)
    push(pending, many)
    again = engine(servers)
    saved(servers, tmp_path, pending)
    servers._connections[0].restart()
    push(again, many)
    push(pending, many)
    assert numbers_of(servers) == [[3, 0], [3, 0]]


def test_a_server_that_comes_back_empty_without_a_checkpoint_is_an_error_each_time():
    servers = remote_servers(2)
    pending = engine(servers)
    push(pending, [7])
    servers._connections[1].restart()
    text = r"expected server 1 with its tables, got a new process .*/job:ps/task:1.*save check"
    for _ in range(2):
        with pytest.raises(AbortedError, match=text):
            push(pending, list(range(60)))
