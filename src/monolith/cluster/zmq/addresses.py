"""Check the addresses of servers: `tcp://host:port`, `host:port`, or `ipc:///path`."""

import ipaddress
import re
import socket

from monolith.errors import InvalidArgumentError

_TCP = re.compile(r"(?:tcp://)?(\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):([0-9]{1,5})")
_MAX_IPC_PATH = 107  # bytes of a path of a Unix socket


def check_address(where: str, address: str, *, with_any_port: bool = False) -> str:
    """Return the address with its scheme.

    Args:
        where: begins the message.
        address: as users write it.
        with_any_port: whether port 0, for one that the system chooses, is an address.
    """
    text = address.strip() if isinstance(address, str) else ""
    if text.startswith("ipc://"):
        path = text.removeprefix("ipc://")
        if path.startswith("/") and len(path.encode()) <= _MAX_IPC_PATH:
            return text
        raise InvalidArgumentError(
            f"{where} expected ipc:// with an absolute path of at most {_MAX_IPC_PATH} bytes, got "
            f"{address!r}"
        )
    match = _TCP.fullmatch(text)
    lowest = 0 if with_any_port else 1
    if match is None or not lowest <= int(match[2]) < 1 << 16:
        raise InvalidArgumentError(
            f"{where} expected an address as host:port, tcp://host:port or ipc:///path, got "
            f"{address!r}"
        )
    return f"tcp://{match[1]}:{int(match[2])}"


def is_local(address: str) -> bool:
    """Whether only this machine can reach a checked address."""
    if address.startswith("ipc://"):
        return True
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_wildcard(address: str) -> bool:
    """Whether a checked address stands for all addresses of this machine.

    Example:
        >>> is_wildcard("tcp://0.0.0.0:7000"), is_wildcard("tcp://127.0.0.1:7000")
        (True, False)
    """
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host == "*"


def numeric(address: str) -> str:
    """Return a checked address with the number of its host, at which a socket can listen.

    A host that cannot be resolved is left as it is.

    Example:
        >>> numeric("tcp://127.0.0.1:7000")
        'tcp://127.0.0.1:7000'
    """
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if address.startswith("ipc://") or host.startswith("[") or host == "*":
        return address
    try:
        return f"tcp://{socket.gethostbyname(host)}:{port}"
    except OSError:
        return address
