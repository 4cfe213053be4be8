"""Write addresses, find that of this host, and check who answers."""

import collections
import ipaddress
import platform
import socket
import threading
from collections.abc import Callable, Sequence

from monolith.util.host_address import local_ip

_Connect = Callable[[str, int, float], None]


class AddressFamily:
    """The two kinds of addresses."""

    IPV4 = "ipv4"
    IPV6 = "ipv6"


def is_ipv6_address(ip: str) -> bool:
    """Whether a text is an IPv6 address, without brackets and port.

    Example:
        >>> is_ipv6_address("::1"), is_ipv6_address("127.0.0.1"), is_ipv6_address("localhost")
        (True, False, False)
    """
    try:
        ipaddress.IPv6Address(str(ip))  # a number would be an address too
    except ValueError:
        return False
    return True


def concat_ip_and_port(ip: str, port: int) -> str:
    """Write host and port as one address.

    Example:
        >>> concat_ip_and_port("127.0.0.1", 10), concat_ip_and_port("::1", 10)
        ('127.0.0.1:10', '[::1]:10')
    """
    return f"[{ip}]:{port}" if is_ipv6_address(ip) else f"{ip}:{port}"


get_local_ip = local_ip


def is_ipv4_supported() -> bool:
    """Whether the address of this host is not an IPv6 address."""
    return not is_ipv6_address(get_local_ip())


def get_local_server_addr(port: int) -> str:
    """The address of a server of this host, for others."""
    return concat_ip_and_port(get_local_ip(), port)


def get_local_host() -> str:
    """The IPv4 address of this host's name, with `.local` where systems announce it so."""
    name = socket.gethostname()
    if platform.system() not in ("Linux", "Windows"):
        name += ".local"
    return socket.gethostbyname(name)


class NodeAliveChecker:
    """Connects to every address once, and tells which addresses answered.

    The constructor returns when all addresses are checked; nothing changes afterwards, so any
    thread may read. Addresses that do not answer are printed with the reason.

    Args:
        addrs: `host:port`; an IPv6 host stands in brackets.
        timeout: seconds for each connection.
        num_thread: how many are checked at once.
        connect: opens a connection to (host, port, timeout) and closes it, or raises.

    Raises:
        ValueError: `timeout` or `num_thread` is not positive.

    Example:
        >>> checker = NodeAliveChecker(["10.0.0.1:80"], connect=lambda host, port, timeout: None)
        >>> checker.all_nodes_alive(), checker.get_alive_nodes()
        (True, ['10.0.0.1:80'])
    """

    def __init__(
        self,
        addrs: Sequence[str],
        timeout: float = 1,
        num_thread: int = 10,
        *,
        connect: _Connect | None = None,
    ) -> None:
        if not (timeout > 0 and num_thread > 0):
            raise ValueError(
                "[NodeAliveChecker] expected timeout > 0 and num_thread > 0, "
                f"got {timeout} and {num_thread}"
            )
        self._addrs, self._timeout, self._num_thread = list(addrs), timeout, num_thread
        self._connect = connect or _connect
        self._alive: set[str] = set()
        self._dead: dict[str, Exception] = {}
        self._lock = threading.Lock()
        self._queue = collections.deque(self._addrs)
        self._start()

    def _start(self) -> None:
        """Check all addresses on threads, and print the dead ones."""
        threads = [
            threading.Thread(target=self._check_open, name=f"monolith-ping-{number}", daemon=True)
            for number in range(min(self._num_thread, len(self._addrs)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for addr in self._addrs:
            if addr in self._dead:
                print(f"cannot connect to {addr}, because {self._dead[addr]}")

    def _check_open(self) -> None:
        """Check the addresses of the queue until it is empty."""
        while True:
            try:
                addr = self._queue.popleft()
            except IndexError:
                return
            try:
                self._ping(addr)
            except Exception as error:  # of a class that replaces `_ping`
                self._bury(addr, error)

    def _ping(self, addr: str) -> None:
        """Connect to an address, and note whether it is alive."""
        try:
            self._connect(*_split_address(addr), self._timeout)
        except Exception as error:  # whatever it is, only this address suffers
            self._bury(addr, error)
        else:
            with self._lock:
                self._alive.add(addr)

    def _bury(self, addr: str, error: Exception) -> None:
        with self._lock:
            self._dead[addr] = error

    def all_nodes_alive(self) -> bool:
        """Whether every address answered."""
        return not self._dead

    def get_alive_nodes(self) -> list[str]:
        """Addresses that answered, in any order."""
        return list(self._alive)

    def get_dead_nodes(self) -> list[str]:
        """Addresses that did not answer, or are none, in any order."""
        return list(self._dead)

    def get_addrs(self) -> list[str]:
        """All addresses, as they were given."""
        return list(self._addrs)


def _split_address(addr: str) -> tuple[str, int]:
    host, _, port = addr.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or (":" in bare and bare == host) or not (port.isascii() and port.isdigit()):
        raise ValueError(
            f"[NodeAliveChecker] expected host:port, or [host]:port for IPv6, got {addr!r}"
        )
    return bare, int(port)


def _connect(host: str, port: int, timeout: float) -> None:
    family = socket.AF_INET6 if is_ipv6_address(host) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect((host, port))
