"""Framing of records in a stream, and keys of data sources.

    header | u64 length | bytes of the record

All numbers are little-endian. Frames of TFRecord files differ, see `monolith.util.tfrecord`.
"""

import struct
from dataclasses import dataclass

_ZEROS = bytes(8)
_INT32 = 1 << 32


@dataclass(frozen=True, slots=True)
class Framing:
    """Header before the length of each record; empty if all options are off.

    Args:
        lagrangex_header: whether the header has 8 bytes: type of the record, and key of its data
            source. Other options are ignored then.
        kafka_dump_prefix: whether the header begins with 8 bytes: the size of the sort id, or 16
            bytes if these are 0.
        has_sort_id: whether a sort id follows, with its size unless `kafka_dump_prefix` gave the
            size.
        kafka_dump: whether 8 more bytes follow.

    Example:
        >>> Framing(has_sort_id=True).frame(b"ab").hex()
        '000000000000000002000000000000006162'
    """

    lagrangex_header: bool = False
    kafka_dump_prefix: bool = False
    has_sort_id: bool = False
    kafka_dump: bool = False

    @property
    def flags(self) -> int:
        """The options as flags of the core."""
        return (
            2 * self.lagrangex_header
            + 4 * self.kafka_dump_prefix
            + 8 * self.has_sort_id
            + 16 * self.kafka_dump
        )

    def frame(self, record: bytes, *, record_type: int = 0, source_key: int = 0) -> bytes:
        """Return the record with its header; only a lagrangex header has type and key."""
        if self.lagrangex_header:
            header = struct.pack("<Q", source_key & 0xFFFFFF00 | record_type)
        else:
            num_words = 2 * self.kafka_dump_prefix + self.has_sort_id + self.kafka_dump
            header = _ZEROS * num_words
        return header + struct.pack("<Q", len(record)) + record


def java_hash_code(name: str) -> int:
    """Return 31 * hash + byte over the UTF-8 bytes, as a signed 32-bit number.

    Example:
        >>> java_hash_code("datasource_inst")
        -1487072768
    """
    code = 0
    for byte in name.encode():
        code = (31 * code + byte) % _INT32
    return code - _INT32 if code >= _INT32 // 2 else code


def data_source_key(name: str) -> int:
    """Return the key of a data source: its hash, shifted left by 8, unsigned.

    Example:
        >>> data_source_key("pc"), data_source_key("cloud")
        (914176, 2782803200)
    """
    return (java_hash_code(name) << 8) % _INT32
