"""Import path of the reference system; see `monolith.embedding.distributed_table`."""

from monolith.embedding.distributed_table import DistributedHashTable as DistributedHashTable
from monolith.embedding.local_servers import ps_device as ps_device
