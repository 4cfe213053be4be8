"""Every discovery passes the suite of discoveries."""

import contextlib

import pytest

from monolith.cluster import discovery
from monolith.cluster.discovery import MLPEnv, MLPServiceDiscovery, TfConfigServiceDiscovery
from tests.cluster.discovery.consul_server import ConsulServer
from tests.cluster.discovery.registrar import registrars
from tests.suites.discovery import DiscoverySuite, FixedSuite

pytestmark = pytest.mark.dist


@pytest.fixture(scope="module")
def registrar():
    with registrars() as registrar:
        yield registrar


@pytest.fixture(scope="module")
def consul():
    server = ConsulServer(session_ttl_min=0.1)
    yield server
    server.close()


@pytest.fixture
def open_one(source):
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(contextlib.closing(eval(source, dict(vars(discovery)))))


class TestFiles(DiscoverySuite):
    forgets = False

    @pytest.fixture
    def source(self, tmp_path):
        return f"HostServiceDiscovery({str(tmp_path)!r})"


class TestZooKeeper(DiscoverySuite):
    @pytest.fixture
    def source(self, zookeeper, request):
        job = request.node.name
        return f"ZKServiceDiscovery({job!r}, {zookeeper.hosts!r}, session_seconds=2)"


class TestConsul(DiscoverySuite):
    @pytest.fixture
    def source(self, consul, request):
        agent = f"consul.ConsulAgent({consul.address!r})"
        return (
            f"ConsulServiceDiscovery({request.node.name!r}, 0, agent={agent}, ttl_seconds=1.5, "
            "hold_seconds=1.5)"
        )


class TestTfConfig(FixedSuite):
    @pytest.fixture
    def known(self):
        return {"ps": {0: "a:1", 1: "b:1"}, "worker": {0: "c:1", 1: "d:1", 2: "e:1"}}

    @pytest.fixture
    def discovery(self):
        cluster = {"ps": ["a:1", "b:1"], "chief": ["c:1"], "worker": ["d:1", "e:1"]}
        discovery = TfConfigServiceDiscovery(
            {"cluster": cluster, "task": {"type": "ps", "index": 0}}
        )
        discovery.register("ps", 5, "z:1")
        discovery.deregister("ps", 0, "a:1")
        yield discovery
        discovery.close()


class TestMlp(FixedSuite):
    @pytest.fixture
    def known(self):
        return {"ps": {0: "a:1", 1: "b:1"}, "worker": {0: "c:1"}}

    @pytest.fixture
    def discovery(self, known):
        variables = {}
        for name, addresses in known.items():
            variables[f"MLP_{name.upper()}_NUM"] = str(len(addresses))
            for index, address in addresses.items():
                host, port = address.split(":")
                variables[f"MLP_{name.upper()}_{index}_PRIMARY_HOST"] = host
                variables[f"MLP_{name.upper()}_{index}_PORT"] = port
        discovery = MLPServiceDiscovery(MLPEnv(variables), port_seconds=None)
        discovery.deregister("ps", 0, "a:1")
        discovery.register("ps", 0, "a:1")
        yield discovery
        discovery.close()
