"""Tables on servers of other processes, here behind a connection without a wire."""

import pytest

from monolith.cluster.servers_engine import servers_engine
from monolith.table import Segment, TableConfig, Zeros
from monolith.table.optimizers import SGD
from monolith.table.routing import PartitionRouting
from tests.cluster.direct_connection import remote_servers
from tests.suites.engine import EngineSuite
from tests.suites.table import TableSuite
from tests.suites.table_base import NOW

CONFIG = TableConfig("user", Segment(1, SGD(1.0), Zeros()))


def table_on(num_servers, routing=PartitionRouting):
    def make(config, **options):
        servers = remote_servers(num_servers)
        return servers.table(config, routing(num_servers), **options)

    return make


def engine_on(num_servers):
    def make(configs, features, clock=lambda: NOW):
        servers = remote_servers(num_servers)
        routing = PartitionRouting(num_servers)
        tables = [servers.table(config, routing, clock) for config in configs]
        return servers_engine(servers)(tables, features)

    return make


@pytest.mark.thorough
class TestTableOnThreeServers(TableSuite):
    make = staticmethod(table_on(3))


class TestEngineOnThreeServers(EngineSuite):
    make = staticmethod(engine_on(3))
