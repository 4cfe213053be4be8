import builtins
import gc
import itertools
import socket
import threading

import pytest

from monolith.cluster.discovery import MLPEnv
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.native_training import service_discovery
from monolith.native_training.service_discovery import (
    ConsulServiceDiscovery,
    MLPServiceDiscovery,
    ServiceDiscoveryType,
    TfConfigServiceDiscovery,
    ZKServiceDiscovery,
    deregister_all,
    retry_with_socket_error,
)
from tests.native_training.fake_discoveries import FakeConsul, FakeKazooClient
from tests.suites.discovery import until

TF_CONFIG = {
    "cluster": {
        "chief": ["host0:2222"],
        "ps": ["host1:2222", "host2:2222"],
        "worker": ["host3:2222", "host4:2222", "host5:2222"],
    },
    "task": {"type": "worker", "index": 1},
}


@pytest.fixture(autouse=True)
def _no_backoff(monkeypatch):
    monkeypatch.setattr(service_discovery, "_RETRY_MAX_BACKOFF_SECS", 0)


@pytest.fixture
def consul():
    discovery = ConsulServiceDiscovery("unique_id", retry_time_secs=0, agent=FakeConsul())
    yield discovery
    discovery.close()


@pytest.fixture
def zookeeper(monkeypatch):
    monkeypatch.setattr(service_discovery, "MonolithKazooClient", FakeKazooClient)
    discovery = ZKServiceDiscovery("test_job", "127.0.0.1:2181", delay=0)
    yield discovery
    discovery.close()


def check_basic(discovery):
    discovery.register("server", 0, "192.168.0.1:1001")
    discovery.register("server", 1, "192.168.0.2:1002")
    assert discovery.query("server") == {0: "192.168.0.1:1001", 1: "192.168.0.2:1002"}
    discovery.deregister("server", 0, "192.168.0.1:1001")
    discovery.deregister("server", 1, "192.168.0.2:1002")
    assert discovery.query("server") == {}


def check_duplicate(discovery):
    discovery.register("server", 0, "192.168.0.1:1001")
    discovery.register("server", 0, "192.168.0.1:1002")
    assert discovery.query("server") == {0: "192.168.0.1:1002"}


def check_names(discovery):
    discovery.register("ps", 0, "192.168.0.1:1001")
    discovery.register("worker", 0, "192.168.0.1:1002")
    assert discovery.query("ps") == {0: "192.168.0.1:1001"}
    assert discovery.query("worker") == {0: "192.168.0.1:1002"}


CHECKS = [check_basic, check_duplicate, check_names]


@pytest.mark.req("TS-SD-T1", "TS-SD-T2", "TS-SD-T3")
@pytest.mark.parametrize("check", CHECKS)
def test_consul_has_registrations(consul, check):
    check(consul)


@pytest.mark.req("TS-SD-T4")
def test_a_call_of_consul_that_always_times_out_is_an_error(consul, monkeypatch):
    calls = itertools.count(1)

    def time_out(*arguments):
        raise TimeoutError(next(calls))

    monkeypatch.setattr(consul._agent, "register", time_out)
    with pytest.raises(socket.timeout, match="5"):
        consul.register("server", 0, "192.168.0.1:1001")


@pytest.mark.req("TS-SD-T5")
def test_a_registration_that_consul_does_not_show_is_an_error():
    discovery = ConsulServiceDiscovery("unique_id", agent=FakeConsul(["192.168.0.1"]))
    with pytest.raises(OSError, match=r"^This machine is blacklisted by consul\.$"):
        discovery.register("server", 0, "192.168.0.1:1001")
    discovery.close()


@pytest.mark.parametrize(
    "address", ["192.168.0.1", "a:b", "a:1:2", "", ":1", "ipc:///a", "[::1]:2"]
)
def test_consul_takes_a_host_and_a_port(consul, address):
    for call in (consul.register, consul.deregister):
        with pytest.raises(ValueError, match=r"^Invalid addr: ") as raised:
            call("server", 0, address)
        assert str(raised.value) == f"Invalid addr: {address}"


