import pytest

from monolith.cluster.servers import ps_device
from monolith.native_training import distributed_ps, utils
from monolith.native_training.tables import (
    DistributedHashTable,
    DistributedMultiTypeHashTable,
    PartitionedHashTable,
)
from monolith.native_training.tables.table_merge import get_sub_table_name
from monolith.native_training.test_utils import (
    create_test_ps_cluster,
    generate_test_hash_table_config,
)
from tests.suites.table_base import column, keys


def test_names_of_the_reference_system():
    assert distributed_ps.DistributedHashTable is DistributedHashTable
    assert distributed_ps.DistributedMultiTypeHashTable is DistributedMultiTypeHashTable
    assert distributed_ps.PartitionedHashTable is PartitionedHashTable
    assert distributed_ps.get_sub_table_name is get_sub_table_name
    assert distributed_ps.ps_device is ps_device


@pytest.mark.req("NT-UTIL-T1")
def test_label_of_a_server():
    assert utils.PS_JOB_NAME == "ps"
    assert utils.ps_device(3) == "/job:ps/task:3/device:CPU:0"


@pytest.mark.req("NT-TESTU-T2")
def test_a_cluster_of_two_servers_holds_a_table():
    servers, cluster = create_test_ps_cluster(2)
    with servers, servers.run():
        assert cluster == {"ps": ["local:0", "local:1"]}
        config = generate_test_hash_table_config(1).table("user")
        table = distributed_ps.DistributedHashTable(config).assign(keys(1, 2), column(3, 4))
        assert table.lookup(keys(2, 1)).tolist() == [[4], [3]]
        assert [servers[i].table_names for i in range(2)] == [["user"], ["user"]]
