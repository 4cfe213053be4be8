"""The client of the wire's measurements does what its figures say, at a real server process."""

import contextlib

import pytest

from benchmarks.server_processes import Client, Requests, rate_of, running

pytestmark = pytest.mark.dist


def test_requests_have_different_keys() -> None:
    for keys in Requests("", rows=50, num_keys=20).batches():
        assert len(keys) == len(keys.unique()) == 20


@pytest.mark.thorough
def test_a_client_reads_and_steps_the_rows_of_a_server_process() -> None:
    with running() as servers:
        requests = Requests(servers[0].address, rows=50, num_keys=20)
        with contextlib.closing(Client(requests)) as client:
            client.fill(50)
            assert len(client.table) == 50
            keys = requests.batches()[0]
            before = client.table.lookup(keys)
            client.push()
            assert (client.table.lookup(keys) < before).all()
            number = client.table.num_update_calls
            assert rate_of(client.push, servers, 0.1).value > 0
            assert client.table.num_update_calls > number
            assert servers[0].cpu_seconds() > 0
