"""Give addresses, and the check of who answers at them."""

from monolith.native_training.util.net import (
    AddressFamily,
    NodeAliveChecker,
    concat_ip_and_port,
    get_local_ip,
    get_local_server_addr,
    is_ipv4_supported,
    is_ipv6_address,
)

__all__ = [
    "AddressFamily",
    "NodeAliveChecker",
    "concat_ip_and_port",
    "get_local_ip",
    "get_local_server_addr",
    "is_ipv4_supported",
    "is_ipv6_address",
]
