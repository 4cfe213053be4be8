"""One server behind calls: its tables, groups and dense values, and what it refuses."""

import json
import threading

import pytest
import torch

from monolith.cluster import server_host
from monolith.cluster.call_host import Call
from monolith.cluster.server_host import ServerHost, config_text
from monolith.cluster.server_verbs import SERVER_VERBS
from monolith.errors import (
    AbortedError,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    MonolithError,
    NotFoundError,
)
from monolith.table import Segment, SlidingFilter, TableConfig, Zeros
from monolith.table.optimizers import SGD, Adagrad, PolynomialDecay
from tests.suites.table_base import NOW, column, keys

CONFIG = TableConfig("user", Segment(1, SGD(1.0), Zeros()))
PLACE = ("PartitionRouting", 2, 1)
LOG, OWN = 1 << 20, keys(2)  # a key of this shard


class Client:
    """Calls a server, with a new number each time."""

    def __init__(self, server, number=1):
        self.server, self.number, self._sequence = server, number, 0

    def __call__(self, verb, *arguments, host=0):
        self._sequence += 1
        return self.server.do(host, Call(self.number, self._sequence, 0, verb, arguments))

    def open(self, config=CONFIG, place=PLACE):
        return self("open_table", config_text(config), place, LOG)


@pytest.fixture
def server():
    host = ServerHost(1, 2)
    yield host
    host.close()


@pytest.fixture
def client(server):
    return Client(server)


def test_a_table_is_opened_once_and_has_a_number(client):
    number = client.open()
    client("assign_add", OWN, column(1.0), NOW, 1, host=number)
    assert client.open() == Client(client.server, 2).open() == number
    assert client("num_rows", host=number) == 1
    assert client("table_names") == ["user"]


def test_a_fence_holds_for_1100_clients_that_end_and_for_hosts_that_are_opened_later(client):
    number, fenced = client.open(), Client(client.server, 7)
    fenced("assign_add", OWN, column(1.0), NOW, 1, host=number)
    client("fence", [7])
    for other in range(100, 1200):
        Client(client.server, other)("bye", host=number)
    later = client.open(TableConfig("item", Segment(1, SGD(1.0), Zeros())))
    for host in (number, later):
        with pytest.raises(AbortedError, match="of one that is gone"):
            fenced("assign_add", OWN, column(1.0), NOW, 1, host=host)


FENCES = {
    "fence": ([7],),
    "give_up_workers": ([0],),
    "join_job": (0, 2, [8], "{}", "{}"),
}


class SlowWrite:
    """A write of client 7 to a table of a server; it ends when `gate` is set."""

    def __init__(self, client):
        self.number, self.gate, begun = client.open(), threading.Event(), threading.Event()
        self.job = client("open_job", 1)
        client("join_job", 0, 1, [7], "{}", "{}", host=self.job)
        table = client.server._hosts[self.number].table
        write = table._assign_add

        def slow(*arguments):
            begun.set()
            assert self.gate.wait(30)
            write(*arguments)

        table._assign_add = slow
        fenced = Client(client.server, 7)
        arguments = OWN, column(1.0), NOW, 1
        self.thread = threading.Thread(
            target=lambda: fenced("assign_add", *arguments, host=self.number)
        )
        self.thread.start()
        assert begun.wait(30)


@pytest.mark.parametrize("verb", FENCES)
def test_a_fence_is_answered_after_the_writes_that_have_begun(server, client, verb):
    write = SlowWrite(client)
    host = 0 if verb == "fence" else write.job
    fence = threading.Thread(target=lambda: client(verb, *FENCES[verb], host=host))
    fence.start()
    fence.join(0.2)
    was_waiting, rows = fence.is_alive(), Client(server, 5)("num_rows", host=write.number)
    write.gate.set()
    fence.join(30)
    write.thread.join(30)
    assert (was_waiting, rows) == (True, 0)
    assert client("num_rows", host=write.number) == 1


