import threading

import pytest
import torch

from monolith.cluster import LocalServers, ShardedTable
from monolith.cluster.servers import current_server, current_servers, ps_device, ps_label
from monolith.cluster.shard_hosts import ShardHost
from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.native_training.tables import DistributedHashTable, DistributedMultiTypeHashTable
from monolith.table import Expiry, Segment, Table, TableConfig
from monolith.table.optimizers import SGD, Adagrad
from monolith.table.routing import FloorModRouting, PartitionRouting
from monolith.train.hosting import table_maker
from tests.suites.table_base import NOW, column, keys

CONFIG = TableConfig("user", Segment(1, SGD(1.0)))


@pytest.fixture
def servers():
    with LocalServers(2) as servers:
        yield servers


@pytest.mark.req("NT-TESTU-T2")
def test_two_servers_host_a_parameter_each_and_shut_down(servers):
    with servers.run():
        for i in range(2):
            with ps_device(i):
                current_server().parameter(f"v{i}", torch.full((2,), float(i)))
    assert [servers[i].parameter_names for i in range(2)] == [["v0"], ["v1"]]
    assert servers[1].parameter("v1", torch.zeros(2)).tolist() == [1, 1]
    servers.close()
    assert [servers[i].parameter_names for i in range(2)] == [[], []]


def test_what_a_run_made_is_there_in_the_next(servers):
    for expected in (0.0, 1.0):
        with servers.run(), ps_device(1) as server:
            bias = server.parameter("bias", torch.zeros(1))
            assert bias.item() == expected
            bias.data += 1
            table = server.shard(CONFIG).table
            assert table.lookup(keys(7), missing="zeros").item() == expected
            table.assign(keys(7), column(1))
    assert servers[0].table_names == []
    assert servers[1].table_names == ["user"]


def test_a_table_of_a_selected_server_belongs_to_it(servers):
    with servers.run(), ps_device(1) as server:
        made = server.table(CONFIG)
        made.assign(keys(7), column(3))
        own = Table(CONFIG)
    assert servers[1].table(CONFIG) is made
    assert (servers[0].table_names, servers[1].table_names) == ([], ["user"])
    assert len(own) == 0
    servers.close()
    with pytest.raises(FailedPreconditionError, match="expected an open table, got a closed one"):
        made.lookup(keys(7))


def test_a_parameter_is_a_copy_that_takes_gradients(servers):
    initial = torch.ones(2)
    parameter = servers[0].parameter("bias", initial)
    initial.zero_()
    assert parameter.tolist() == [1, 1]
    assert parameter.requires_grad


def test_the_inner_selection_counts_and_the_outer_comes_back(servers):
    with servers.ps_device(0), ps_device(1):
        assert current_server() is servers[1]
        with servers.ps_device(0) as server:
            assert current_server() is server is servers[0]
        assert current_server() is servers[1]


def test_a_selection_of_other_servers_hides_those_outside(servers):
    with LocalServers(3) as others, servers.ps_device(1), others.run():
        assert current_servers() is others
        with pytest.raises(FailedPreconditionError, match="expected a selected server"):
            current_server()
        with ps_device(2):
            assert current_server() is others[2]


def test_a_selection_ends_with_an_error(servers):
    with pytest.raises(KeyError), servers.ps_device(0):
        raise KeyError
    with pytest.raises(FailedPreconditionError):
        current_server()


def test_each_thread_has_a_selection_of_its_own(servers):
    seen = []

    def work(i):
        with servers.ps_device(i):
            barrier.wait(60)
            seen.append((i, current_server().index))
            barrier.wait(60)

    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [(0, 0), (1, 1)]


def test_labels_and_the_description_of_the_cluster(servers):
    assert servers[1].label == "/job:ps/task:1/device:CPU:0"
    assert servers.cluster() == {"ps": ["local:0", "local:1"]}
    assert len(servers) == 2


def test_nothing_is_selected_outside():
    text = r"\[current_servers\] expected a run on servers, got none; use `with servers.run\(\):`"
    with pytest.raises(FailedPreconditionError, match=text), ps_device(0):
        pass
    text = r"\[current_server\] expected a selected server, got none; use `with ps_device\(i\):`"
    with pytest.raises(FailedPreconditionError, match=text):
        current_server()


@pytest.mark.parametrize("index", [-1, 2])
def test_a_server_that_is_not_there(servers, index):
    text = rf"\[LocalServers\] expected a server in \[0, 2\), got number {index}"
    with pytest.raises(IndexError, match=text), servers.ps_device(index):
        pass


