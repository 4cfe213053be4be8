"""Tables whose rows are spread over shards and servers."""

from monolith.cluster.remote_servers import RemoteServers
from monolith.cluster.servers import LocalServers, Servers
from monolith.cluster.sharded_table import ShardedTable
from monolith.cluster.zmq.connect import connect_servers, find_servers

__all__ = [
    "LocalServers",
    "RemoteServers",
    "Servers",
    "ShardedTable",
    "connect_servers",
    "find_servers",
]
