"""The suites of tables and engines over real server processes."""

import pytest

from monolith.cluster.servers_engine import servers_engine
from monolith.table.routing import PartitionRouting
from tests.cluster.server_pool import ServerPool
from tests.cluster.sharded_suite import OneBudgetSuite, ShardedSuite
from tests.suites.engine import EngineSuite
from tests.suites.table_base import NOW

pytestmark = [pytest.mark.dist, pytest.mark.thorough, pytest.mark.req("NT-DPS-T14")]

POOL, ONE = ServerPool(), ServerPool(num_servers=1)


@pytest.fixture(scope="module", autouse=True)
def pool():
    yield
    POOL.close()
    ONE.close()


@pytest.fixture(autouse=True)
def given_back():
    yield
    POOL.give_back()
    ONE.give_back()


def make_table(config, **options):
    return POOL.connect().table(config, PartitionRouting(3), **options)


def make_table_of_one(config, **options):
    return ONE.connect().table(config, PartitionRouting(1), **options)


def make_engine(configs, features, clock=lambda: NOW):
    servers = POOL.connect()
    tables = [servers.table(config, PartitionRouting(3), clock) for config in configs]
    return servers_engine(servers)(tables, features)


class TestTableOnServerProcesses(ShardedSuite):
    make = staticmethod(make_table)


class TestBudgetOnOneServerProcess(OneBudgetSuite):
    make = staticmethod(make_table_of_one)


class TestEngineOnServerProcesses(EngineSuite):
    make = staticmethod(make_engine)