def test_a_number_of_servers_outside_its_range():
    with pytest.raises(ValueError, match=r"\[LocalServers\] expected num_servers >= 1, got 0"):
        LocalServers(0)


def test_another_config_of_the_same_table_is_refused(servers):
    servers[0].shard(CONFIG)
    text = r"\[LocalServer.shard\] expected the config that the table has, .* got .*Adagrad"
    with pytest.raises(ValueError, match=text):
        servers[0].shard(TableConfig("user", Segment(1, Adagrad())))


def test_another_number_of_shards_of_the_same_table_is_refused(servers):
    servers[1].shard(CONFIG, PartitionRouting(2))
    text = (
        r"expected shard 1 of PartitionRouting\(2\), as which the shard was made, got shard 0 of "
        r"PartitionRouting\(1\) \(table 'user' on /job:ps/task:1/device:CPU:0\)"
    )
    with pytest.raises(InvalidArgumentError, match=text):
        servers[1].shard(CONFIG)


def test_another_routing_of_the_same_table_is_refused(servers):
    DistributedHashTable(CONFIG, servers)
    text = (
        r"expected shard 0 of FloorModRouting\(2\), as which the shard was made, got shard 0 of "
        r"PartitionRouting\(2\) \(table 'user' on /job:ps/task:0/device:CPU:0\); open it with the "
        "routing that it has, or restore a save of it into a new table of the other routing"
    )
    with pytest.raises(InvalidArgumentError, match=text):
        servers.shards(CONFIG, PartitionRouting(2))


def test_the_trainer_does_not_open_a_table_that_is_spread_by_floor_remainder(servers):
    DistributedHashTable(CONFIG, servers).assign(keys(2, 3), column(2, 3))
    with pytest.raises(InvalidArgumentError, match=r"got shard 0 of PartitionRouting\(2\)"):
        table_maker(servers, lambda: NOW)(CONFIG)


def test_a_group_does_not_open_a_table_that_is_spread_by_partition(servers):
    servers.shards(CONFIG, PartitionRouting(2))
    with pytest.raises(InvalidArgumentError, match=r"got shard 0 of FloorModRouting\(2\)"):
        DistributedMultiTypeHashTable({"user": CONFIG}, servers)


def test_a_refused_routing_leaves_an_empty_server_empty(servers):
    servers.shards(CONFIG, PartitionRouting(2))
    servers.restart(0)
    with pytest.raises(InvalidArgumentError, match="expected shard 1 of PartitionRouting"):
        servers.shards(CONFIG, FloorModRouting(2))
    assert servers[0].table_names == []


def test_one_server_holds_all_keys_under_every_routing():
    with LocalServers(1) as servers:
        DistributedHashTable(CONFIG, servers).assign(keys(7), column(1))
        (shard,) = servers.shards(CONFIG, PartitionRouting(1))
        assert shard.table.contains(keys(7)).tolist() == [True]


def test_shards_in_another_order_are_refused(servers):
    hosts = servers.shards(CONFIG, FloorModRouting(2))
    with pytest.raises(InvalidArgumentError, match=r"expected shard 1 .* got shard 0 of FloorMod"):
        ShardedTable.over(CONFIG, hosts[::-1], routing=FloorModRouting(2))


def test_a_shard_that_was_made_by_hand_keeps_its_first_routing():
    hosts = [ShardHost(Table(CONFIG)) for _ in range(2)]
    ShardedTable.over(CONFIG, hosts, routing=FloorModRouting(2))
    assert [host.placement for host in hosts] == [
        ("FloorModRouting", 2, 0),
        ("FloorModRouting", 2, 1),
    ]
    text = r"got shard 0 of PartitionRouting\(2\) \(table 'user'\); open it with"
    with pytest.raises(InvalidArgumentError, match=text):
        ShardedTable.over(CONFIG, hosts)


def test_a_routing_over_another_number_of_servers_is_refused(servers):
    text = (
        r"\[LocalServers.shards\] expected a routing over 2 shards, one per server, got 3 "
        r"\(table 'user'\)"
    )
    with pytest.raises(ValueError, match=text):
        servers.shards(CONFIG, FloorModRouting(3))


def test_a_routing_that_is_none_is_refused(servers):
    text = r"\[LocalServer.shard\] expected routing as Routing, got 2 \(table 'user' on /job:ps"
    with pytest.raises(TypeError, match=text):
        servers[0].shard(CONFIG, 2)


def test_another_learning_rate_is_no_other_config(servers):
    shard = servers[0].shard(CONFIG)
    assert servers[0].shard(TableConfig("user", Segment(1, SGD(0.5)))) is shard


