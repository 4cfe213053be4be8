"""Conversion of columns of a table to the bytes of each row, for `RecordWriter`."""

import struct
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from monolith.util.protobuf import put_bytes, put_varint, varint

LINE_ID = "line_id."
# Fields of LineId: number and wire form.
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
    """Values of each row: consecutive little-endian numbers, or strings; None if missing."""

    kind: str  # "ids", "floats" or "strings"
    rows: list[list[bytes] | None]

    def lists(self, *, with_varints: bool = False) -> list[bytes | None]:
        """Return the rows as messages `repeated X value = 1`, with packed numbers."""
        if self.kind == "strings":
            return [
                None if row is None else b"".join(put_bytes(1, value) for value in row)
                for row in self.rows
            ]
        heads: dict[int, bytes] = {0: b""}
        messages: list[bytes | None] = []
        for row in self.rows:
            if row is None:
                messages.append(None)
                continue
            data = _varints(row[0]) if with_varints and self.kind == "ids" else row[0]
            size = len(data)
            if size not in heads:
                heads[size] = put_bytes(1, data)[:-size]
            messages.append(heads[size] + data)
        return messages

    def pieces(self) -> list[bytes | None]:
        """Return the first piece of each row."""
        return [None if row is None else row[0] for row in self.rows]

    def floats(self) -> list[bytes | None]:
        """Return the numbers of the rows as floats."""
        if self.kind == "floats":
            return self.pieces()
        return [
            None if row is None else np.frombuffer(row[0], np.int64).astype(np.float32).tobytes()
            for row in self.rows
        ]


def _varints(data: bytes) -> bytes:
    return b"".join([varint(number) for (number,) in struct.iter_unpack("<q", data)])


def cells_of(name: str, column: pa.ChunkedArray) -> Cells:
    """Return the rows of a column of numbers, strings, or lists of these.

    Raises:
        TypeError: the column has another type.
    """
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    is_list = is_list or pa.types.is_fixed_size_list(kind)
    item = kind.value_type if is_list else kind
    if pa.types.is_integer(item):
        dtype = np.uint64 if pa.types.is_uint64(item) else np.int64
        return Cells("ids", _pack(column, is_list, dtype))
    if pa.types.is_floating(item) or pa.types.is_boolean(item):
        return Cells("floats", _pack(column, is_list, np.float32))
    if pa.types.is_string(item) or pa.types.is_large_string(item):
        lists = [row if is_list or row is None else [row] for row in column.to_pylist()]
        return Cells(
            "strings",
            [
                None if row is None else [text.encode() for text in row if text is not None]
                for row in lists
            ],
        )
    raise TypeError(
        f"[RecordWriter] expected column {name!r} of numbers, strings or lists of them, got type "
        f"{kind}"
    )


def _pack(column: pa.ChunkedArray, is_list: bool, dtype: type) -> list[list[bytes] | None]:
    """Return the bytes of the numbers of each row."""
    lengths = column.is_valid().to_numpy().astype(np.int64)
    is_missing = (lengths == 0).tolist()
    flat = column
    if is_list:
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
        flat = pc.list_flatten(column)
        num_valid = np.cumsum(np.append(0, flat.is_valid()))  # missing values are left out
        lengths = np.diff(num_valid[np.cumsum(np.append(0, lengths))])
    items = flat.drop_null().to_numpy().astype(dtype)
    data, size = items.tobytes(), items.itemsize
    ends = (np.cumsum(lengths) * size).tolist()
    begins = [0, *ends[:-1]]
    return [
        None if missing else [data[begin:end]]
        for missing, begin, end in zip(is_missing, begins, ends, strict=True)
    ]


def line_ids(table: pa.Table) -> Cells | None:
    """Return the serialized line ids of the columns named `line_id.*`; None without such a column.

    Raises:
        ValueError: a LineId has no such field.
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
    if value is None or value == []:
        return b""
    if isinstance(value, list):
        if form == "packed":
            return put_bytes(number, b"".join(varint(item) for item in value))
        return b"".join(put_varint(number, item) for item in value)
    if isinstance(value, str):
        return put_bytes(number, value.encode())
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    assert isinstance(value, int)
    if form == "fixed64":
        return varint(number << 3 | 1) + value.to_bytes(8, "little", signed=value < 0)
    return put_varint(number, value)
