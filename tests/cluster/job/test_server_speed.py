"""What `measure_servers` counts, over servers of this process and of others."""

import threading

import pytest

from monolith.cluster import LocalServers
from monolith.cluster.job.server_speed import measure_servers
from monolith.errors import InvalidArgumentError
from tests.cluster.direct_connection import remote_servers


@pytest.fixture
def servers():
    with LocalServers(3) as servers:
        yield servers


def test_every_server_of_this_process_has_a_speed(servers):
    speeds = measure_servers(servers, 0.01)
    assert len(speeds) == 3
    assert all(speed > 0 for speed in speeds)


def test_the_table_of_the_measurement_is_gone_afterwards(servers):
    measure_servers(servers, 0.001)
    assert [servers[i].table_names for i in range(3)] == [[], [], []]
    assert [servers[i].shared_table_names for i in range(3)] == [[], [], []]


def test_every_server_pulls_as_often_as_it_pushes_and_only_its_own_keys():
    calls = []
    measure_servers(remote_servers(2, calls), 0.001)
    for index in range(2):
        verbs = [verb for server, verb, _ in calls if server == index]
        warm_up = 2  # a push for each of the calls in flight
        assert verbs.count("pull") == verbs.count("push") - warm_up > 0
    pulls = [(server, keys[0].item()) for server, verb, (keys, *_) in pulls_of(calls)]
    assert len(set(pulls)) == 2 == len({key for _, key in pulls})


def pulls_of(calls):
    return [call for call in calls if call[1] == "pull"]


def test_a_slow_server_does_not_slow_the_count_of_another():
    servers = remote_servers(2)
    send = servers._connections[0].send
    servers._connections[0].send = lambda handle, call: slow(send(handle, call))
    first, second = measure_servers(servers, 0.2)
    assert first * 2 < second


def slow(answer):
    """An answer that is waited for a while longer."""
    result = answer.result
    answer.result = lambda timeout=None: (threading.Event().wait(0.02), result(timeout))[1]
    return answer


def test_a_measurement_without_time_is_refused(servers):
    for seconds in (0, -1, float("nan")):
        with pytest.raises(InvalidArgumentError, match=f"expected seconds > 0, got {seconds}"):
            measure_servers(servers, seconds)


def test_a_server_that_comes_back_empty_does_not_get_the_closed_table():
    servers = remote_servers(2)
    measure_servers(servers, 0.001)
    servers._connections[1].restart()
    assert all(speed > 0 for speed in measure_servers(servers, 0.001))
    assert servers._connections[1].host.table_names == []
