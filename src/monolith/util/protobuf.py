"""Protobuf messages by field numbers, without generated code; meant for small messages.

The core decodes large numbers of records, see `monolith.data`.
"""

import struct
from collections.abc import Iterator

from monolith.errors import DataLossError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_SMALL = tuple(bytes([number]) for number in range(128))


def varint(number: int) -> bytes:
    """Return the bytes of a number; a negative number takes ten bytes.

    Example:
        >>> varint(300).hex(), len(varint(-1))
        ('ac02', 10)
    """
    if 0 <= number < len(_SMALL):
        return _SMALL[number]
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def put_varint(field: int, number: int) -> bytes:
    """Return the bytes of a field with an integer, an enum or a bool."""
    return varint(field << 3 | _VARINT) + varint(number)


def put_bytes(field: int, data: bytes) -> bytes:
    """Return the bytes of a field with bytes, a string, a message or packed numbers."""
    return varint(field << 3 | _BYTES) + varint(len(data)) + data


def put_fixed32(field: int, number: float) -> bytes:
    """Return the bytes of a field with a float."""
    return varint(field << 3 | _FIXED32) + struct.pack("<f", number)


def put_fixed64(field: int, number: float) -> bytes:
    """Return the bytes of a field with a double."""
    return varint(field << 3 | _FIXED64) + struct.pack("<d", number)


def signed(number: int) -> int:
    """Return the signed number of a varint of type int32 or int64."""
    return number - (1 << 64) if number >= 1 << 63 else number


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message in order: field number, and an integer or bytes.

    Numbers of fixed width are returned as bytes.

    Raises:
        DataLossError: the message is truncated, or is no message.

    Example:
        >>> list(fields(put_varint(3, 10) + put_bytes(1, b"a")))
        [(3, 10), (1, b'a')]
    """
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            number, at = _read_varint(message, at)
            yield tag >> 3, number
            continue
        if kind == _BYTES:
            size, at = _read_varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise DataLossError(f"[protobuf] expected wire type 0, 1, 2 or 5, got {kind}")
        if size > len(message) - at:
            raise DataLossError(
                f"[protobuf] expected {size} bytes of field {tag >> 3}, got {len(message) - at}"
            )
        yield tag >> 3, message[at : at + size]
        at += size


def varints(data: bytes) -> list[int]:
    """Return the integers of a packed field.

    Raises:
        DataLossError: the last integer is truncated, or an integer is too long.

    Example:
        >>> varints(varint(1) + varint(300))
        [1, 300]
    """
    numbers, at = [], 0
    while at < len(data):
        number, at = _read_varint(data, at)
        numbers.append(number)
    return numbers


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    number = 0
    for i in range(min(_MAX_VARINT_BYTES, len(message) - at)):
        byte = message[at + i]
        number |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return number & ((1 << 64) - 1), at + i + 1
    raise DataLossError(f"[protobuf] expected a whole varint at byte {at}, got none")
