import logging
import socket
import time
from types import SimpleNamespace

import pytest

from monolith.native_training import zk_utils
from monolith.native_training.service_discovery import ZKServiceDiscovery
from monolith.native_training.zk_utils import (
    MonolithKazooClient,
    clear_zk_path,
    default_zk_servers,
    is_ipv6_only,
)
from tests.native_training.fake_discoveries import FakeKazooClient

WEEK_SECONDS = 7 * 24 * 3600


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in ("MY_HOST_IP", "MY_POD_IP", "MY_HOST_IPV6", "ZK_AUTH"):
        monkeypatch.delenv(name, raising=False)


def unresolvable(name):
    raise socket.gaierror


@pytest.mark.req("NT-ZK-T1")
@pytest.mark.parametrize(
    ("variables", "resolve", "address", "expected"),
    [
        ({"MY_HOST_IP": "10.0.0.1"}, unresolvable, "10.0.0.1", False),
        ({"MY_POD_IP": "10.0.0.2"}, unresolvable, "10.0.0.2", False),
        ({"MY_HOST_IPV6": "::1"}, lambda name: "10.0.0.9", None, True),
        ({"MY_HOST_IP": "10.0.0.1", "MY_POD_IP": "10.0.0.2"}, unresolvable, "10.0.0.1", False),
        ({}, lambda name: "10.0.0.3", "10.0.0.3", False),
        ({}, unresolvable, None, True),
    ],
)
def test_a_machine_without_an_ipv4_address(
    monkeypatch, caplog, variables, resolve, address, expected
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(socket, "gethostbyname", resolve)
    with caplog.at_level(logging.INFO):
        assert is_ipv6_only() is expected
    assert f"IPv4 address: {address}; IPv6 only: {expected}" in caplog.text


@pytest.mark.req("NT-ZK-T2")
def test_default_servers(monkeypatch):
    monkeypatch.setenv("MY_HOST_IP", "10.0.0.1")
    assert default_zk_servers() == default_zk_servers(use_ipv6=True) == ""
    monkeypatch.setattr(zk_utils, "_HOSTS", ["1.1.1.1", "2.2.2.2"])
    monkeypatch.setattr(zk_utils, "_HOSTS_IPV6", ["::1"])
    assert default_zk_servers() == "1.1.1.1:2181,2.2.2.2:2181"
    assert default_zk_servers(use_ipv6=True) == "[::1]:2181"
    monkeypatch.setattr(zk_utils, "_PORT", 5)
    assert default_zk_servers() == "1.1.1.1:5,2.2.2.2:5"


@pytest.mark.req("NT-ZK-T2")
def test_a_machine_without_an_ipv4_address_takes_the_others(monkeypatch):
    monkeypatch.setenv("MY_HOST_IPV6", "::2")
    monkeypatch.setattr(zk_utils, "_HOSTS_IPV6", ["::1"])
    assert default_zk_servers() == "[::1]:2181"


def test_a_client_has_the_credentials_of_the_environment(monkeypatch):
    monkeypatch.setenv("ZK_AUTH", "ann:secret")
    assert MonolithKazooClient("127.0.0.1:1").auth_data == {("digest", "ann:secret")}


def test_the_credentials_of_the_caller_go_first(monkeypatch):
    monkeypatch.setenv("ZK_AUTH", "ann:secret")
    client = MonolithKazooClient("127.0.0.1:1", auth_data=[("digest", "bob:x")])
    assert client.auth_data == {("digest", "bob:x")}


def test_a_client_without_credentials():
    assert MonolithKazooClient("127.0.0.1:1").auth_data == set()


@pytest.fixture
def fake(monkeypatch):
    fake = FakeKazooClient()
    for name, weeks in (("old", 10), ("young", 8), ("job", 1)):
        path = f"/monolith/{name}"
        fake.ensure_path(f"{path}/ps.0")
        mtime = (time.time() - weeks * WEEK_SECONDS) * 1000
        fake.nodes[path].stat = SimpleNamespace(czxid=1, ephemeralOwner=0, mtime=int(mtime))
    monkeypatch.setattr(zk_utils, "MonolithKazooClient", lambda hosts: fake)
    yield fake
    assert fake.num_stops == 1


def jobs(fake):
    return {*fake.get_children("/monolith")}


@pytest.mark.req("NT-ZK-T3")
def test_old_jobs_are_removed(fake):
    clear_zk_path("a:1", "none", False)
    assert jobs(fake) == {"young", "job"}
    assert "/monolith/old/ps.0" not in fake.nodes


@pytest.mark.req("NT-ZK-T3")
def test_an_old_job_that_cannot_be_removed_stays(fake):
    fake.failures["/monolith/old"] = RuntimeError("no rights")
    clear_zk_path("a:1", "none", False)
    assert jobs(fake) == {"old", "young", "job"}


@pytest.mark.req("NT-ZK-T3")
def test_a_job_is_removed_by_force(fake):
    clear_zk_path("a:1", "job", True)
    assert jobs(fake) == {"young"}


@pytest.mark.req("NT-ZK-T3")
def test_a_job_is_not_removed_without_force(fake):
    with pytest.raises(ValueError, match="there are") as raised:
        clear_zk_path("a:1", "job", False)
    assert str(raised.value) == "there are [young,job] in monolith zk path"


@pytest.mark.req("NT-ZK-T3")
def test_the_root_is_made(fake):
    fake.nodes.clear()
    clear_zk_path("a:1", "job", False)
    assert [*fake.nodes] == ["/monolith"]


@pytest.mark.req("NT-ZK-T3")
def test_the_client_is_stopped_after_an_error(fake, monkeypatch):
    monkeypatch.setattr(fake, "start", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        clear_zk_path("a:1", "job", False)


def test_no_server_is_refused_before_a_connection(monkeypatch):
    monkeypatch.setattr(zk_utils, "MonolithKazooClient", lambda hosts: 1 / 0)
    with pytest.raises(ValueError, match=r"expected zk_server or servers in zk_utils\._HOSTS"):
        clear_zk_path(None, "job", False)
    with pytest.raises(ValueError, match="expected the servers of ZooKeeper"):
        ZKServiceDiscovery("job")
