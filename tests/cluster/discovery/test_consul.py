"""Discovery in Consul whose agent is slow, away, wrong or restarted."""

import contextlib
import logging
import socket
import threading
import time

import pytest

from monolith.cluster.discovery import ConsulServiceDiscovery
from monolith.cluster.discovery.consul_agent import ConsulAgent
from monolith.cluster.discovery.service_discovery import DiscoveryError
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from tests.cluster.discovery.consul_server import ConsulServer
from tests.suites.discovery import until

ADDRESS = "127.0.0.1:7000"


@pytest.fixture
def server():
    server = ConsulServer(session_ttl_min=0.1)
    yield server
    server.close()


@pytest.fixture
def open_one(server):
    with contextlib.ExitStack() as stack:

        def opened(address=server.address, *, timeout_seconds=5.0, **options):
            agent = ConsulAgent(address, timeout_seconds=timeout_seconds)
            times = {"ttl_seconds": 0.6, "hold_seconds": 0.3, **options}
            discovery = ConsulServiceDiscovery(
                "job", 0.01, agent=agent, max_backoff_seconds=lambda: 0.02, **times
            )
            return stack.enter_context(contextlib.closing(discovery))

        yield opened


def test_an_entry_has_the_tags_of_the_reference(server, open_one):
    open_one().register("ps", 3, ADDRESS)
    (service,) = server._services.values()
    assert service["value"]["Name"] == "job"
    assert service["value"]["Tags"] == ["index:3", "name:ps", "ip:127.0.0.1"]
    assert (service["value"]["Address"], service["value"]["Port"]) == ("127.0.0.1", 7000)


def test_signs_of_life_keep_an_address(server, open_one):
    discovery = open_one()
    discovery.register("ps", 0, ADDRESS)
    threading.Event().wait(1.0)
    assert discovery.query("ps") == {0: ADDRESS}
    paths = [path for _, path in server.calls if path.startswith("/v1/agent/check/pass/service:")]
    assert 2 <= len(paths) <= 6


@pytest.mark.parametrize("answer", [None, (500, "no leader"), (429, "slow down"), (200, "{[")])
def test_a_failed_call_is_tried_again(server, open_one, answer):
    discovery = open_one()
    discovery.register("ps", 0, ADDRESS)
    server.faults += [answer, answer]
    assert discovery.query("ps") == {0: ADDRESS}


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, "within 5 s, got Remote end closed connection"),
        ((500, "no leader"), "got 500: no leader"),
        ((200, "<html>"), "expected the answer of Consul's API to .*, got '<html>'"),
        ((200, {"a": 1}), "got \"{'a': 1}\""),
        ((200, "[" * 100_000), "expected the answer of Consul's API"),
    ],
)
def test_an_agent_that_stays_wrong_is_an_error(server, open_one, answer, text):
    server.faults += [answer] * 5
    with pytest.raises(DiscoveryError, match=text):
        open_one().query("ps")
    assert server.faults == []


def test_an_agent_that_is_away_is_named(open_one):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(DiscoveryError, match=f"agent at {address} to GET .* refused"):
        open_one(address).query("ps")


def test_a_slow_agent_is_given_up_after_the_limit(server, open_one):
    server.delay_seconds = 0.5
    start = time.monotonic()
    with pytest.raises(DiscoveryError, match=r"within 0.05 s, got timed out"):
        open_one(timeout_seconds=0.05).query("ps")
    assert time.monotonic() - start < 10
    server.delay_seconds = 0


def test_an_answer_without_an_end_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        def drip():
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    connection.sendall(b" ")
                    time.sleep(0.02)

        threading.Thread(target=drip, daemon=True).start()
        with pytest.raises(DiscoveryError, match=r"bytes and no end after 0.3 s"):
            ConsulAgent(address, timeout_seconds=0.3).lookup("job")


