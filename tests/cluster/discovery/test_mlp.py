import socket

import pytest

from monolith.cluster.discovery import open_discovery
from monolith.cluster.discovery.mlp import MLPServiceDiscovery
from monolith.cluster.discovery.mlp_env import MLPEnv
from monolith.environment import variables
from monolith.errors import InvalidArgumentError
from tests.cluster.discovery.mlp_variables import PLAIN

PS = {0: "10.0.0.1:7000", 1: "10.0.0.2:7001"}


@pytest.fixture
def discovery():
    return MLPServiceDiscovery(MLPEnv(PLAIN))


@pytest.mark.req("NT-SD-T1")
def test_addresses_are_those_of_the_environment(discovery):
    assert discovery.query("ps", skip_port_check=True) == PS
    assert discovery.query("WORKER") == {0: "10.0.0.3:7100", 1: "[2001:db8::7]:7101"}
    assert discovery.query_all() == {"ps": PS, "worker": discovery.query("worker")}
    assert (discovery.server_type, discovery.index) == ("worker", 1)


@pytest.mark.req("NT-SD-T1")
def test_a_process_is_hidden_and_shown_again(discovery):
    discovery.deregister("PS", 0, "10.0.0.1:7000")
    assert discovery.query("ps", skip_port_check=True) == {1: PS[1]}
    discovery.register("ps", 0, "127.0.0.1:7000")
    assert discovery.query("ps", skip_port_check=True) == PS
    discovery.deregister_all()
    assert discovery.query_all() == {"ps": {}, "worker": {}}


@pytest.mark.req("NT-SD-T1")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("ps", 0, "10.0.0.1:7001"), "expected port 7000 of ps 0, got 10.0.0.1:7001"),
        (("ps", 0, "10.0.0.9:7000"), "expected the host of ps 0, 10.0.0.1, or this machine"),
        (("ps", 2, "10.0.0.1:7000"), r"expected ps in \[0, 2\), got 2"),
        (("chief", 0, "10.0.0.1:7000"), "expected one of the roles .*, got 'chief'"),
    ],
)
def test_another_address_is_refused(discovery, arguments, text):
    for verb in (discovery.register, discovery.deregister):
        with pytest.raises(AssertionError, match=text):
            verb(*arguments)


def test_a_uri_names_the_environment(monkeypatch):
    for name, value in PLAIN.items():
        monkeypatch.setenv(name, value)
    discovery = open_discovery("mlp:")
    assert discovery.query("ps") == PS  # nobody has to answer
    place = discovery.place
    assert (place.name, place.index, place.address) == ("worker", 1, "[2001:db8::7]:7101")
    assert place.sizes == {"ps": 2, "worker": 2}
    monkeypatch.setenv("MLP_ROLE", "dispatcher")
    assert open_discovery("mlp:").place is None


def test_a_uri_without_the_environment_is_refused(monkeypatch):
    for name in variables("MLP_"):
        monkeypatch.delenv(name)
    with pytest.raises(InvalidArgumentError, match="got 'mlp:' and no such variables"):
        open_discovery("mlp:")


@pytest.mark.req("NT-SD-T1")
def test_servers_must_answer():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        env = MLPEnv(
            {
                "MLP_PS_NUM": "1",
                "MLP_PS_0_PRIMARY_HOST": "127.0.0.1",
                "MLP_PS_0_PORT": str(port),
            }
        )
        discovery = MLPServiceDiscovery(env, port_seconds=0.2)
        assert discovery.query("ps") == {0: f"127.0.0.1:{port}"}
    assert discovery.query("ps")  # it has answered once
    discovery = MLPServiceDiscovery(env, port_seconds=0.2)
    with pytest.raises(AssertionError, match=f"127.0.0.1:{port} connect error!"):
        discovery.query("ps")
