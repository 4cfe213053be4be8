import gc
import threading

import pytest
import torch
import zmq

from monolith.cluster.connection import HostHandle, RemoteTransport
from monolith.cluster.transport import ShardClient
from monolith.cluster.wire.message import Header, Kind, header_bytes, pack, parse
from monolith.cluster.zmq.curve_keys import CurveKeys
from monolith.cluster.zmq.sessions import Limits
from monolith.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)

from .sockets import ANY_PORT, EchoServer, ask, call, connected, serving, until

pytestmark = pytest.mark.dist


@pytest.fixture(scope="module")
def keys():
    return CurveKeys.new()


@pytest.fixture(params=["tcp", "ipc"])
def address(request, tmp_path_factory):
    if request.param == "tcp":
        return ANY_PORT
    return f"ipc://{tmp_path_factory.mktemp('s')}/s"


@pytest.mark.parametrize("verb", ["num_rows", "stats"])
def test_a_call_is_done_and_answered(address, verb):
    with serving(address=address) as loop, connected(loop.address) as connection:
        keys = torch.arange(100_000)
        (arrived, number) = ask(connection, 3, verb, (keys, 7))
        assert torch.equal(arrived, keys)
        assert number == 7


def test_a_call_names_its_host_its_client_and_its_number():
    server = EchoServer()
    with serving(server) as loop, connected(loop.address) as connection:
        ask(connection, 3, "stats", (1,), client=8, done=2, host=70_000)
    assert server.calls == [(70_000, call(3, "stats", (1,), client=8, done=2))]


def test_an_error_of_the_server_is_raised_here():
    server = EchoServer()
    server.do = lambda host, call: (_ for _ in ()).throw(NotFoundError("[Table] no such row"))
    with serving(server) as loop, connected(loop.address) as connection:
        with pytest.raises(NotFoundError, match="no such row"):
            ask(connection)
        assert loop.counts["errors"] == 1


def test_an_answer_that_does_not_travel_is_an_error():
    server = EchoServer()
    server.do = lambda host, call: object()
    with (
        serving(server) as loop,
        connected(loop.address) as connection,
        pytest.raises(TypeError, match="expected a plain value, got object"),
    ):
        ask(connection)


def test_arguments_that_do_not_travel_are_refused_at_once():
    with (
        serving() as loop,
        connected(loop.address) as connection,
        pytest.raises(TypeError, match="expected a plain value"),
    ):
        ask(connection, arguments=(object(),))


def test_answers_come_in_the_order_of_their_ends():
    server = EchoServer()
    with serving(server) as loop, connected(loop.address) as connection:
        slow = connection.send(HostHandle(), call(0, "erase"))
        assert ask(connection, 1, "stats", (1,)) == (1,)
        assert not slow.done()
        server.gate.set()
        assert slow.result(20) == ()


def test_a_call_on_its_way_is_not_sent_again():
    server = EchoServer()
    with serving(server) as loop, connected(loop.address) as connection:
        first = connection.send(HostHandle(), call(0, "erase"))
        assert connection.send(HostHandle(), call(0, "erase")) is first
        server.gate.set()
        first.result(20)
    assert server.sequences == [0]


def test_with_keys_a_call_is_done(keys):
    with serving(keys=keys) as loop, connected(loop.address, keys=keys) as connection:
        assert ask(connection, arguments=(1,)) == (1,)


@pytest.mark.parametrize("side", ["other", "none"])
def test_a_client_without_the_keys_of_the_server_is_not_served(keys, side):
    server = EchoServer()
    wrong = None if side == "none" else CurveKeys.new()
    with serving(server, keys=keys) as loop, connected(loop.address, keys=wrong) as connection:
        answer = connection.send(HostHandle(), call())
        with pytest.raises(TimeoutError, match="away since"):
            answer.result(0.5)
    assert server.calls == []


def test_a_client_key_of_its_own_is_not_served(keys):
    other = CurveKeys.new()
    mixed = CurveKeys(
        keys.server_public, keys.server_secret, other.client_public, other.client_secret
    )
    with serving(keys=keys) as loop, connected(loop.address, keys=mixed) as connection:
        connection.send(HostHandle(), call())
        assert until(lambda: "other CURVE keys" in connection.state_text())


