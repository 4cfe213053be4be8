"""Discovery in a real ZooKeeper server, which is stopped, killed and started again."""

import contextlib
import functools
import logging
import signal
import threading

import pytest
from kazoo.exceptions import NoAuthError
from kazoo.handlers.threading import KazooTimeoutError

from monolith.cluster.discovery import ZKServiceDiscovery, open_discovery, uris
from monolith.cluster.discovery.kazoo_client import MonolithKazooClient
from monolith.cluster.discovery.service_discovery import DiscoveryError
from monolith.errors import FailedPreconditionError
from monolith.native_training import zk_utils
from monolith.native_training.zk_utils import clear_zk_path
from tests.native_training.fake_discoveries import FakeKazooClient
from tests.suites.discovery import until

pytestmark = pytest.mark.dist

ADDRESS = "127.0.0.1:7000"


@pytest.fixture
def server(zookeeper):
    return zookeeper


@pytest.fixture
def job(request):
    return request.node.name.replace("[", "-").replace("]", "")


@pytest.fixture
def open_one(server, job):
    with contextlib.ExitStack() as stack:

        def opened(**options):
            discovery = ZKServiceDiscovery(
                job, server.hosts, delay=0.1, session_seconds=1, **options
            )
            return stack.enter_context(contextlib.closing(discovery))

        yield opened