@pytest.mark.req("TS-SD-T10")
def test_all_registrations_of_an_id_are_removed(monkeypatch):
    fake = FakeConsul()
    monkeypatch.setattr(service_discovery, "ConsulAgent", lambda: fake)
    discovery, other = ConsulServiceDiscovery("unique_id"), ConsulServiceDiscovery("other")
    for each in (discovery, other):
        each.register("server", 0, "192.168.0.1:1001")
        each.register("server", 1, "192.168.0.2:1002")
    deregister_all("unique_id")
    assert discovery.query("server") == {}
    assert len(other.query("server")) == 2
    discovery.close()
    other.close()


@pytest.mark.req("TS-SD-T6")
def test_tf_config_has_the_processes_of_the_job():
    discovery = TfConfigServiceDiscovery(TF_CONFIG)
    assert list(discovery.query("ps").items()) == [(0, "host1:2222"), (1, "host2:2222")]
    assert discovery.query("worker") == {0: "host0:2222"} | {
        number: f"host{number + 2}:2222" for number in (1, 2, 3)
    }
    assert discovery.addr == "host4:2222"
    assert (discovery.server_type, discovery.index) == ("worker", 2)


@pytest.mark.req("NT-SD-T2")
@pytest.mark.parametrize(
    ("chief", "kind", "server_type", "index", "addr"),
    [
        (True, "chief", "worker", 0, "host0:2222"),
        (True, "worker", "worker", 1, "host3:2222"),
        (True, "ps", "ps", 0, "host1:2222"),
        (False, "worker", "worker", 0, "host3:2222"),
        (False, "ps", "ps", 0, "host1:2222"),
    ],
)
def test_tf_config_has_the_part_of_this_process(chief, kind, server_type, index, addr):
    cluster = dict(TF_CONFIG["cluster"])
    if not chief:
        del cluster["chief"]
    task = {"type": kind, "index": 0}
    discovery = TfConfigServiceDiscovery({"cluster": cluster, "task": task})
    assert (discovery.server_type, discovery.index, discovery.addr) == (server_type, index, addr)


@pytest.mark.req("NT-SD-T2")
def test_a_chief_without_a_chief_in_the_cluster_is_refused():
    config = {"cluster": {"ps": ["a:1"]}, "task": {"type": "chief", "index": 0}}
    with pytest.raises(InvalidArgumentError, match=r"a task of the cluster, which has {'ps': 1}"):
        TfConfigServiceDiscovery(config)


def test_tf_config_has_no_other_names():
    with pytest.raises(ValueError, match=r"^name must be ps/worker$"):
        TfConfigServiceDiscovery(TF_CONFIG).query("server")


@pytest.mark.req("TS-SD-T7")
@pytest.mark.parametrize("check", CHECKS)
def test_zookeeper_has_registrations(zookeeper, check):
    check(zookeeper)


@pytest.mark.req("TS-SD-T8")
def test_a_wrong_address_in_zookeeper_is_written_again(zookeeper, monkeypatch):
    monkeypatch.setattr(service_discovery, "_ZK_REGISTRATION_PERIOD", 0.01)
    zookeeper.register("server", 0, "192.168.0.1:1001")
    zookeeper.client.set("/monolith/test_job/server.0", b"wrongdata")
    until(lambda: zookeeper.query("server") == {0: "192.168.0.1:1001"})


def test_an_address_in_zookeeper_is_not_written_all_the_time(zookeeper):
    zookeeper.register("server", 0, "192.168.0.1:1001")
    zookeeper.client.set("/monolith/test_job/server.0", b"wrongdata")
    threading.Event().wait(0.1)
    assert zookeeper.query("server") == {0: "wrongdata"}


@pytest.mark.req("TS-SD-T9")
def test_a_lost_session_registers_again(zookeeper):
    zookeeper.register("server", 0, "192.168.0.1:1001")
    zookeeper.client.change("LOST")
    assert zookeeper.query("server") == {}
    zookeeper.client.change("CONNECTED")
    until(lambda: zookeeper.query("server") == {0: "192.168.0.1:1001"})


def test_a_suspended_connection_registers_nothing(zookeeper):
    zookeeper.register("server", 0, "192.168.0.1:1001")
    path = "/monolith/test_job/server.0"
    zookeeper.client.delete(path)
    zookeeper.client.change("SUSPENDED")
    zookeeper.client.change("CONNECTED")
    threading.Event().wait(0.1)
    assert path not in zookeeper.client.nodes