def test_a_write_that_does_not_end_fails_the_fence_and_later_ones_are_refused(
    server, client, monkeypatch
):
    monkeypatch.setattr(server_host, "WRITE_SECONDS", 0.05)
    write = SlowWrite(client)
    with pytest.raises(DeadlineExceededError, match=r"within 0.05 seconds, got 1 of 1 that run on"):
        client("fence", [7])
    with pytest.raises(AbortedError, match="of one that is gone"):
        Client(server, 7)("assign_add", OWN, column(1.0), NOW, 1, host=write.number)
    write.gate.set()
    write.thread.join(30)


def test_a_client_that_fences_itself_does_not_wait_for_its_own_call(server):
    Client(server, 7)("fence", [7])


def test_values_beyond_a_number_are_refused(client, monkeypatch):
    monkeypatch.setattr(server_host, "MAX_VALUES", 2)
    client("write_values", [("a", torch.ones(1)), ("b", torch.ones(1))])
    client("write_values", [("a", torch.zeros(1))])
    with pytest.raises(FailedPreconditionError, match=r"at most 2 values .* got 3 of 12 with 'c'"):
        client("write_values", [("c", torch.ones(1))])
    assert client("value_names") == ["a", "b"]


def test_values_beyond_a_number_of_bytes_are_refused(client, monkeypatch):
    monkeypatch.setattr(server_host, "MAX_VALUE_BYTES", 40)
    client("write_values", [("a", torch.ones(10))])
    client("write_values", [("a", torch.zeros(10))])
    with pytest.raises(FailedPreconditionError, match="of 40 bytes together, got 2 of 41 with 'b'"):
        client("write_values", [("b", torch.ones(1, dtype=torch.int8))])
    assert client("value_names") == ["a"]


def test_a_server_says_what_it_is(server, client):
    facts = {"index": 1, "num_servers": 2, "life": server.life, "tables": []}
    assert client("describe") == {**facts, "is_ready": False}
    assert ServerHost(1, 2).life != server.life


def test_learning_rates_may_differ_and_functions_stay_with_the_client(client):
    configs = [SGD(1.0), SGD(0.5), SGD(lambda step: 0.1), SGD(PolynomialDecay(1.0, 10, 2.0))]
    configs = [TableConfig("user", Segment(1, optimizer, Zeros())) for optimizer in configs]
    assert len({client.open(config) for config in configs}) == 1


def test_a_closed_table_is_made_anew_with_another_number(client):
    number = client.open()
    group = client("open_group", ["user"])
    client("close", host=number)
    again = client.open()
    assert again != number
    assert client("open_group", ["user"]) != group
    with pytest.raises(
        NotFoundError, match=rf"expected a host that was opened, .* number {number}"
    ):
        client("num_rows", host=number)


def test_a_group_is_opened_once(client):
    client.open()
    assert client("open_group", ["user"]) == client("open_group", ["user"])
    with pytest.raises(NotFoundError, match="expected shards of the tables, got none of item"):
        client("open_group", ["item"])


@pytest.mark.parametrize(
    "place", [("PartitionRouting", 2, 0), ("PartitionRouting", 3, 1), ("FloorModRouting", 1, 0)]
)
def test_a_client_that_takes_a_server_for_another_one_is_refused_by_name(client, place):
    text = rf"expected shard 1 of 2, got shard {place[2]} of .* on /job:ps/task:1/.*order and the"
    with pytest.raises(InvalidArgumentError, match=text):
        client.open(place=place)


def test_another_routing_or_config_is_refused_by_name(client):
    client.open()
    with pytest.raises(InvalidArgumentError, match=r"expected shard 1 of PartitionRouting\(2\)"):
        client.open(place=("FloorModRouting", 2, 1))
    other = TableConfig("user", Segment(1, Adagrad(1.0), Zeros()))
    with pytest.raises(ValueError, match=r"expected the config that the table has, .*SGD.*Adagrad"):
        client.open(other)


