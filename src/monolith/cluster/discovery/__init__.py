"""Where the processes of a job are."""

from monolith.cluster.discovery.consul import ConsulServiceDiscovery
from monolith.cluster.discovery.host_files import HostServiceDiscovery
from monolith.cluster.discovery.mlp import MLPServiceDiscovery
from monolith.cluster.discovery.mlp_env import MLPEnv
from monolith.cluster.discovery.service_discovery import Place, ServiceDiscovery
from monolith.cluster.discovery.tf_config import TfConfigServiceDiscovery
from monolith.cluster.discovery.uris import open_discovery
from monolith.cluster.discovery.zookeeper import ZKServiceDiscovery

__all__ = [
    "ConsulServiceDiscovery",
    "HostServiceDiscovery",
    "MLPEnv",
    "MLPServiceDiscovery",
    "Place",
    "ServiceDiscovery",
    "TfConfigServiceDiscovery",
    "ZKServiceDiscovery",
    "open_discovery",
]
