"""Bytes from anywhere at the ports of a real server process: changed, replayed, too large.

`tests/golden/wire/corpus-1.json` keeps the body of a good call of every verb, from which changed
messages are made, and messages that once were, or could be, a danger.
"""

import contextlib
import json
import random
import socket
from pathlib import Path
from urllib.request import urlopen

import pytest
import torch
import zmq

from monolith.cluster.server_host import config_text
from monolith.cluster.wire.message import Header, Kind, Packed, header_bytes, pack
from monolith.cluster.wire.verb_numbers import NUMBER_OF_VERB
from monolith.cluster.zmq.curve_keys import CurveKeys
from monolith.table import Segment, TableConfig, Zeros
from monolith.table.optimizers import SGD
from monolith.table.routing import PartitionRouting
from tests.cluster.server_processes import Nursery, connect
from tests.cluster.test_host_fuzz import CONFIGS, group_calls, server_calls, shard_calls
from tests.cluster.zmq.sockets import until
from tests.cluster.zmq.test_server_loop import HELLO, raw_client
from tests.cluster.zmtp_flood import flood
from tests.suites.table_base import keys

pytestmark = [pytest.mark.dist, pytest.mark.thorough]

CORPUS = Path(__file__).parents[1] / "golden" / "wire" / "corpus-1.json"
LIMITS = {"frame_bytes": 1 << 20}
TABLE = TableConfig("ones", Segment(1, SGD(1.0), Zeros()))
WITH_PATHS = {"start_load", "start_save"}  # their changed folders could be any; test_host_fuzz.py


def good_calls():
    """Hexadecimal body of a good call of every verb, by host and verb."""
    from monolith.table import Table

    with Table(CONFIGS["plain"]) as table:
        hosts = {
            "server": server_calls(),
            "shard": shard_calls(table, "folder"),
            "group": group_calls(),
        }
    return {
        f"{host} {verb}": pack(arguments).body.hex()
        for host, calls in hosts.items()
        for verb, arguments in sorted(calls.items())
        if verb not in WITH_PATHS
    }


def corpus():
    return json.loads(CORPUS.read_text())


def test_the_corpus_has_the_bytes_of_a_good_call_of_every_verb():
    assert corpus()["calls"] == good_calls()


@pytest.fixture(scope="module")
def nursery():
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def server(nursery):
    return nursery.start(options=["--metrics-port", "0"], limits=LIMITS)


def facts(server):
    """What the server's page says."""
    with urlopen(f"http://127.0.0.1:{server.facts['metrics_port']}/health") as answer:
        return json.load(answer)


def resident_bytes(server):
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * 4096


def assert_serves(server, name):
    """A table of its own works as ever."""
    with connect([server]) as servers:
        table = servers.table(TableConfig(name, Segment(1)), PartitionRouting(1))
        table.assign(keys(1, 2), torch.tensor([[1.0], [2.0]]))
        assert table.lookup(keys(2, 1)).tolist() == [[2.0], [1.0]]


class Hosts:
    """The numbers of a shard and a group on the server, and its life, for headers of calls."""

    def __init__(self, client, server):
        self._client, self._server = client, server
        self.life, self.numbers = facts(server)["life"], {"server": 0}
        self.session = random.getrandbits(60)  # answers of a client before this one go elsewhere
        client.greet(number=self.session)
        place = ("PartitionRouting", 1, 0)
        shard = config_text(CONFIGS["plain"]), place, 1 << 20
        self.numbers["shard"] = self.ask("open_table", shard, 0)
        for name, dim in {"a": 2, "b": 3, "c": 1}.items():
            config = TableConfig(name, Segment(dim, SGD(0.1)), non_finite="skip")
            self.ask("open_table", (config_text(config), place, 1 << 20), 0)
        self.numbers["group"] = self.ask("open_group", (["a", "b", "c"],), 0)

    def ask(self, verb, arguments, host, sequence=0):
        client = random.getrandbits(60)
        life = self.life
        fields = {"client": client, "sequence": sequence, "life": life, "host": host, "request": 1}
        self._client.send(Header(Kind.CALL, verb=NUMBER_OF_VERB[verb], **fields), arguments)
        header, value = self._client.read()
        assert header.kind == Kind.REPLY, value
        return value


def changed(rng, hosts, calls):
    """Endless messages that are almost a good call, or one of the corpus' own."""
    names = sorted(calls)
    while True:
        host, verb = (name := rng.choice(names)).split()
        body = bytearray.fromhex(calls[name])
        for _ in range(rng.choice([0, 1, 1, 2, 8])):
            body[rng.randrange(len(body))] = rng.choice([0, 1, 127, 255, rng.randrange(256)])
        if (fate := rng.randrange(8)) == 0:
            body = body[: rng.randrange(len(body))]
        elif fate == 1:
            body += rng.randbytes(rng.randrange(1, 60))
        header = Header(
            Kind.CALL,
            client=rng.randrange(4),
            sequence=rng.randrange(1 << 20),
            life=hosts.life,
            host=hosts.numbers[host],
            verb=NUMBER_OF_VERB[verb],
            request=rng.randrange(100),
        )
        head = bytearray(header_bytes(header, Packed(bytes(body), [], len(body))))
        if rng.randrange(6) == 0:
            head[rng.randrange(len(head))] = rng.randrange(256)
        frames = [bytes(head), bytes(body)]
        if rng.randrange(12) == 0:
            frames = rng.choice([frames[:1], frames[1:], [*frames, b"x"], frames[::-1]])
        yield frames