def test_a_filter_of_floor_mod_shards_is_opened_again(client):
    config = TableConfig("user", Segment(1), admission=SlidingFilter(2, num_shards=2))
    place = ("FloorModRouting", 2, 1)
    assert client.open(config, place) == client.open(config, place)


def test_dense_values_are_written_and_read_by_name(client):
    values = [("w", torch.ones(2, 3)), ("n", torch.tensor(7)), ("b", torch.ones(2).bfloat16())]
    client("write_values", values)
    client("write_values", [("n", torch.tensor(8))])
    assert client("value_names") == ["b", "n", "w"]
    assert [value.tolist() for value in client("read_values", ["n", "b"])] == [8, [1.0, 1.0]]
    with pytest.raises(NotFoundError, match=r"\[ServerHost.read_values\] .* got 'x'"):
        client("read_values", ["x"])


def test_an_answer_keeps_its_values_when_they_are_written_again(client):
    value = torch.ones(2)
    client("write_values", [("w", value)])
    value.fill_(2)
    (answer,) = client("read_values", ["w"])
    client("write_values", [("w", value)])
    assert answer.tolist() == [1.0, 1.0]


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("verb", "arguments", "text"),
    [
        ("open_table", ("", PLACE, LOG), "expected config as a string of 1 to"),
        ("open_table", (b"{}", PLACE, LOG), "expected config as a string of 1 to"),
        ("open_table", ("{", PLACE, LOG), r"\[ServerHost.open_table\] expected JSON, got '{'"),
        ("open_table", (DEEP, PLACE, LOG), "expected JSON, got .*recursion"),
        ("open_table", ("3", PLACE, LOG), "expected the config of a table, got int"),
        ("open_table", ('{"class": "Segment"}', PLACE, LOG), "expected the config of a table"),
        ("open_table", ('{"class": [1]}', PLACE, LOG), "expected the config of a table"),
        ("open_table", ("{}", list(PLACE), LOG), "expected placement as a tuple"),
        ("open_table", ("{}", ("PartitionRouting", 2, True), LOG), "expected placement as a tup"),
        ("open_table", ("{}", ("os", 2, 1), LOG), "expected a routing, one of Part.* got 'os'"),
        ("open_table", ("{}", ("PartitionRouting", 2, 2), LOG), "got 'shard 2 of 2'"),
        ("open_table", ("{}", ("PartitionRouting", 5000, 1), LOG), "expected a shard of 1 to 40"),
        ("open_table", ("{}", PLACE, -1), "expected changes_bytes as an int in"),
        ("open_group", ([],), "expected names as a list of 1 to 65536 names"),
        ("open_group", (("a",),), "expected names as a list of 1 to 65536 names"),
        ("open_group", ([3],), "expected names as a name of 1 to 1024 characters, got 3"),
        ("open_group", (["a", "a"],), "expected names with different names"),
        ("write_values", ([("a",)],), r"expected values as a list of \(name, tensor\)"),
        ("write_values", ([("a", 1)],), "contiguous CPU tensors, which 'a' should be, got 1"),
        ("write_values", ([("a", torch.ones(2, 2).t()[:1])],), "contiguous CPU tensors"),
        ("write_values", ([("a", torch.ones(1).to("meta"))],), "contiguous CPU tensors"),
        ("write_values", ([("a", torch.ones(1).to_sparse())],), "contiguous CPU tensors"),
        ("write_values", ([("a", torch.ones(1, dtype=torch.cfloat))],), "contiguous CPU tensors"),
        ("write_values", ([("a", torch.ones(1))] * 2,), "expected names of values with different"),
        ("restore_clients", ("{",), r"\[ServerHost.restore_clients\] expected JSON"),
        ("lookup", (keys(1), True, 0, 1), "expected a verb of a shard, got 'lookup'"),
    ],
)
def test_a_server_refuses(client, verb, arguments, text):
    with pytest.raises(InvalidArgumentError, match=text):
        client(verb, *arguments)
    assert client("table_names") == []


