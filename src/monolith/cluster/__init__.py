"""Tables whose rows are spread over shards and servers."""

from monolith.cluster.servers import LocalServers
from monolith.cluster.sharded_table import ShardedTable

__all__ = [
    "LocalServers",
    "ShardedTable",
]
