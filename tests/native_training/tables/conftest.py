"""Servers of tests: as objects of this process, or, with `on_every_kind`, as processes too."""

import pytest

from monolith.cluster import LocalServers
from tests.cluster.server_pool import ServerPool
from tests.cluster.server_processes import Nursery


@pytest.fixture(scope="package")
def pools():
    """(number of servers) -> sets of server processes."""
    nursery, pools = Nursery(), {}
    yield lambda number: pools.setdefault(number, ServerPool(number, nursery))
    for pool in pools.values():
        pool.close()
    nursery.close()


@pytest.fixture
def servers_of(request):
    """(number of servers) -> servers, whose tables are closed at the end."""
    if getattr(request, "param", "objects") == "processes":
        pools = request.getfixturevalue("pools")
        used = []
        yield lambda number: used.append(pools(number)) or used[-1].connect()
        for pool in used:
            pool.give_back()
        return
    made = []
    yield lambda number: made.append(LocalServers(number)) or made[-1]
    for servers in made:
        servers.close()
