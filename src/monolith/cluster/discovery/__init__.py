"""Where the servers of a job are."""

from monolith.cluster.discovery.host_files import HostServiceDiscovery
from monolith.cluster.discovery.service_discovery import ServiceDiscovery

__all__ = ["HostServiceDiscovery", "ServiceDiscovery"]