def test_a_client_of_a_server_without_keys_is_not_served_with_keys(keys):
    with (
        serving() as loop,
        connected(loop.address, keys=keys) as connection,
        pytest.raises(TimeoutError, match="away since"),
    ):
        connection.send(HostHandle(), call()).result(0.5)


def test_a_client_of_another_server_is_refused_by_name():
    with serving() as loop, connected(loop.address, server=(1, 2)) as connection:
        with pytest.raises(FailedPreconditionError, match="expected a client of server 0 of 1"):
            ask(connection)
        with pytest.raises(FailedPreconditionError, match="check the order of the addresses"):
            ask(connection)
        assert loop.counts["other_servers"] == 1


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Kind.WELCOME, None),
        (Kind.WELCOME, {"window_messages": float("inf"), "window_bytes": 1}),
        (Kind.WELCOME, {"window_messages": "many", "window_bytes": 1}),
        (Kind.REFUSED, [1]),
        (Kind.REFUSED, {}),
        (Kind.REPLY, None),
        (Kind.CALL, ()),
    ],
)
def test_what_a_server_should_not_say_is_logged_and_the_next_answer_counts(kind, value, caplog):
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.RCVTIMEO, 20_000)
        port = router.bind_to_random_port("tcp://127.0.0.1")

        def answer(route, kind, value, **fields):
            packed = pack(value)
            head = header_bytes(Header(kind, **fields), packed)
            router.send_multipart([route, head, packed.body])

        with connected(f"127.0.0.1:{port}") as connection:
            future = connection.send(HostHandle(), call())
            route, _, _ = router.recv_multipart()  # the greeting
            answer(route, kind, value, life=5, request=99)
            answer(route, Kind.WELCOME, {"window_messages": 1, "window_bytes": 1}, life=5)
            asked = parse(router.recv_multipart()[1:])
            while asked.header.kind != Kind.CALL:  # on a slow machine, it greets again
                asked = parse(router.recv_multipart()[1:])
            answer(route, Kind.REPLY, "done", life=5, request=asked.header.request)
            assert future.result(20) == "done"
            assert "ended by an error" not in caplog.text


def test_a_wait_that_ends_says_that_the_server_is_connected():
    server = EchoServer()
    with serving(server) as loop, connected(loop.address) as connection:
        answer = connection.send(HostHandle(), call(verb="erase"))
        assert server.waiting.acquire(timeout=20)
        with pytest.raises(TimeoutError, match=f"is connected at {loop.address}"):
            answer.result(0.01)
        server.gate.set()


# Lost connections


def test_a_call_waits_for_a_server_that_is_away(tmp_path):
    address = f"ipc://{tmp_path}/s"
    with connected(address) as connection:
        answer = connection.send(HostHandle(), call(arguments=(1,)))
        with serving(address=address):
            assert answer.result(20) == (1,)


def test_a_call_whose_answer_was_lost_is_sent_again(tmp_path):
    address, server = f"ipc://{tmp_path}/s", EchoServer()
    with connected(address) as connection:
        with serving(server, address) as loop:
            answer = connection.send(HostHandle(), call(4, "erase"))
            assert server.waiting.acquire(timeout=20)
            # Let the call end when the loop sends no answers any more.
            end = lambda: until(lambda: not loop.is_running) and server.gate.set()  # noqa: E731
            threading.Thread(target=end).start()
        assert not answer.done()
        with serving(server, address):
            assert answer.result(20) == ()
    assert server.sequences == [4, 4]


def test_a_server_that_moves_is_found_at_its_new_address():
    server, addresses = EchoServer(), []
    with serving(server) as loop, connected(lambda: addresses[-1]) as connection:
        addresses.append(loop.address)
        assert ask(connection, 0, arguments=(1,)) == (1,)
        loop.close()
        with serving(server) as other:
            addresses.append(other.address)
            assert ask(connection, 1, arguments=(2,)) == (2,)


def test_an_address_that_is_not_known_yet_is_asked_for_again():
    found = []

    def find():
        if not found:
            raise NotFoundError("[find] expected server 0, got none")
        return found[0]

    with serving() as loop, connected(find) as connection:
        answer = connection.send(HostHandle(), call(arguments=(1,)))
        assert until(lambda: "expected server 0, got none" in connection.state_text())
        with pytest.raises(TimeoutError, match="expected server 0, got none"):
            answer.result(0.01)
        found.append(loop.address)
        assert answer.result(20) == (1,)