@pytest.mark.parametrize(
    "item", [None, [], {}, {"Service": []}, {"Service": {"Tags": None}}, {"Service": {"Tags": [1]}}]
)
def test_other_instances_of_the_service_are_no_processes(server, open_one, item):
    good = {"Tags": ["index:1", "name:ps"], "Port": 5, "Address": "a"}
    server.faults.append((200, [item, {"Service": good}, {"Service": {**good, "Port": "5"}}]))
    assert open_one().query_all() == {"ps": {1: "a:5"}}


def test_a_token_is_sent(open_one, monkeypatch):
    guarded = ConsulServer(token="secret")
    try:
        with pytest.raises(
            FailedPreconditionError, match=r"Permission denied; set CONSUL_HTTP_TOKEN"
        ):
            open_one(guarded.address).query("ps")
        monkeypatch.setenv("CONSUL_HTTP_TOKEN", "secret")
        assert open_one(guarded.address).query("ps") == {}
    finally:
        guarded.close()


def test_the_agent_is_that_of_the_environment(monkeypatch):
    monkeypatch.setenv("CONSUL_HTTP_ADDR", "http://10.0.0.1:1234/")
    assert ConsulAgent().address == "10.0.0.1:1234"
    monkeypatch.delenv("CONSUL_HTTP_ADDR")
    assert ConsulAgent().address == "127.0.0.1:8500"


@pytest.mark.parametrize("address", ["a", "a:b", "https://a:1", ":1", "a:70000", "a/b:1"])
def test_a_wrong_address_of_an_agent_is_refused(address):
    with pytest.raises(InvalidArgumentError, match="expected the address of an agent"):
        ConsulAgent(address)


def test_an_agent_that_lost_its_state_gets_it_again(server, open_one):
    discovery = open_one()
    discovery.hold("ps", 0)
    discovery.register("ps", 0, ADDRESS)
    server.forget_all()
    until(lambda: discovery.query("ps") == {0: ADDRESS})
    until(lambda: len(server._keys) == 1)


def test_an_address_comes_back_after_its_time_was_over(server, open_one):
    discovery = open_one()
    discovery.register("ps", 0, ADDRESS)
    server.delay_seconds = 0.8  # signs of life arrive late
    until(lambda: not next(iter(server._services.values()))["is_passing"])
    server.delay_seconds = 0
    until(lambda: discovery.query("ps") == {0: ADDRESS})


def test_a_lost_place_is_not_registered_again(server, open_one, caplog):
    loser, winner = open_one(), open_one()
    loser.hold("ps", 0)
    loser.register("ps", 0, ADDRESS)
    with server._changed:
        server._sessions.clear()
        server._keys.clear()
        session = winner._agent.create_session  # held by the winner before the loser notices
    with caplog.at_level(logging.ERROR):
        server.delay_seconds = 0
        winner._sessions["ps", 0] = session("winner", 60.0)
        assert winner._take(("ps", 0), winner._sessions["ps", 0])
        until(lambda: "ps 0 is no longer registered by this process" in caplog.text)
    winner.register("ps", 0, "127.0.0.1:7001")
    threading.Event().wait(0.8)
    assert winner.query("ps") == {0: "127.0.0.1:7001"}


def test_a_wait_for_a_place_outlives_its_own_session(server, open_one):
    first, second = open_one(hold_seconds=5.0), open_one(hold_seconds=1.0)
    first.hold("ps", 0)
    waiting = threading.Thread(target=second.hold, args=("ps", 0))
    waiting.start()
    until(lambda: len(server._sessions) == 2)
    with server._changed:
        (number,) = {*server._sessions} - {*first._sessions.values()}
        server._end_session(number)
    first.close()
    waiting.join(20)
    assert [*second._sessions] == [("ps", 0)]


