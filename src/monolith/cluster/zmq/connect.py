"""Connect to the servers of a job."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monolith.cluster.discovery import ServiceDiscovery
from monolith.cluster.remote_servers import RemoteServers
from monolith.cluster.servers import PS_JOB_NAME
from monolith.cluster.zmq.addresses import check_address
from monolith.cluster.zmq.client_loop import ClientLoop
from monolith.cluster.zmq.curve_keys import CurveKeys
from monolith.cluster.zmq.zmq_connection import ServerAddress, ZmqConnection
from monolith.errors import InvalidArgumentError, NotFoundError


def connect_servers(
    addresses: Sequence[str],
    *,
    keys: CurveKeys | None = None,
    **options: Any,
) -> RemoteServers:
    """Connect to servers at fixed addresses.

    Args:
        addresses: Address of each server, in the order of their numbers, as `host:port` or
            `ipc:///path`.
        keys: CURVE keys of the job; None for servers without keys.
        options: Options of `RemoteServers`: worker, timeout_seconds, transfer.

    Raises:
        InvalidArgumentError: An address is none, comes twice, or is that of another server.
        UnavailableError: A server does not answer.
    """
    checked = [check_address("[connect_servers]", address) for address in addresses]
    if not checked or len(set(checked)) < len(checked):
        raise InvalidArgumentError(
            "[connect_servers] expected the addresses of one or more different servers, got "
            f"{', '.join(checked) or 'none'}"
        )
    finders = [functools.partial(str, address) for address in checked]
    return _connect(finders, keys, options)


def find_servers(
    discovery: ServiceDiscovery,
    num_servers: int,
    *,
    keys: CurveKeys | None = None,
    **options: Any,
) -> RemoteServers:
    """Connect to the servers that a discovery knows, also those that register later or move.

    Args:
        discovery: Knows the servers by the name "ps"; closed by the caller.
        num_servers: Number of servers.
        keys: CURVE keys of the job; None for servers without keys.
        options: Options of `RemoteServers`: worker, timeout_seconds, transfer.
    """
    if num_servers < 1:
        raise InvalidArgumentError(f"[find_servers] expected num_servers >= 1, got {num_servers}")

    def find(index: int) -> str:
        address = discovery.query(PS_JOB_NAME).get(index)
        if not address:
            raise NotFoundError(
                f"[find_servers] expected server {index} of {num_servers} to be registered, got "
                "none yet"
            )
        return address

    finders = [functools.partial(find, index) for index in range(num_servers)]
    return _connect(finders, keys, options)


def _connect(
    finders: Sequence[Callable[[], str]], keys: CurveKeys | None, options: Mapping[str, Any]
) -> RemoteServers:
    loop = ClientLoop()
    try:
        connections = [
            ZmqConnection(loop, ServerAddress(index, len(finders), find, keys))
            for index, find in enumerate(finders)
        ]
        return RemoteServers(connections, **options)
    except BaseException:
        loop.close()
        raise
