"""Give the hash tables that are spread over servers."""

from monolith.cluster.servers import ps_device as ps_device
from monolith.native_training.tables.distributed_multi_type_table import (
    DistributedMultiTypeHashTable as DistributedMultiTypeHashTable,
)
from monolith.native_training.tables.distributed_table import (
    DistributedHashTable as DistributedHashTable,
)
from monolith.native_training.tables.partitioned_table import (
    PartitionedHashTable as PartitionedHashTable,
)
from monolith.native_training.tables.table_merge import get_sub_table_name as get_sub_table_name
