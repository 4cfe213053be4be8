"""Discovery of the processes of a job, at the import path of the reference system."""

import enum
from collections.abc import Callable
from typing import Any, TypeVar

from monolith.cluster.discovery import (
    MLPServiceDiscovery,
    ServiceDiscovery,
    TfConfigServiceDiscovery,
    consul,
    retries,
    zookeeper,
)
from monolith.cluster.discovery.consul_agent import ConsulAgent
from monolith.cluster.discovery.zookeeper_session import ZKListener
from monolith.native_training.zk_utils import MonolithKazooClient, default_zk_servers

__all__ = [
    "ConsulServiceDiscovery",
    "MLPServiceDiscovery",
    "MonolithKazooClient",
    "ServiceDiscovery",
    "ServiceDiscoveryType",
    "TfConfigServiceDiscovery",
    "ZKListener",
    "ZKServiceDiscovery",
    "deregister_all",
    "retry_with_socket_error",
]

_T = TypeVar("_T")

# Tests change these two; calls read them anew.
_RETRY_MAX_BACKOFF_SECS = retries.RETRY_MAX_BACKOFF_SECONDS
_ZK_REGISTRATION_PERIOD = zookeeper.ZK_REGISTRATION_PERIOD_SECONDS


class ServiceDiscoveryType(enum.Enum):
    """Kind of a discovery, as configs name it."""

    PRIMUS = 1
    CONSUL = 2
    ZK = 3
    MLP = 4


def retry_with_socket_error(call: Callable[[], _T]) -> _T:
    """Return the result of a call, which is tried up to 5 times after an error of the network."""
    return retries.retry_with_socket_error(call, _RETRY_MAX_BACKOFF_SECS)


class ConsulServiceDiscovery(consul.ConsulServiceDiscovery):
    """`monolith.cluster.discovery.ConsulServiceDiscovery` with the pauses of this module.

    Args:
        consul_id: Name of the service: one for each job.
        retry_time_secs: Seconds between two looks whether an older registration is gone.
        agent: Agent to talk to; None takes that of `CONSUL_HTTP_ADDR` and `CONSUL_HTTP_TOKEN`.
    """

    def __init__(
        self, consul_id: str, retry_time_secs: float = 3.0, *, agent: ConsulAgent | None = None
    ) -> None:
        super().__init__(
            consul_id,
            retry_time_secs,
            agent=ConsulAgent() if agent is None else agent,
            max_backoff_seconds=lambda: _RETRY_MAX_BACKOFF_SECS,
        )


class ZKServiceDiscovery(zookeeper.ZKServiceDiscovery):
    """`monolith.cluster.discovery.ZKServiceDiscovery` with the servers of `zk_utils`.

    Args:
        job_name: Name of the job.
        zk_server: Servers of ZooKeeper; None takes `default_zk_servers`.
        max_tries: Number of tries of `register` and `deregister`.
        delay: Seconds between two tries.

    Raises:
        ValueError: No server is given, and `zk_utils` has none.
    """

    def __init__(
        self, job_name: str, zk_server: str | None = None, max_tries: int = 3, delay: float = 5
    ) -> None:
        super().__init__(
            job_name,
            zk_server or default_zk_servers(),
            max_tries,
            delay,
            period_seconds=lambda: _ZK_REGISTRATION_PERIOD,
            make_client=_make_client,
        )


def _make_client(**options: Any) -> Any:
    return MonolithKazooClient(**options)


def deregister_all(consul_id: str) -> None:
    """Remove all processes that are registered under an id in Consul."""
    discovery = ConsulServiceDiscovery(consul_id)
    try:
        discovery.deregister_all()
    finally:
        discovery.close()
