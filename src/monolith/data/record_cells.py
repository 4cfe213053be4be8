"""Columns of a table as bytes of each row, for `RecordWriter`."""

import struct
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from monolith.util.protobuf import put_bytes, put_varint, varint

__all__ = ["Cells", "LINE_ID", "cells_of", "line_ids"]

LINE_ID = "line_id."
# LineId: number, and how the field stands on the wire.
_LINE_FIELDS = MappingProxyType(
    {
        "uid": (2, "fixed64"),
        "req_time": (3, "varint"),
        "item_id": (4, "fixed64"),
        "actions": (6, "packed"),
        "chnid": (19, "varint"),
        "pre_actions": (23, "packed"),
        "sample_rate": (27, "float"),
        "special_strategies": (39, "repeated"),
        "device_type": (41, "string"),
        "cid": (48, "string"),
        "user_id": (49, "string"),
        "is_draw": (87, "varint"),
        "rank": (145, "varint"),
        "data_source_name": (235, "string"),
    }
)


@dataclass(frozen=True)
class Cells:
    """The values of each row: little-endian numbers in one piece, or strings; None if missing."""

    kind: str  # "ids", "floats" or "strings"
    rows: list[list[bytes] | None]

    @property
    def is_strings(self) -> bool:
        """Whether each piece of a row is a value."""
        return self.kind == "strings"

    def varints(self, row: int) -> bytes:
        """The ids of a row as varints."""
        (data,) = self.rows[row] or [b""]
        return b"".join(varint(number) for (number,) in struct.iter_unpack("<q", data))

    def floats(self, row: int) -> bytes:
        """The numbers of a row as floats, whatever they are."""
        (data,) = self.rows[row] or [b""]
        if self.kind == "floats":
            return data
        numbers = [number for (number,) in struct.iter_unpack("<q", data)]
        return struct.pack(f"<{len(numbers)}f", *numbers)


def cells_of(name: str, column: pa.ChunkedArray) -> Cells:
    """The rows of a column of numbers, strings, or lists of them.

    Raises:
        TypeError: a column of another type.
    """
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    is_list = is_list or pa.types.is_fixed_size_list(kind)
    item = kind.value_type if is_list else kind
    rows = column.to_pylist()
    lists = rows if is_list else [None if row is None else [row] for row in rows]
    if pa.types.is_integer(item):
        return Cells("ids", [_pack(row, np.int64) for row in lists])
    if pa.types.is_floating(item) or pa.types.is_boolean(item):
        return Cells("floats", [_pack(row, np.float32) for row in lists])
    if pa.types.is_string(item) or pa.types.is_large_string(item):
        return Cells(
            "strings", [None if row is None else [text.encode() for text in row] for row in lists]
        )
    raise TypeError(
        f"[RecordWriter] expected column {name!r} of numbers, strings or lists of them, got type "
        f"{kind}"
    )


def _pack(row: list[float] | None, dtype: type) -> list[bytes] | None:
    if row is None:
        return None
    if dtype is np.int64:  # unsigned numbers keep their bits
        return [b"".join(int(n).to_bytes(8, "little", signed=n < 0) for n in row)]
    return [np.asarray(row, dtype).tobytes()]


def line_ids(table: pa.Table) -> Cells | None:
    """Serialized line ids of the columns that begin with `line_id.`; None if there is none.

    Raises:
        ValueError: a column that a LineId does not have.
    """
    names = [name for name in table.column_names if name.startswith(LINE_ID)]
    if not names:
        return None
    columns = []
    for name in names:
        field = name.removeprefix(LINE_ID)
        if field not in _LINE_FIELDS:
            raise ValueError(f"{field} is not in line id, pls check!")
        columns.append((_LINE_FIELDS[field], table.column(name).to_pylist()))
    columns.sort(key=lambda column: column[0][0])
    rows: list[list[bytes] | None] = []
    for row in range(table.num_rows):
        parts = [_line_field(*field, values[row]) for field, values in columns]
        rows.append([b"".join(parts)])
    return Cells("strings", rows)


def _line_field(number: int, form: str, value: object) -> bytes:
    if value is None:
        return b""
    if isinstance(value, list):
        if form == "packed":
            return put_bytes(number, b"".join(varint(each) for each in value))
        return b"".join(put_varint(number, each) for each in value)
    if isinstance(value, str):
        return put_bytes(number, value.encode())
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    assert isinstance(value, int)
    if form == "fixed64":
        return varint(number << 3 | 1) + value.to_bytes(8, "little", signed=value < 0)
    return put_varint(number, value)
