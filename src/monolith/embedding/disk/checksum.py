"""CRC-32C of what is written and read."""

from typing import Any

import numpy as np

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
    array = np.frombuffer(data, np.uint8)
    number: int = load_native().crc32c(array.ctypes.data, array.nbytes, before)
    return number