def test_a_call_of_zookeeper_is_tried_some_times_and_then_an_error(zookeeper, monkeypatch):
    tries = []

    def fail(*arguments, **options):
        tries.append(arguments)
        raise RuntimeError("no quorum")

    monkeypatch.setattr(zookeeper.client, "create", fail)
    text = r"RuntimeError\('no quorum'\) after 3 tries"
    with pytest.raises(ConnectionError, match=text):
        zookeeper.register("server", 0, "192.168.0.1:1001")
    assert len(tries) == 3


def test_closing_a_discovery_in_zookeeper_ends_client_and_threads(zookeeper):
    zookeeper.register("server", 0, "192.168.0.1:1001")
    names = [thread.name for thread in threading.enumerate()]
    zookeeper.close()
    zookeeper.close()
    assert "monolith-zk-entry" in names
    assert "monolith-zk-entry" not in [thread.name for thread in threading.enumerate()]
    assert zookeeper.client.num_stops == 1


def test_a_discovery_in_zookeeper_that_nobody_uses_is_closed(monkeypatch):
    monkeypatch.setattr(service_discovery, "MonolithKazooClient", FakeKazooClient)
    discovery = ZKServiceDiscovery("test_job", "127.0.0.1:2181")
    discovery.register("server", 0, "192.168.0.1:1001")
    client = discovery.client
    del discovery
    gc.collect()
    until(lambda: client.num_stops == 1)


@pytest.mark.req("NT-SD-T3")
def test_a_missing_client_of_zookeeper_names_the_extra(monkeypatch):
    real = builtins.__import__

    def missing(name, *arguments, **options):
        if name.startswith("kazoo"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(FailedPreconditionError, match=r"pip install 'monolith-torch\[zk\]'"):
        ZKServiceDiscovery("test_job", "127.0.0.1:2181")


@pytest.mark.req("NT-SD-T3")
def test_all_discoveries_return_one_map(consul, zookeeper):
    golden = {0: "10.0.0.1:1", 1: "10.0.0.2:2", 10: "10.0.0.3:3"}
    for discovery in (consul, zookeeper):
        for index in (10, 1, 0):
            discovery.register("ps", index, golden[index])
        assert list(discovery.query("ps").items()) == list(golden.items())
    fixed = {"cluster": {"ps": list(golden.values())}, "task": {"type": "ps", "index": 0}}
    assert list(TfConfigServiceDiscovery(fixed).query("ps").values()) == list(golden.values())
    variables = {"MLP_PS_NUM": "11"}
    for index, address in golden.items():
        host, port = address.split(":")
        variables |= {f"MLP_PS_{index}_PRIMARY_HOST": host, f"MLP_PS_{index}_PORT": port}
    mlp = MLPServiceDiscovery(MLPEnv(variables))
    assert list(mlp.query("ps", skip_port_check=True).items()) == list(golden.items())


def test_a_call_is_tried_again_after_an_error_of_the_network():
    results = iter([OSError("1"), OSError("2"), 7])

    def call():
        if isinstance(result := next(results), OSError):
            raise result
        return result

    assert retry_with_socket_error(call) == 7


def test_other_errors_are_raised_at_once():
    calls = []

    def call():
        calls.append(1)
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        retry_with_socket_error(call)
    assert calls == [1]


def test_pauses_are_shorter_than_the_longest(monkeypatch):
    pauses = []
    monkeypatch.setattr(service_discovery, "_RETRY_MAX_BACKOFF_SECS", 7)
    monkeypatch.setattr("monolith.cluster.discovery.retries.time.sleep", pauses.append)
    with pytest.raises(OSError, match="x"):
        retry_with_socket_error(lambda: (_ for _ in ()).throw(OSError("x")))
    assert len(pauses) == 4
    assert len({*pauses}) > 1
    assert all(0 <= pause <= 7 for pause in pauses)


def test_the_kinds_of_discoveries_have_their_numbers():
    numbers = {kind.name: kind.value for kind in ServiceDiscoveryType}
    assert numbers == {"PRIMUS": 1, "CONSUL": 2, "ZK": 3, "MLP": 4}