# Other starts of a server


def test_another_start_is_refused_without_a_way_to_restore_it(tmp_path):
    address = f"ipc://{tmp_path}/s"
    with connected(address) as connection:
        with serving(address=address):
            ask(connection, 0)
        answer = connection.send(HostHandle(), call(1))
        with serving(address=address):
            with pytest.raises(AbortedError, match="got a new start of it"):
                answer.result(20)
            with pytest.raises(AbortedError, match="which is empty"):
                ask(connection, 2)


def test_another_start_is_restored_before_waiting_calls(tmp_path):
    address, server, handle = f"ipc://{tmp_path}/s", EchoServer(), HostHandle(3)
    with connected(address) as connection:

        def restore(session):
            handle.number = 4
            session.send(HostHandle(9), call(50, "stats")).result(20)

        connection.on_new_life = restore
        with serving(address=address):
            ask(connection, 0)
        answer = connection.send(handle, call(1))
        with serving(server, address):
            answer.result(20)
    assert [(host, c.sequence) for host, c in server.calls] == [(9, 50), (4, 1)]


def test_a_restore_that_fails_fails_waiting_calls_and_is_tried_at_the_next(tmp_path):
    address, tries = f"ipc://{tmp_path}/s", []

    def restore(session):
        tries.append(1)
        if len(tries) == 1:
            raise AbortedError("no checkpoint")

    with connected(address) as connection:
        connection.on_new_life = restore
        with serving(address=address):
            ask(connection, 0)
        answer = connection.send(HostHandle(), call(1))
        with serving(address=address):
            with pytest.raises(AbortedError, match="no checkpoint"):
                answer.result(20)
            assert ask(connection, 2, arguments=(1,)) == (1,)
    assert len(tries) == 2


def test_a_start_that_ends_while_it_is_restored_is_followed_by_the_next(tmp_path):
    address, first, tries = f"ipc://{tmp_path}/s", EchoServer(), []
    began = threading.Event()

    def restore(session):
        tries.append(session)
        began.set()
        session.send(HostHandle(), call(50 + len(tries), "erase")).result(20)

    with connected(address) as connection:
        connection.on_new_life = restore
        with serving(address=address):
            ask(connection, 0)
        answer = connection.send(HostHandle(), call(1, arguments=(1,)))
        with serving(first, address) as loop:
            assert began.wait(20)
            assert first.waiting.acquire(timeout=20)
            first.gate.set()
            first.life = 0  # its answers are those of nobody
            loop._is_closing = True
        last = EchoServer()
        last.gate.set()
        with serving(last, address):
            assert answer.result(20) == (1,)


def test_a_restore_may_end_after_the_connection(tmp_path, monkeypatch):
    """The thread of the restore has nobody to tell, and ends without an error."""
    address, began, ends, found = f"ipc://{tmp_path}/s", threading.Event(), threading.Event(), []
    monkeypatch.setattr(threading, "excepthook", found.append)

    def restore(session):
        began.set()
        ends.wait(20)

    with connected(address) as connection:
        connection.on_new_life = restore
        with serving(address=address):
            ask(connection, 0)
        connection.send(HostHandle(), call(1))
        with serving(address=address):
            assert began.wait(20)
            (thread,) = [t for t in threading.enumerate() if t.name == "monolith-revive"]
    ends.set()
    thread.join(20)
    assert not thread.is_alive()
    assert found == []


# Bounds


def test_a_full_window_waits_for_answers():
    server = EchoServer()
    limits = Limits(window_messages=2)
    with serving(server, limits=limits) as loop, connected(loop.address) as connection:
        ask(connection, 0)
        answers = [connection.send(HostHandle(), call(i, "erase")) for i in (1, 2)]
        timer = threading.Timer(0.2, server.gate.set)
        timer.start()
        assert ask(connection, 3, arguments=(1,)) == (1,)
        assert [answer.result(20) for answer in answers] == [(), ()]
        assert "beyond_window" not in loop.counts