def test_a_table_that_was_closed_is_made_anew(servers):
    table = servers[0].shard(CONFIG).table
    table.assign(keys(7), column(1))
    table.close()
    assert len(servers[0].shard(CONFIG).table) == 0


def test_another_shape_of_a_parameter_is_refused(servers):
    servers[0].parameter("bias", torch.zeros(2))
    text = (
        r"\[LocalServer.parameter\] expected the shape and dtype that the parameter has, "
        r"\(\(2,\), torch.float32\), got \(\(3,\), torch.float32\) "
        r"\(parameter 'bias' on /job:ps/task:0/device:CPU:0\)"
    )
    with pytest.raises(ValueError, match=text):
        servers[0].parameter("bias", torch.zeros(3))


def test_a_server_that_is_restarted_has_nothing_and_the_other_all(servers):
    for i in range(2):
        servers[i].parameter("bias", torch.ones(1))
        servers[i].marks.add("seen")
    old = DistributedHashTable(CONFIG, servers).assign(keys(2, 3), column(2, 3))
    server = servers.restart(1)
    assert servers[1] is server
    assert (server.label, server.parameter_names, server.marks) == (ps_label(1), [], set())
    assert (servers[0].parameter_names, servers[0].marks) == (["bias"], {"seen"})
    again = DistributedHashTable(CONFIG, servers).table
    assert again.contains(keys(2, 3)).tolist() == [True, False]
    with pytest.raises(FailedPreconditionError, match="expected an open table"):
        old.lookup(keys(3))


def test_a_table_knows_the_servers_of_its_shards(servers):
    labels = [ps_label(0), ps_label(1)]
    assert DistributedHashTable(CONFIG, servers).table.devices == labels
    tables = DistributedMultiTypeHashTable({"user": CONFIG}, servers).tables
    assert tables["user"].devices == labels
    assert servers[0].shard(TableConfig("own", Segment(1))).device == ps_label(0)


@pytest.mark.parametrize("verb", ["shard", "parameter"])
def test_a_closed_server_takes_nothing(servers, verb):
    table = servers[0].shard(CONFIG).table
    servers.close()
    arguments = {"shard": (CONFIG,), "parameter": ("bias", torch.zeros(1))}[verb]
    text = (
        rf"\[LocalServer.{verb}\] expected an open server, got a closed one "
        r"\(/job:ps/task:0/device:CPU:0\)"
    )
    with pytest.raises(FailedPreconditionError, match=text):
        getattr(servers[0], verb)(*arguments)
    with pytest.raises(FailedPreconditionError, match="expected an open table"):
        len(table)


def test_the_state_of_an_optimizer_stays_with_its_parameter():
    with LocalServers(1) as servers:
        servers[0].state("weight")["step"] = 3
        assert servers[0].state("weight") == {"step": 3}
        assert servers[0].state("bias") == {}
    with pytest.raises(FailedPreconditionError, match=r"^\[LocalServer.state\] expected an open"):
        servers[0].state("weight")


class TestSweeps:
    def test_each_server_sweeps_its_shard_until_it_is_closed(self):
        times = [5 * 86_400]
        config = TableConfig("user", Segment(1), expiry=Expiry(1))
        with LocalServers(2) as servers:
            table = ShardedTable.over(config, servers.shards(config, PartitionRouting(2)))
            table.assign(torch.arange(20), torch.ones(20, 1), now=0)
            table.assign(torch.arange(2), torch.ones(2, 1), now=2 * 86_400)
            servers.sweep("user", 3600, lambda: times[0])
            sweeps = [servers[i].sweeps["user"] for i in range(2)]
            assert [sweep.check() for sweep in sweeps] == [None, None]
            times[0] += 3600
            assert sum(sweep.check() for sweep in sweeps) == 18
            assert len(table) == 2
            servers.restart(0)
            assert [sweep.is_running for sweep in sweeps] == [False, True]
        assert not any(sweep.is_running for sweep in sweeps)

    def test_another_interval_replaces_a_sweep(self):
        config = TableConfig("user", Segment(1), expiry=Expiry(1))
        with LocalServers(1) as servers:
            servers[0].table(config)
            first = servers[0].sweep("user", 3600)
            assert servers[0].sweep("user", 3600) is first
            second = servers[0].sweep("user", 60)
            assert (first.is_running, second.is_running) == (False, True)

    def test_a_sweep_needs_its_table(self):
        text = r"\[LocalServer.sweep\] expected a shard of the table, got none of 'user' .*task:0"
        with LocalServers(1) as servers, pytest.raises(NotFoundError, match=text):
            servers.sweep("user", 3600)
