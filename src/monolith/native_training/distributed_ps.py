"""Import path of the reference system; see `monolith.embedding`."""

from monolith.embedding.distributed_multi_type_table import (
    DistributedMultiTypeHashTable as DistributedMultiTypeHashTable,
)
from monolith.embedding.distributed_table import DistributedHashTable as DistributedHashTable
from monolith.embedding.local_servers import ps_device as ps_device
from monolith.embedding.partitioned_table import PartitionedHashTable as PartitionedHashTable
from monolith.embedding.table_merge import get_sub_table_name as get_sub_table_name