def test_a_window_that_stays_full_is_an_error():
    server = EchoServer()
    with (
        serving(server, limits=Limits(window_bytes=1000)) as loop,
        connected(loop.address, timeout_seconds=0.2) as connection,
    ):
        ask(connection, 0)
        connection.send(HostHandle(), call(1, "erase", (bytes(900),)))
        with pytest.raises(UnavailableError, match=r"answers to some of 1 calls \(\d+ bytes\)"):
            connection.send(HostHandle(), call(2, "erase", (bytes(200),)))
        server.gate.set()


def test_a_call_larger_than_the_window_goes_alone():
    with (
        serving(limits=Limits(window_bytes=1000)) as loop,
        connected(loop.address) as connection,
    ):
        assert ask(connection, 0, arguments=(bytes(2000),)) == (bytes(2000),)
        assert ask(connection, 1, arguments=(bytes(2000),)) == (bytes(2000),)


def test_an_abandoned_call_leaves_the_window():
    server = EchoServer()
    with (
        serving(server, limits=Limits(window_messages=1)) as loop,
        connected(loop.address, timeout_seconds=60) as connection,
    ):
        ask(connection, 0)
        abandoned = connection.send(HostHandle(), call(1, "erase"))
        assert server.waiting.acquire(timeout=20)
        abandoned.cancel()
        server.gate.set()
        assert ask(connection, 2, arguments=(1,)) == (1,)


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_a_limit_of_a_call_must_be_a_time(seconds):
    refused = pytest.raises(ValueError, match="seconds")
    with serving() as loop, refused, connected(loop.address, call_seconds=seconds):
        pass


# The end


def test_a_closed_connection_ends_its_calls_and_takes_no_others():
    server = EchoServer()
    with serving(server) as loop, connected(loop.address) as connection:
        answer = connection.send(HostHandle(), call(verb="erase"))
        assert server.waiting.acquire(timeout=20)
        connection.close()
        for attempt in (lambda: answer.result(20), lambda: ask(connection, 2)):
            with pytest.raises(FailedPreconditionError, match="expected an open connection"):
                attempt()
        server.gate.set()
        connection.close()


def test_a_client_that_closes_is_forgotten():
    server = EchoServer()
    with serving(server) as loop:
        with connected(loop.address) as connection:
            ask(connection, client=8)
        assert until(lambda: server.released == [8])
        assert loop.num_sessions == 0


def test_an_address_must_be_one():
    text = "expected an address as host:port"
    with connected("nowhere") as connection:
        answer = connection.send(HostHandle(), call())
        assert until(lambda: text in connection.state_text())
        with pytest.raises(TimeoutError, match=text):
            answer.result(0.01)


def test_a_closed_loop_takes_no_connections():
    with serving() as loop, connected(loop.address) as connection:
        connection._loop.close()
        with pytest.raises(FailedPreconditionError, match="expected an open loop"):
            connection._loop.run_soon(print)


def test_a_client_that_is_collected_inside_of_a_send_says_goodbye(monkeypatch):
    server = EchoServer()
    with serving(server) as loop, connected(loop.address) as connection:
        clients = [ShardClient("t", [RemoteTransport(connection, HostHandle(), 20.0)])]
        (client,) = clients
        assert client.call("num_rows", [()]) == [()]
        number = client.number
        del client
        wait_for_room = connection._wait_for_room

        def collect(*arguments):  # as the garbage collector may, with the lock held
            clients.clear()
            gc.collect()
            wait_for_room(*arguments)

        monkeypatch.setattr(connection, "_wait_for_room", collect)
        assert ask(connection, sequence=1) == ()
        assert until(lambda: any(c.verb == "bye" and c.client == number for _, c in server.calls))


@pytest.mark.parametrize("limit", ["frame_bytes", "message_bytes"])
def test_a_call_beyond_the_limits_of_the_server_is_an_error_and_is_not_sent(limit):
    with (
        serving(server := EchoServer(), limits=Limits(**{limit: 20_000})) as loop,
        connected(loop.address) as connection,
    ):
        with pytest.raises(InvalidArgumentError, match=r"'num_rows' with 300.. and 30000; send"):
            ask(connection, arguments=(torch.zeros(30_000, dtype=torch.uint8),))
        assert ask(connection, 1, arguments=(1,)) == (1,)
        assert [call.arguments for _, call in server.calls] == [(1,)]