@pytest.fixture
def plain(server):
    """A client without credentials."""
    client = MonolithKazooClient(server.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


def session_of(discovery):
    return discovery.client.client_id[0]


def end_session(server, discovery):
    """Let the session of a discovery expire: another client takes it over and ends it."""
    session = discovery.client.client_id
    thief = MonolithKazooClient(server.hosts, client_id=session)
    thief.start()
    thief.stop()
    thief.close()


@pytest.mark.req("NT-ZK-T5")
def test_the_node_of_a_process_has_its_address(open_one, plain, job):
    open_one().register("ps", 3, ADDRESS)
    data, stat = plain.get(f"/monolith/{job}/ps.3")
    assert data == ADDRESS.encode()
    assert stat.ephemeralOwner > 0


@pytest.mark.req("NT-ZK-T5")
def test_a_watch_brings_a_change_without_a_query(open_one):
    discovery, other = open_one(), open_one()
    other.register("ps", 0, ADDRESS)
    assert discovery.wait_change("ps", {}, 20) == {0: ADDRESS}
    other.register("ps", 0, "127.0.0.1:7001")
    assert discovery.wait_change("ps", {0: ADDRESS}, 20) == {0: "127.0.0.1:7001"}


@pytest.mark.req("NT-ZK-T5")
def test_an_expired_session_registers_again(server, open_one):
    discovery, reader = open_one(), open_one()
    discovery.register("ps", 0, ADDRESS)
    session = discovery.client.client_id
    end_session(server, discovery)
    until(lambda: discovery.client.client_id != session and discovery.client.connected)
    until(lambda: reader.query("ps") == {0: ADDRESS})


@pytest.mark.req("NT-ZK-T5")
def test_a_server_that_stands_still_longer_than_a_session(server, open_one, plain, job):
    discovery, reader = open_one(), open_one()
    discovery.register("ps", 0, ADDRESS)
    until(lambda: reader.query("ps") == {0: ADDRESS})
    states = []
    discovery.client.add_listener(states.append)
    server.signal(signal.SIGSTOP)
    try:
        until(lambda: states)
        threading.Event().wait(2)  # twice the time of a session
        assert reader.query("ps") == {0: ADDRESS}  # the last that was known
    finally:
        server.signal(signal.SIGCONT)
    until(lambda: discovery.client.connected and plain.connected)
    path = f"/monolith/{job}/ps.0"  # of a new session, or of the old one if it came back in time
    until(lambda: (stat := plain.exists(path)) and stat.ephemeralOwner == session_of(discovery))
    until(lambda: reader.query("ps") == {0: ADDRESS})


def test_a_server_that_was_killed_and_starts_again(server, open_one):
    discovery, reader = open_one(), open_one()
    discovery.register("ps", 0, ADDRESS)
    server.kill()
    until(lambda: not discovery.client.connected)
    with pytest.raises(DiscoveryError, match="got no connection"):
        discovery.register("ps", 1, "127.0.0.1:7001")
    server.start()
    until(lambda: discovery.client.connected)
    discovery.register("ps", 1, "127.0.0.1:7001")
    until(lambda: reader.query("ps") == {0: ADDRESS, 1: "127.0.0.1:7001"})


def test_a_lost_place_is_not_registered_again(server, open_one, caplog):
    loser, winner = open_one(), open_one()
    loser.hold("ps", 0)
    loser.register("ps", 0, ADDRESS)
    taken = []
    loser.client.add_listener(
        lambda state: state == "LOST" and taken.append(winner.hold("ps", 0))
    )  # before the loser has a session again
    end_session(server, loser)
    until(lambda: taken)
    winner.register("ps", 0, "127.0.0.1:7001")
    with caplog.at_level(logging.ERROR):
        until(lambda: "ps 0 is no longer registered by this process" in caplog.text)
    assert winner.query("ps") == {0: "127.0.0.1:7001"}


def test_an_expired_session_holds_again(server, open_one, plain, job):
    discovery, path = open_one(), f"/monolith/{job}/.hold/worker.0"
    discovery.hold("worker", 0)
    first = plain.exists(path).ephemeralOwner
    end_session(server, discovery)
    stat = until(lambda: (stat := plain.exists(path)) and stat.ephemeralOwner != first and stat)
    assert stat.ephemeralOwner == discovery.client.client_id[0]


@pytest.mark.req("NT-ZK-T5")
def test_clear_zk_path_removes_a_job(server, open_one, plain, job):
    discovery, reader = open_one(), open_one()
    discovery.register("ps", 0, ADDRESS)
    with pytest.raises(ValueError, match=rf"there are \[.*{job}.*\] in monolith zk path"):
        clear_zk_path(server.hosts, job, False)
    clear_zk_path(server.hosts, job, True)
    assert plain.exists(f"/monolith/{job}") is None
    until(lambda: reader.query("ps") == {})
    discovery.register("ps", 0, "127.0.0.1:7001")  # the watches see a node that is made again
    until(lambda: reader.query("ps") == {0: "127.0.0.1:7001"})


@pytest.mark.req("NT-ZK-T4")
@pytest.mark.parametrize("seconds", [9 * 7 * 24 * 3600, -3600])
def test_old_jobs_are_those_of_the_fake(server, plain, monkeypatch, seconds):
    fake = FakeKazooClient()
    for client in (plain, fake):
        client.ensure_path("/monolith/abandoned/ps.0")
    fake.nodes["/monolith/abandoned"].stat.mtime = plain.get("/monolith/abandoned")[1].mtime
    monkeypatch.setattr(zk_utils, "_MAX_AGE_SECONDS", seconds)
    clear_zk_path(server.hosts, "none", False)
    monkeypatch.setattr(zk_utils, "MonolithKazooClient", lambda hosts: fake)
    clear_zk_path("fake", "none", False)
    left = [client.exists("/monolith/abandoned") is not None for client in (plain, fake)]
    assert left == [seconds > 0] * 2


@pytest.mark.req("NT-ZK-T4")
def test_the_calls_of_a_registration_leave_the_nodes_of_the_fake(server, open_one, plain, job):
    fakes = []

    def make_fake(**options):
        fakes.append(FakeKazooClient(**options))
        return fakes[-1]

    fake = ZKServiceDiscovery(job, "fake", make_client=make_fake)
    for discovery in (fake, open_one()):
        discovery.register("ps", 0, ADDRESS)
        discovery.register("ps", 1, ADDRESS)
        discovery.register("ps", 0, "127.0.0.1:7001")
        discovery.deregister("ps", 1, ADDRESS)
        discovery.hold("ps", 0)
    seen = [
        {
            "children": sorted(client.get_children(f"/monolith/{job}")),
            "address": client.get(f"/monolith/{job}/ps.0")[0],
            "is_ephemeral": client.get(f"/monolith/{job}/ps.0")[1].ephemeralOwner > 0,
            "holds": client.get_children(f"/monolith/{job}/.hold"),
        }
        for client in (fakes[0], plain)
    ]
    fake.close()
    assert seen[0] == seen[1]


def test_credentials_keep_others_out(server, open_one, plain, job, monkeypatch):
    monkeypatch.setenv("ZK_AUTH", "ann:secret")
    discovery, reader = open_one(), open_one()
    discovery.hold("ps", 0)
    discovery.register("ps", 0, ADDRESS)
    until(lambda: reader.query("ps") == {0: ADDRESS})
    for path in (f"/monolith/{job}", f"/monolith/{job}/ps.0", f"/monolith/{job}/.hold/ps.0"):
        with pytest.raises(NoAuthError):
            plain.get(path)
    plain.ensure_path("/monolith/of-others")  # the root is everybody's


def test_other_nodes_are_no_processes(open_one, plain, job, caplog):
    discovery = open_one()
    discovery.register("ps", 0, ADDRESS)
    for name, data in (
        ("ps.1", b"\xff\xfe"),
        ("ps.2", b""),
        ("ps.3", b"x" * 5000),
        ("ps.4", b"a\nb"),
        ("ps.x", b"a:1"),
        ("notes", b"a:1"),
        ("ps.5", b"b:1"),
    ):
        plain.create(f"/monolith/{job}/{name}", data)
    until(lambda: discovery.query("ps") == {0: ADDRESS, 5: "b:1"})
    until(lambda: "node ps.4 of ZooKeeper has no address but b'a\\nb'" in caplog.text)


def test_a_server_that_is_not_there_is_named(monkeypatch):
    quick = functools.partial(ZKServiceDiscovery, start_seconds=0.3)
    monkeypatch.setattr(uris, "ZKServiceDiscovery", quick)
    with pytest.raises(DiscoveryError, match=r"ZooKeeper to answer, got none at 127.0.0.1:1 \("):
        open_discovery("zk://127.0.0.1:1/job")


def test_a_held_index_names_the_process(open_one):
    first, second = open_one(), open_one()
    first.hold("ps", 0)
    with pytest.raises(FailedPreconditionError, match=r"alive: process \d+ on .*, since 20"):
        second.hold("ps", 0)


def test_the_class_raises_the_error_of_kazoo():
    with pytest.raises(KazooTimeoutError):
        ZKServiceDiscovery("job", "127.0.0.1:1", start_seconds=0.3)
