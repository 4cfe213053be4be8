"""CRC-32C of what is written and read."""

from typing import Any

from monolith.embedding.disk.buffers import address_of
from monolith.ops.native import load_native

__all__ = ["crc32c"]


def crc32c(data: Any, before: int = 0) -> int:
    """CRC-32C of the bytes of a buffer; the GIL is released.

    Args:
        data: whatever has a contiguous buffer.
        before: checksum of the bytes before.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    number: int = load_native().crc32c(address_of(data), memoryview(data).nbytes, before)
    return number