def test_a_session_that_ends_before_it_takes_the_place_is_made_anew(server, open_one, monkeypatch):
    discovery, takes = open_one(), []

    def take_late(key, session):
        takes.append(session)
        if len(takes) == 1:  # this process stood still
            with server._changed:
                server._end_session(session)
        return ConsulServiceDiscovery._take(discovery, key, session)

    monkeypatch.setattr(discovery, "_take", take_late)
    discovery.hold("ps", 0)
    assert [*server._sessions] == [*discovery._sessions.values()] == [takes[1]]


def test_a_session_that_was_just_made_ends_with_the_discovery(server, open_one, monkeypatch):
    discovery, is_making, go = open_one(), threading.Event(), threading.Event()
    discovery.hold("ps", 0)
    create = discovery._agent.create_session

    def create_slowly(*arguments):
        session = create(*arguments)
        is_making.set()
        assert go.wait(20)
        return session

    monkeypatch.setattr(discovery._agent, "create_session", create_slowly)
    with server._changed:
        for number in [*server._sessions]:
            server._end_session(number)
    assert is_making.wait(20)
    closing = threading.Thread(target=discovery.close)
    closing.start()
    until(discovery._is_over.is_set)
    threading.Event().wait(0.05)
    go.set()
    closing.join(20)
    assert server._sessions == {}


def test_an_address_that_was_replaced_does_not_come_back(server, open_one, caplog):
    older, newer = open_one(), open_one()
    older.register("ps", 0, ADDRESS)
    newer.register("ps", 0, "127.0.0.1:7001")
    until(lambda: "registered by this process, but at 127.0.0.1:7001" in caplog.text)
    threading.Event().wait(0.8)
    assert newer.query("ps") == {0: "127.0.0.1:7001"}
    assert len(server._services) == 1


def add_older(server, number):
    """An instance of ps 0 at another agent."""
    server.add_of_other_agent(
        {
            "ID": number,
            "Name": "job",
            "Address": "10.0.0.9",
            "Port": 1,
            "Tags": ["index:0", "name:ps", "ip:10.0.0.9"],
            "Check": {"TTL": "1m", "Status": "passing"},
        }
    )


def test_an_older_registration_of_another_agent_is_removed(server, open_one):
    add_older(server, "job:ps:0:10.0.0.9:1")
    open_one().register("ps", 0, ADDRESS)
    assert [s["value"]["Address"] for s in server._services.values()] == ["127.0.0.1"]


def test_the_newer_of_two_registrations_counts(server, open_one, caplog):
    add_older(server, "cannot be removed")
    discovery = open_one()
    discovery.register("ps", 0, ADDRESS)
    assert discovery.query("ps") == {0: ADDRESS}
    assert "an older registration of ps 0 stays" in caplog.text
    with server._changed:  # the agent is started again
        server._deregister("job:ps:0:127.0.0.1:7000", {}, None)
    until(lambda: discovery.query("ps") == {0: ADDRESS})


def test_an_agent_that_refuses_short_sessions_is_told(open_one):
    strict = ConsulServer()
    try:
        with pytest.raises(InvalidArgumentError, match=r"got 400: Invalid Session TTL '0\.3s'"):
            open_one(strict.address).hold("ps", 0)
        open_one(strict.address, hold_seconds=10.0).hold("ps", 0)
    finally:
        strict.close()


def test_a_wait_makes_one_call(server, open_one):
    discovery = open_one()
    known = discovery.query("ps")
    server.calls.clear()
    assert discovery.wait_change("ps", known, 0.5) == {}
    assert len(server.calls) <= 3


def test_a_wait_without_positions_asks_at_intervals(server, open_one, monkeypatch):
    discovery = open_one()
    monkeypatch.setattr(
        discovery._agent, "lookup_since", lambda *a: (discovery._agent.lookup("job"), 0)
    )
    monkeypatch.setattr(type(discovery._agent), "lookup", lambda *a: server.calls.append(1) or [])
    server.calls.clear()
    assert discovery.wait_change("ps", {}, 0.6) == {}
    assert len(server.calls) <= 4