def test_a_message_has_a_largest_number_of_bytes_of_values():
    client = Client(ServerHost(0, 1, max_message_bytes=100))
    text = "expected values of at most 100 bytes in all, got 104"
    with pytest.raises(InvalidArgumentError, match=text):
        client("write_values", [("w", torch.ones(26))])


def test_shards_and_groups_have_the_largest_message_of_their_server():
    client = Client(ServerHost(0, 1, max_message_bytes=64))
    number = client.open(place=("PartitionRouting", 1, 0))
    group = client("open_group", ["user"])
    many = torch.arange(100)
    with pytest.raises(InvalidArgumentError, match="keys in a message, got 100"):
        client("contains", many, host=number)
    with pytest.raises(InvalidArgumentError, match="keys in a message, got 100"):
        client("pull", many, keys(0, 100), True, "float32", host=group)


@pytest.mark.parametrize("index", [-1, 2])
def test_a_server_has_a_number_among_the_servers(index):
    text = rf"\[ServerHost\] expected 0 <= index < num_servers, got server {index} of 2"
    with pytest.raises(ValueError, match=text):
        ServerHost(index, 2)


@pytest.mark.parametrize("number", [1, -1, 1 << 70, "0", None])
def test_a_host_that_was_not_opened_is_refused(server, number):
    with pytest.raises(NotFoundError, match="expected a host that was opened"):
        server.do(number, Call(1, 0, 0, "num_rows", ()))


def test_a_client_is_released_everywhere(server, client):
    number = client.open()
    client("open_cut", None, host=number)
    server.release_client(client.number)
    assert server.status()["clients"] == 0
    assert not client("has_cut", host=number)


def test_the_last_writes_of_clients_survive_a_restart(client):
    number, write = client.open(), ("assign_add", (OWN, column(1.0), NOW, 1))
    group = client("open_group", ["user"])
    client.server.do(number, Call(9, 5, 0, *write))
    client.server.do(group, Call(8, 2, 0, "count_clamped", (["user"],)))
    state = client("clients_state")
    again = Client(ServerHost(1, 2))
    number = again.open()
    again("restore_clients", state)
    group = again("open_group", ["user"])
    assert again.server.do(number, Call(9, 5, 0, *write)) is None
    assert again("num_rows", host=number) == 0
    again.server.do(group, Call(8, 2, 0, "count_clamped", (["user"],)))
    assert again("stats", host=number)["num_clamped_times"] == 0


@pytest.mark.parametrize("state", [5, [5], [["table"]]])
def test_clients_of_no_save_are_refused(client, state):
    with pytest.raises(DataLossError, match="expected the clients of a save"):
        client("restore_clients", json.dumps(state))


def test_the_status_says_what_a_server_holds(server, client):
    number = client.open()
    client("assign_add", OWN, column(1.0), NOW, 1, host=number)
    client("write_values", [("w", torch.ones(1))])
    status = server.status()
    assert (status["label"], status["values"], status["clients"]) == (server.label, 1, 1)
    table = status["tables"]["user"]
    assert (table["rows"], table["update_calls"], table["bytes"] > 0) == (1, 1, True)


def test_only_reads_are_quick(server, client):
    assert server.is_quick(client.open(), "pull")
    assert not server.is_quick(0, "open_table")


def test_a_closed_server_opens_nothing(server, client):
    server.close()
    with pytest.raises(FailedPreconditionError, match="expected an open server, got a closed one"):
        client.open()


def test_a_server_goes_on_after_every_odd_argument(client):
    odd = [None, True, -1, 1 << 70, "", "\ud800", b"a", [], {}, (), [None], [("a", 1)], keys(1)]
    for verb, facts in SERVER_VERBS.items():
        for i in range(len(facts.arguments)):
            for value in odd:
                arguments = [config_text(CONFIG), PLACE, LOG][: len(facts.arguments)]
                arguments[i] = value
                if (verb, value) == ("fence", []):
                    continue  # nobody to refuse
                with pytest.raises((MonolithError,)):
                    client(verb, *arguments)
    assert client("table_names") == []
