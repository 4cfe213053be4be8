"""Frames of TFRecord files and of TensorBoard's event files.

    u64 length | checksum of the length | bytes of the record | checksum of the bytes

Numbers are little-endian; a checksum is a masked CRC-32C of 4 bytes.
"""

import struct

import numpy as np

from monolith.ops.compiled import load_native


def tfrecord_frame(record: bytes) -> bytes:
    """Return the record as a frame of a TFRecord file.

    Example:
        >>> len(tfrecord_frame(b"ab"))
        18
    """
    size = struct.pack("<Q", len(record))
    return b"".join([size, _masked_crc(size), record, _masked_crc(record)])


def _masked_crc(data: bytes) -> bytes:
    array = np.frombuffer(data, np.uint8)
    return struct.pack("<I", load_native().masked_crc32c(array.ctypes.data, len(data)))
