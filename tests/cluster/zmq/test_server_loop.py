import contextlib
import random
import threading

import pytest
import torch
import zmq

from monolith.cluster.wire.message import Header, Kind, header_bytes, pack, parse
from monolith.cluster.wire.verb_numbers import NUMBER_OF_VERB
from monolith.cluster.zmq.curve_keys import CurveKeys
from monolith.cluster.zmq.sessions import Limits
from monolith.errors import InvalidArgumentError, UnavailableError

from .sockets import ANY_PORT, EchoServer, ask, connected, serving, until

pytestmark = pytest.mark.dist

HELLO = {"index": 0, "num_servers": 1}


def resident_bytes():
    """Memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


class RawClient:
    """A socket that sends what it likes."""

    def __init__(self, address):
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, 20_000)
        self.socket.connect(address)

    def send(self, header, value=None):
        packed = pack(value)
        self.socket.send_multipart([header_bytes(header, packed), packed.body])

    def read(self):
        message = parse(self.socket.recv_multipart())
        return message.header, message.value()

    def greet(self, number=1, value=None):
        self.send(Header(Kind.HELLO, client=number, request=1), value or HELLO)
        return self.read()

    def call(self, server, verb="num_rows", arguments=(), **fields):
        fields = {"client": 8, "life": server.life, "request": 7, **fields}
        self.send(Header(Kind.CALL, verb=NUMBER_OF_VERB[verb], **fields), arguments)

    def close(self):
        self._context.destroy(linger=0)


@contextlib.contextmanager
def raw_client(loop):
    client = RawClient(loop.address)
    try:
        yield client
    finally:
        client.close()


@pytest.fixture
def server():
    return EchoServer()


def test_a_greeting_is_answered_with_the_limits(server):
    limits = Limits(window_messages=3, window_bytes=1000, lease_seconds=7)
    with serving(server, limits=limits) as loop, raw_client(loop) as client:
        header, value = client.greet()
    assert (header.kind, header.life, header.request) == (Kind.WELCOME, server.life, 1)
    assert value == {
        "label": server.label,
        "window_messages": 3,
        "window_bytes": 1000,
        "lease_seconds": 7,
        "message_bytes": 1 << 32,
        "frame_bytes": 256 << 20,
    }


@pytest.mark.parametrize(
    "value",
    [
        {"index": torch.tensor([0, 1]), "num_servers": 1},
        {"index": 0, "num_servers": None},
        {"index": 0},
        [0, 1],
        {"index": 0, "num_servers": 1, "more": "x" * 2000},
    ],
)
def test_a_greeting_with_another_value_is_dropped_and_counted(server, value):
    with serving(server) as loop, raw_client(loop) as client:
        client.send(Header(Kind.HELLO, client=1), value)
        assert until(lambda: loop.counts.get("bad_messages") == 1 or not loop.is_running)
        assert client.greet()[0].kind == Kind.WELCOME


def test_a_call_before_the_greeting_is_refused(server):
    with serving(server) as loop, raw_client(loop) as client:
        client.call(server)
        header, value = client.read()
        assert (header.kind, header.request, value["reason"]) == (Kind.REFUSED, 7, "session")
    assert server.calls == []


def test_a_call_to_another_life_is_refused(server):
    with serving(server) as loop, raw_client(loop) as client:
        client.greet()
        client.call(server, life=server.life + 1)
        header, value = client.read()
        assert (header.life, value["reason"]) == (server.life, "life")
    assert server.calls == []


def test_a_ping_is_answered(server):
    with serving(server) as loop, raw_client(loop) as client:
        client.greet()
        client.send(Header(Kind.PING, request=3))
        assert client.read()[0].kind == Kind.PONG


def test_a_message_of_a_server_is_no_message_of_a_client(server):
    with serving(server) as loop, raw_client(loop) as client:
        client.greet()
        client.send(Header(Kind.REPLY))
        assert until(lambda: loop.counts.get("bad_messages") == 1)


def test_more_calls_than_the_window_has_are_refused(server):
    with (
        serving(server, limits=Limits(window_messages=1)) as loop,
        raw_client(loop) as client,
    ):
        client.greet()
        client.call(server, "erase", request=1)
        client.call(server, "erase", request=2)
        header, value = client.read()
        assert (header.request, value["reason"]) == (2, "window")
        server.gate.set()
        assert loop.counts["beyond_window"] == 1


def test_a_client_that_does_not_take_its_answers_gets_no_more(server):
    limits = Limits(window_messages=1000, answer_bytes=10_000)
    with serving(server, limits=limits) as loop, raw_client(loop) as client:
        client.greet()
        for number in range(100):
            client.call(server, "stats", (bytes(1000),), sequence=number)
        assert until(lambda: loop.counts.get("calls") == 100)
        num_done = len(server.calls)
        assert num_done < 30
        client.send(Header(Kind.PING, received=50_000))
        assert until(lambda: len(server.calls) > num_done)


def test_a_client_beyond_the_limit_is_refused(server):
    with serving(server, limits=Limits(sessions=1)) as loop, raw_client(loop) as first:
        first.greet(1)
        with raw_client(loop) as second:
            assert second.greet(2)[1]["reason"] == "full"
            assert first.greet(1)[0].kind == Kind.WELCOME


@pytest.mark.parametrize("address", [ANY_PORT, "ipc://{}/server"])
@pytest.mark.parametrize("with_keys", [False, True])
def test_frames_are_larger_where_only_trusted_processes_can_send(
    server, tmp_path, address, with_keys
):
    keys = CurveKeys.new() if with_keys else None
    with serving(server, address.format(tmp_path), keys=keys) as loop:
        most = loop._socket.getsockopt(zmq.MAXMSGSIZE)
    is_trusted = with_keys or address != ANY_PORT
    assert most == (4 << 30 if is_trusted else 256 << 20)


def test_a_call_beyond_the_limit_of_all_its_frames_is_refused_and_not_done(server):
    limits = Limits(message_bytes=40_000, frame_bytes=30_000)
    with serving(server, limits=limits) as loop, raw_client(loop) as client:
        client.greet()
        packed = pack((torch.zeros(20_000, dtype=torch.uint8),) * 2)
        fields = {"client": 8, "life": server.life, "request": 7}
        head = header_bytes(Header(Kind.CALL, verb=NUMBER_OF_VERB["stats"], **fields), packed)
        columns = [bytes(20_000)] * 2
        client.socket.send_multipart([head, packed.body, *columns])
        header, value = client.read()
        assert (header.kind, header.request) == (Kind.ERROR, 7)
        assert "a call of at most 40000 bytes, got one of 40" in value["text"]
        assert loop.counts["too_large"] == 1
    assert server.calls == []


def test_callers_beyond_the_limit_are_refused_until_one_says_goodbye(server):
    with serving(server, limits=Limits(callers=2)) as loop, raw_client(loop) as client:
        client.greet()
        for caller in (8, 9, 8):
            client.call(server, client=caller)
            assert client.read()[0].kind == Kind.REPLY
        client.call(server, client=10, request=5)
        header, value = client.read()
        assert (header.kind, header.request) == (Kind.ERROR, 5)
        assert "expected at most 2 callers of one client" in value["text"]
        assert loop.counts["too_many_callers"] == 1
        client.call(server, client=8, host=3)  # another host would keep answers for it, too
        assert client.read()[0].kind == Kind.ERROR
        client.call(server, "bye", client=9)
        assert client.read()[0].kind == Kind.REPLY
        client.call(server, client=10)
        assert client.read()[0].kind == Kind.REPLY
    assert len(server.calls) == 5


def test_one_socket_is_one_client(server):
    with serving(server, limits=Limits(sessions=2)) as loop, raw_client(loop) as client:
        for number in range(1, 5):
            assert client.greet(number)[0].kind == Kind.WELCOME
            assert loop.num_sessions == 1
        with raw_client(loop) as other:
            assert other.greet(9)[0].kind == Kind.WELCOME


def test_a_client_that_says_nothing_is_forgotten(server):
    with serving(server) as loop, raw_client(loop) as client:
        client.greet()
        client.call(server, client=8)
        client.read()
        loop._sessions._limits = Limits(lease_seconds=0.3)  # from now on
        assert until(lambda: server.released == [8])
        assert loop.counts["ended_leases"] == 1


def test_a_client_that_reconnects_keeps_its_session(server):
    with serving(server) as loop:
        for _ in range(2):
            with raw_client(loop) as client:
                client.greet(1)
        assert loop.num_sessions == 1
        assert server.released == []


def test_a_call_that_waited_beyond_its_deadline_is_not_done(server):
    with serving(server, num_threads=1) as loop, raw_client(loop) as client:
        client.greet()
        client.call(server, "erase", request=1)
        assert server.waiting.acquire(timeout=20)
        client.call(server, "stats", request=2, deadline_ms=1)
        assert until(lambda: loop.counts["calls"] == 2)
        threading.Timer(0.01, server.gate.set).start()
        answers = [client.read() for _ in range(2)]
        texts = {header.request: value for header, value in answers}
        assert texts[2]["class"] == "DeadlineExceededError"
        assert "within 1 ms" in texts[2]["text"]
    assert [call.verb for _, call in server.calls] == ["erase"]


def test_a_verb_without_a_number_is_refused(server):
    with serving(server) as loop, raw_client(loop) as client:
        client.greet()
        client.send(Header(Kind.CALL, verb=60_000, life=server.life))
        header, value = client.read()
        assert (header.kind, value["class"]) == (Kind.ERROR, "InvalidArgumentError")
        assert "the number of a verb, got 60000" in value["text"]


# Versions


def test_a_server_answers_the_version_before_its_own(server):
    with serving(server, versions=(1, 2)) as loop, connected(loop.address) as connection:
        assert ask(connection, arguments=(1,)) == (1,)


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (4, "expected version 2 to 3 of the protocol, got 4; upgrade the servers before"),
        (1, "expected version 2 to 3 of the protocol, got 1; upgrade the client"),
    ],
)
def test_another_version_is_refused_by_name(server, version, text):
    with serving(server, versions=(2, 3)) as loop, raw_client(loop) as client:
        client.send(Header(Kind.HELLO, version=version), HELLO)
        header, value = client.read()
        assert (header.version, value["reason"]) == (3, "version")
        assert value["text"].startswith(text)
        assert loop.counts["other_versions"] == 1


def test_a_client_says_that_the_server_is_of_another_version(server):
    with (
        serving(server, versions=(2,)) as loop,
        connected(loop.address) as connection,
        pytest.raises(RuntimeError, match="expected version 1 of the protocol, got an answer"),
    ):
        ask(connection)


# Addresses


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:0", "tcp://[::]:0"])
def test_an_address_for_other_machines_needs_keys(server, address):
    with (
        pytest.raises(InvalidArgumentError, match="expected keys for an address that other"),
        serving(server, address),
    ):
        pass


def test_an_address_in_use_is_named(server):
    with (
        serving(server) as loop,
        pytest.raises(UnavailableError, match=f"listen at {loop.address}"),
        serving(EchoServer(), loop.address),
    ):
        pass


def test_a_server_that_ends_finishes_its_calls_and_takes_no_others(server):
    with serving(server) as loop, raw_client(loop) as client:
        client.greet()
        client.call(server, "erase", request=1)
        assert server.waiting.acquire(timeout=20)
        assert not loop.drain(0.05)
        client.call(server, "stats", request=2)
        header, value = client.read()
        assert (header.request, value["reason"]) == (2, "draining")
        server.gate.set()
        assert loop.drain(20)
        assert client.read()[0].kind == Kind.REPLY
        with raw_client(loop) as other:
            assert other.greet(2)[1]["reason"] == "draining"


# Bytes from anywhere


def _mutations(rng, server):
    """Endless messages that are almost right."""
    value = ("erased"[: rng.randrange(6)], [1, 2.5], {"a": None})
    base = Header(Kind.CALL, client=8, life=server.life, verb=2, request=3)
    while True:
        packed = pack(value)
        frames = [bytearray(header_bytes(base, packed)), bytearray(packed.body)]
        kind = rng.randrange(5)
        if kind == 0:
            frames = [bytearray(rng.randbytes(rng.randrange(200))) for _ in range(rng.randrange(5))]
        elif kind == 1:
            frames = frames[: rng.randrange(3)]
        elif kind == 2:
            frames[rng.randrange(2)] += rng.randbytes(rng.randrange(1, 50))
        for frame in frames if kind == 3 else frames[:1] if kind == 4 else ():
            for _ in range(rng.randrange(1, 4)):
                if frame:
                    frame[rng.randrange(len(frame))] = rng.randrange(256)
        yield [bytes(frame) for frame in frames]


def fuzz(num_messages, seed):
    server = EchoServer()
    server.gate.set()
    rng = random.Random(seed)
    with (
        serving(server) as loop,
        raw_client(loop) as client,
    ):
        client.greet()
        client.socket.setsockopt(zmq.RCVTIMEO, 0)
        before = resident_bytes()
        for number, frames in enumerate(_mutations(rng, server)):
            if number == num_messages:
                break
            client.socket.send_multipart(frames or [b""])
            with contextlib.suppress(zmq.Again):
                while True:
                    client.socket.recv_multipart()
        assert until(lambda: loop.counts.get("bad_messages", 0) > num_messages // 10)
        with connected(loop.address) as connection:
            assert ask(connection, arguments=(1,)) == (1,)
        assert resident_bytes() - before < 200 << 20
        assert loop.is_running


@pytest.mark.thorough
def test_a_server_survives_1000_changed_messages():
    fuzz(1000, seed=1)


@pytest.mark.slow
def test_a_server_survives_10000_changed_messages():
    fuzz(10_000, seed=2)


def test_bytes_of_another_protocol_do_not_end_the_server(server):
    import socket

    with serving(server) as loop:
        host, port = loop.address.removeprefix("tcp://").split(":")
        for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(200), b"\xff" * 64, b"\x01\x00" * 50):
            with socket.create_connection((host, int(port))) as stream:
                stream.sendall(data)
        with connected(loop.address) as connection:
            assert ask(connection, arguments=(1,)) == (1,)
