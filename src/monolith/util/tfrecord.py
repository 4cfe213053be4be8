"""Frames of TFRecord files and of TensorBoard's event files.

    u64 length | checksum of the length | bytes of the record | checksum of the bytes

Numbers are little-endian; a checksum is a masked CRC-32C of 4 bytes.
"""

import struct
from collections.abc import Iterator

import numpy as np

from monolith.errors import DataLossError
from monolith.ops.compiled import load_native

_SIZE, _CRC = 8, 4


def tfrecord_frame(record: bytes) -> bytes:
    """Return the record as a frame of a TFRecord file.

    Example:
        >>> len(tfrecord_frame(b"ab"))
        18
    """
    size = struct.pack("<Q", len(record))
    return b"".join([size, _masked_crc(size), record, _masked_crc(record)])


def tfrecord_records(data: bytes, where: str) -> Iterator[tuple[int, bytes]]:
    """Yield the records of a small TFRecord file, with the offsets of their frames.

    Args:
        data: bytes of the whole file.
        where: path of the file for messages.

    Raises:
        DataLossError: a frame is truncated, or a checksum is wrong.

    Example:
        >>> list(tfrecord_records(tfrecord_frame(b"ab") + tfrecord_frame(b""), "a.tfrecord"))
        [(0, b'ab'), (18, b'')]
    """
    at = 0
    while at < len(data):
        size = data[at : at + _SIZE]
        begin = at + _SIZE + _CRC
        if len(data) < begin or data[at + _SIZE : begin] != _masked_crc(size):
            raise _damage("a length with its checksum", where, at)
        end = begin + int.from_bytes(size, "little")
        if len(data) < end + _CRC or data[end : end + _CRC] != _masked_crc(data[begin:end]):
            raise _damage(f"{end - begin} bytes with their checksum", where, at)
        yield at, data[begin:end]
        at = end + _CRC


def _damage(expected: str, where: str, at: int) -> DataLossError:
    return DataLossError(
        f"[tfrecord] expected {expected}, got others or the end of the file ({where}, record at "
        f"byte {at}); the file is damaged or foreign"
    )


def _masked_crc(data: bytes) -> bytes:
    array = np.frombuffer(data, np.uint8)
    return struct.pack("<I", load_native().masked_crc32c(array.ctypes.data, len(data)))
