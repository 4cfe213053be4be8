"""Tables of the reference system."""

from monolith.native_training.tables.distributed_multi_type_table import (
    DistributedMultiTypeHashTable,
)
from monolith.native_training.tables.distributed_table import DistributedHashTable
from monolith.native_training.tables.partitioned_table import PartitionedHashTable
from monolith.native_training.tables.touched_key_set import TouchedKeySet

__all__ = [
    "DistributedHashTable",
    "DistributedMultiTypeHashTable",
    "PartitionedHashTable",
    "TouchedKeySet",
]
