"""A server that takes another place in a job than that with which it was started."""

import pytest
import torch

from monolith.cluster.call_host import Call
from monolith.cluster.discovery import HostServiceDiscovery
from monolith.cluster.job.dense_shard import DenseShard
from monolith.cluster.job.shared_state import ValuesSharedState
from monolith.cluster.server_host import ServerHost, config_text
from monolith.cluster.zmq.connect import OneServer, find_servers
from monolith.cluster.zmq.server_process import ServerOptions, ServerProcess
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.table import Segment, TableConfig, Zeros
from monolith.table.optimizers import SGD
from monolith.table.routing import PartitionRouting

CONFIG = TableConfig("user", Segment(1, SGD(1.0), Zeros()))


def shard(index, num_servers):
    parameters = {name: torch.nn.Parameter(torch.zeros(1)) for name in ("a", "b", "c")}
    return DenseShard(parameters, torch.optim.SGD(parameters.values(), 1.0), index, num_servers)


@pytest.fixture
def server():
    host = ServerHost(2, 3, dense=shard(2, 3))
    yield host
    host.close()


def call(server, verb, *arguments, sequence=1):
    return server.do(0, Call(1, sequence, 0, verb, arguments))


def test_a_server_takes_the_shards_and_dense_parameters_of_its_new_place(server):
    call(server, "renumber", 1, 2)
    assert (server.index, server.num_servers) == (1, 2)
    assert server._dense.names == ["b"]
    assert server.label == "/job:ps/task:1/device:CPU:0"
    call(server, "open_table", config_text(CONFIG), ("PartitionRouting", 2, 1), 0, sequence=2)
    with pytest.raises(InvalidArgumentError, match="expected shard 1 of 2"):
        call(server, "open_table", config_text(CONFIG), ("PartitionRouting", 3, 2), 0, sequence=3)


def test_the_present_place_is_fine_also_with_a_job(server):
    server.renumber(1, 2)
    server.open_job(1)
    server.renumber(1, 2)
    with pytest.raises(FailedPreconditionError, match="got one with a job"):
        server.renumber(0, 2)


def test_a_server_with_a_table_keeps_its_place(server):
    server.open_table(CONFIG, PartitionRouting(3).placement_of(2), 0)
    with pytest.raises(FailedPreconditionError, match="got one with tables user"):
        call(server, "renumber", 0, 2)
    assert (server.index, server.num_servers) == (2, 3)


def test_there_is_no_place_beyond_the_last(server):
    with pytest.raises(InvalidArgumentError, match="got server 2 of 2"):
        call(server, "renumber", 2, 2)


@pytest.fixture
def discovery(tmp_path):
    return HostServiceDiscovery(tmp_path)


@pytest.fixture
def processes(discovery):
    """Three servers, on sockets of this process."""
    started = [ServerProcess(ServerOptions(index, 3), shard(index, 3)) for index in range(3)]
    for index, process in enumerate(started):
        discovery.register("ps", index, process.loop.address)
    yield started
    for process in started:
        process.close()


def test_clients_find_servers_by_old_and_new_numbers(discovery, processes):
    for place, number in enumerate([2, 0]):
        with OneServer(discovery, number, 3) as server:
            server.renumber(place, 2)
    with find_servers(discovery, 2, numbers=[2, 0]) as servers:
        assert [facts["index"] for facts in servers.describe()] == [0, 1]
    with pytest.raises(FailedPreconditionError, match="expected a client of server 1 of 3"):
        find_servers(discovery, 2, numbers=[2, 1])
    with OneServer(discovery, 2, 3) as server:
        server.end(1)
    assert [process.host.is_job_ended for process in processes] == [False, False, True]


def test_processes_share_flags_and_texts_before_their_job(discovery, processes):
    with find_servers(discovery, 3) as one, find_servers(discovery, 3) as two:
        ValuesSharedState(one).set_flag("ready", 2, 1, True)
        state = ValuesSharedState(two)
        assert state.flags("ready", 2) == [False, True]
        state.set_flag("ready", 2, 1, False)
        assert state.flags("ready", 2) == [False, False]
        assert state.text("result") == ""
        ValuesSharedState(one).set_text("result", "a:1,b:2")
        assert state.text("result") == "a:1,b:2"
        with pytest.raises(InvalidArgumentError, match=r"expected an index in \[0, 2\), got 2"):
            state.set_flag("ready", 2, 2, True)
