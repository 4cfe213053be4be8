"""ZooKeeper of the reference system: default servers, a client, and the removal of old jobs."""

import contextlib
import logging
import socket
import time

from monolith.cluster.discovery.kazoo_client import MonolithKazooClient, get_zk_auth_data
from monolith.cluster.discovery.zookeeper import ZK_ROOT
from monolith.environment import variables

__all__ = [
    "MonolithKazooClient",
    "clear_zk_path",
    "default_zk_servers",
    "get_zk_auth_data",
    "is_ipv6_only",
]

_log = logging.getLogger(__name__)

_PORT = 2181
# A deployment sets these: the hosts of its ZooKeeper.
_HOSTS: list[str] = []
_HOSTS_IPV6: list[str] = []

_HOST_VARIABLES = ("MY_HOST_IP", "MY_POD_IP", "MY_HOST_IPV6")
_MAX_AGE_SECONDS = 9 * 7 * 24 * 3600  # of a job that nobody writes any more


def is_ipv6_only() -> bool:
    """Whether this machine has no IPv4 address."""
    known = variables(*_HOST_VARIABLES)
    values = [known.get(name, "") for name in _HOST_VARIABLES]
    address: str | None
    if any(values):
        address = values[0] or values[1] or None
    else:
        try:
            address = socket.gethostbyname(socket.gethostname())
        except OSError:
            address = None
    _log.info("IPv4 address: %s; IPv6 only: %s", address, not address)
    return not address


def default_zk_servers(use_ipv6: bool = False) -> str:
    """Return the servers of this deployment as `host:port,host:port`; empty without servers.

    Args:
        use_ipv6: Whether to return the IPv6 addresses also where the machine has an IPv4 address.
    """
    if use_ipv6 or is_ipv6_only():
        return ",".join(f"[{host}]:{_PORT}" for host in _HOSTS_IPV6)
    return ",".join(f"{host}:{_PORT}" for host in _HOSTS)


def clear_zk_path(zk_server: str | None, job_name: str, force_clear_zk_path: bool) -> None:
    """Remove the nodes of jobs that nobody has written for 9 weeks, and those of one job.

    Args:
        zk_server: Servers of ZooKeeper; None takes `default_zk_servers`.
        job_name: Name of the job.
        force_clear_zk_path: Whether to remove the nodes of the job; otherwise they are refused.

    Raises:
        ValueError: No server is known, or the job has nodes and may not be cleared.
    """
    servers = zk_server or default_zk_servers()
    if not servers:
        raise ValueError(
            "[clear_zk_path] expected zk_server or servers in zk_utils._HOSTS, got neither"
        )
    client = MonolithKazooClient(servers)
    try:
        client.start()
        client.ensure_path(ZK_ROOT)
        children = client.get_children(ZK_ROOT)
        oldest = time.time() - _MAX_AGE_SECONDS
        for child in children:
            path = f"{ZK_ROOT}/{child}"
            with contextlib.suppress(Exception):  # another process may remove it, too
                _, stat = client.get(path)
                if stat.mtime // 1000 < oldest:
                    client.delete(path, recursive=True)
        path = f"{ZK_ROOT}/{job_name}"
        if client.exists(path):
            if not force_clear_zk_path:
                names = ",".join(client.get_children(ZK_ROOT))
                raise ValueError(f"there are [{names}] in monolith zk path")
            client.delete(path, recursive=True)
    finally:
        client.stop()
        client.close()