def fuzz(server, num_messages, seed):
    rng, kept = random.Random(seed), corpus()
    calls = {n: body for n, body in kept["calls"].items() if n.split()[1] not in ("close", "bye")}
    with raw_client(server) as client:
        hosts = Hosts(client, server)
        client.socket.setsockopt(zmq.RCVTIMEO, 0)
        messages = changed(rng, hosts, calls)
        before, refused = 0, facts(server)["messages"].get("bad_messages", 0)
        for number in range(num_messages):
            if number == num_messages // 5:
                before = resident_bytes(server)  # memory that any work takes is taken
            client.socket.send_multipart(next(messages))
            if number % 50 == 0:
                client.send(Header(Kind.HELLO, client=hosts.session), HELLO)
            with contextlib.suppress(zmq.Again):
                while True:
                    client.socket.recv_multipart()
        for frames in kept["others"]:
            client.socket.send_multipart([bytes.fromhex(frame) for frame in frames])
        expected = refused + num_messages // 20
        assert until(lambda: facts(server)["messages"].get("bad_messages", 0) > expected)
        assert resident_bytes(server) - before < 100 << 20
    assert_serves(server, "good")


def test_a_process_survives_changed_messages(server):
    fuzz(server, 1000, seed=3)


@pytest.mark.slow
def test_a_process_survives_10000_changed_messages(server):
    fuzz(server, 10_000, seed=4)


def test_replayed_and_reordered_calls_are_done_once(server):
    rng, number = random.Random(5), 60
    with raw_client(server) as client, connect([server]) as servers:
        table = servers.table(TABLE, PartitionRouting(1))
        hosts = Hosts(client, server)
        place = ("PartitionRouting", 1, 0)
        host = hosts.ask("open_table", (config_text(TABLE), place, 1 << 20), 0)
        arguments = pack((keys(7), torch.ones(1, 1), 100, 1))
        verb = NUMBER_OF_VERB["assign_add"]
        for _ in range(20):
            for sequence in rng.sample(range(number), number):
                fields = {"client": 99, "sequence": sequence, "life": hosts.life, "host": host}
                head = header_bytes(Header(Kind.CALL, verb=verb, **fields), arguments)
                client.socket.send_multipart([head, arguments.body])
            for _ in range(number):
                assert client.read()[0].kind == Kind.REPLY
        assert table.lookup(keys(7)).tolist() == [[float(number)]]
        fields = {"client": 99, "sequence": 200, "done": 200, "life": hosts.life, "host": host}
        client.socket.send_multipart(
            [header_bytes(Header(Kind.CALL, verb=verb, **fields), arguments), arguments.body]
        )
        assert client.read()[0].kind == Kind.REPLY
        fields |= {"sequence": 3, "done": 0}  # late: its answer was forgotten
        client.socket.send_multipart(
            [header_bytes(Header(Kind.CALL, verb=verb, **fields), arguments), arguments.body]
        )
        header, value = client.read()
        assert (header.kind, value["class"]) == (Kind.ERROR, "AbortedError")
        assert table.lookup(keys(7)).tolist() == [[number + 1.0]]


def test_a_message_beyond_the_limit_ends_its_connection_and_takes_no_memory(server):
    before = resident_bytes(server)
    for _ in range(3):
        with raw_client(server) as client:
            client.greet()
            client.send(Header(Kind.PING), bytes(LIMITS["frame_bytes"] * 8))
            client.socket.setsockopt(zmq.RCVTIMEO, 300)
            with pytest.raises(zmq.Again):
                client.read()
    host, port = server.address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port))) as stream:  # ZMTP 1.0: a frame of 2**62 bytes
        stream.sendall(b"\xff" + (1 << 62).to_bytes(8, "big") + b"\0" + bytes(1000))
    assert resident_bytes(server) - before < 32 << 20
    assert_serves(server, "after")


FLOOD = {"num_frames": 100, "frame_bytes": 1 << 20}


def test_a_peer_without_keys_takes_no_memory_of_a_server_with_keys(nursery, tmp_path):
    CurveKeys.new().write(str(tmp_path / "job.keys"))
    server = nursery.start(options=["--keys", tmp_path / "job.keys", "--metrics-port", "0"])
    before = resident_bytes(server)
    for _ in range(3):
        assert flood(server.address, **FLOOD) < 20 << 20  # what the system's buffers take
    assert resident_bytes(server) - before < 16 << 20
    assert facts(server)["messages"] == {}


def test_a_message_of_many_frames_takes_memory_without_keys_but_not_more_each_time(server):
    before, refused = resident_bytes(server), facts(server)["messages"].get("bad_messages", 0)
    for number in range(1, 5):
        assert flood(server.address, **FLOOD) == 100 << 20
        num_bad = refused + number
        assert until(lambda n=num_bad: facts(server)["messages"].get("bad_messages", 0) == n)
    assert resident_bytes(server) - before < 250 << 20
    assert_serves(server, "flooded")


def test_bytes_at_the_port_of_the_pages_do_not_end_it(server):
    rng = random.Random(6)
    lines = [b"GET " + b"/" * 100_000, b"POST /health HTTP/1.1\r\nContent-Length: 9" + b"9" * 30]
    for data in (*lines, *(rng.randbytes(rng.randrange(300)) for _ in range(100))):
        with (
            contextlib.suppress(ConnectionError),
            socket.create_connection(("127.0.0.1", server.facts["metrics_port"])) as stream,
        ):
            stream.sendall(data + b"\r\n\r\n")
    assert facts(server)["is_ready"]
