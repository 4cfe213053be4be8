"""Connect to the servers of a job."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from monolith.cluster.connection import HostHandle, RemoteTransport
from monolith.cluster.discovery import ServiceDiscovery
from monolith.cluster.discovery.address_book import AddressBook
from monolith.cluster.remote_servers import RemoteServers
from monolith.cluster.servers import PS_JOB_NAME
from monolith.cluster.transport import ShardClient
from monolith.cluster.zmq.addresses import check_address
from monolith.cluster.zmq.client_loop import ClientLoop
from monolith.cluster.zmq.curve_keys import CurveKeys
from monolith.cluster.zmq.zmq_connection import ServerAddress, ZmqConnection
from monolith.errors import InvalidArgumentError
from monolith.table.arguments import WAIT_SECONDS

if TYPE_CHECKING:
    from typing_extensions import Self


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
    numbers: Sequence[int] | None = None,
    **options: Any,
) -> RemoteServers:
    """Connect to the servers that a discovery knows, also those that register later or move.

    The discovery is asked on a thread of its own, and only while a server is away.

    Args:
        discovery: Knows the servers by the name "ps"; closed by the caller.
        num_servers: Number of servers.
        numbers: Number of each server in the discovery, where `ServerHost.renumber` has changed
            them; None if they are those of the servers.
        keys: CURVE keys of the job; None for servers without keys.
        options: Options of `RemoteServers`: worker, timeout_seconds, transfer.
    """
    if num_servers < 1:
        raise InvalidArgumentError(f"[find_servers] expected num_servers >= 1, got {num_servers}")

    places = range(num_servers) if numbers is None else numbers
    book = AddressBook(discovery, PS_JOB_NAME)
    finders = [functools.partial(book.address, number) for number in places]
    return _connect(finders, keys, options)


class OneServer:
    """A connection to one of the servers that were started, also to one without a place in a job.

    Args:
        discovery: Knows the server by the name "ps".
        index: Number with which the server was started.
        num_servers: Number of servers that were started.
        keys: CURVE keys of the job; None for servers without keys.
        timeout_seconds: Maximum seconds that a call waits for its answer.
    """

    def __init__(
        self,
        discovery: ServiceDiscovery,
        index: int,
        num_servers: int,
        *,
        keys: CurveKeys | None = None,
        timeout_seconds: float = WAIT_SECONDS,
    ) -> None:
        book = AddressBook(discovery, PS_JOB_NAME)
        address = ServerAddress(index, num_servers, functools.partial(book.address, index), keys)
        self._handle = HostHandle()
        self._connection = ZmqConnection(ClientLoop(), address)
        transport = RemoteTransport(self._connection, self._handle, timeout_seconds)
        self._client = ShardClient("the server", [transport], owner="OneServer")

    def renumber(self, index: int, num_servers: int) -> None:
        """Give the server its place in a job; see `ServerHost.renumber`."""
        self._client.call("renumber", [(index, num_servers)])

    def end(self, num_workers: int) -> None:
        """Let the server end, with a job of so many workers or without one."""
        (self._handle.number,) = self._client.call("open_job", [(num_workers,)])
        self._client.call("end_job", [()])

    def close(self) -> None:
        """Close the connection. Closing twice is fine."""
        self._client.close()
        self._connection.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


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
