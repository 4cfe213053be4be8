"""Find the address of this machine, which other machines are told."""

import socket

from monolith import environment


def local_ip() -> str:
    """Return the first address of this host's name, or else the name's first IPv6 address.

    Raises:
        socket.gaierror: The name has no address at all.
    """
    name = socket.gethostname()
    try:
        addresses = socket.getaddrinfo(name, None)
    except socket.gaierror:
        addresses = socket.getaddrinfo(name, None, socket.AF_INET6)
    return str(addresses[0][4][0])


def local_host() -> str:
    """Return the address that the launch environment gives this machine, or else `local_ip`."""
    host = environment.announced_host() or local_ip()
    assert host, "local_ip never returns an empty address"
    return host
