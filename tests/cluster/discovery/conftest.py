import pytest

from tests.cluster.discovery.zookeeper_server import ZooKeeperServer, skip_without_zookeeper


@pytest.fixture(scope="module")
def zookeeper():
    """A real server of ZooKeeper."""
    skip_without_zookeeper()
    server = ZooKeeperServer()
    yield server
    server.close()
