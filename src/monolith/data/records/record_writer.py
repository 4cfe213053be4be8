"""Writing of the rows of a table as records, for tests and conversions."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import fsspec
import numpy as np
import pyarrow as pa

from monolith.data.files.byte_stream import compress, compression_of
from monolith.data.records.cells import LINE_ID, Cells, cells_of, line_ids
from monolith.data.records.framing import Framing
from monolith.data.records.record_columns import RECORD_TYPES
from monolith.util.protobuf import put_bytes, put_varint, varint
from monolith.util.tfrecord import tfrecord_frame

_LABEL, _WEIGHT = "label", "instance_weight"
# Field numbers of payloads with ids, floats and strings.
_FEATURE = MappingProxyType({"ids": 2, "floats": 3, "strings": 6})
_TF_FEATURE = MappingProxyType({"ids": 3, "floats": 2, "strings": 1})
_INSTANCE_FEATURE = MappingProxyType({"ids": 2, "floats": 3, "strings": 5})
_V1_BITS, _V2_BITS = 54, 48
_NUM_SLOTS = 1 << 10  # number of slots of fids v1


@dataclass(frozen=True)
class RecordWriter:
    """Converts the rows of tables to records.

    Integers become ids (fids v2; integers in `tf.train.Example`), strings become strings, other
    numbers floats; missing values are left out. The column `label` is the label, `instance_weight`
    the weight, and columns `line_id.<field>` form the line id. In an Instance, columns `slot_<n>`
    and `fc_slot_<n>` of fids v2 become flat fids v1.

    Args:
        kind: "example", "example_batch", "instance" or "tf_example".
        framing: headers of the records; ignored for "tf_example", which has TFRecord frames.
        compression: compression of the files; "auto" takes it from the ends of their names.
        batch_size: number of rows of an ExampleBatch.

    Raises:
        ValueError: the kind is unknown, or the batch size is below 1.

    Example:
        >>> RecordWriter("example").records(pa.table({"user": [7]}))[0].hex()
        '0a140a0475736572120c120a0a080700000000000000'
    """

    kind: str
    framing: Framing = field(default_factory=Framing)
    compression: str = "auto"
    batch_size: int = 4096

    def __post_init__(self) -> None:
        if self.kind not in RECORD_TYPES:
            raise ValueError(
                f"[RecordWriter] expected kind {sorted(RECORD_TYPES)}, got {self.kind!r}"
            )
        if self.batch_size < 1:
            raise ValueError(
                f"[RecordWriter] expected a batch_size of at least 1, got {self.batch_size}"
            )

    def records(self, table: pa.Table) -> list[bytes]:
        """Return the bytes of the records."""
        if self.kind == "example_batch":
            starts = range(0, table.num_rows, self.batch_size)
            return [_batch(table.slice(start, self.batch_size)) for start in starts]
        make = {"example": _example, "instance": _instance, "tf_example": _tf_example}[self.kind]
        columns = make(table)
        if not columns:
            return [b""] * table.num_rows
        rows = [b"".join(parts) for parts in zip(*columns, strict=True)]
        return [put_bytes(1, row) for row in rows] if self.kind == "tf_example" else rows

    def frames(self, records: Iterable[bytes]) -> bytes:
        """Return the records as the bytes of a file without compression."""
        if self.kind == "tf_example":
            return b"".join(tfrecord_frame(record) for record in records)
        number = RECORD_TYPES[self.kind]
        return b"".join(self.framing.frame(record, record_type=number) for record in records)

    def write(self, table: pa.Table, path: str | os.PathLike[str]) -> int:
        """Write a file of the rows of a table; return the number of records."""
        records = self.records(table)
        self.write_records(records, path)
        return len(records)

    def write_records(self, records: Sequence[bytes], path: str | os.PathLike[str]) -> None:
        """Write a file of records."""
        name = os.fspath(path)
        data = compress(self.frames(records), compression_of(name, self.compression))
        with fsspec.open(name, "wb") as file:
            file.write(data)


_Column = list[bytes]  # bytes that a column adds to each record


def _named_cells(table: pa.Table) -> dict[str, Cells]:
    """Return the columns of a table, with the columns of the line id joined."""
    cells = {
        name: cells_of(name, table.column(name))
        for name in table.column_names
        if not name.startswith(LINE_ID)
    }
    if (lines := line_ids(table)) is not None:
        cells[LINE_ID] = lines
    return cells


def _fields(number: int, rows: Iterable[bytes | None], head: bytes = b"") -> _Column:
    """Return each row after `head` as the bytes of a field; no bytes for a missing row."""
    heads: dict[int, bytes] = {}  # by size, because most rows have equal sizes
    parts = []
    for row in rows:
        if row is None:
            parts.append(b"")
            continue
        size = len(row)
        if size not in heads:
            field = put_bytes(number, head + row)
            heads[size] = field[: len(field) - size]
        parts.append(heads[size] + row)
    return parts


def _packed(number: int, rows: Iterable[bytes | None], head: bytes = b"") -> _Column:
    """Return packed numbers as the bytes of a field; a field without numbers is left out."""
    return _fields(number, [row or None for row in rows], head)


def _features(cells: Cells, numbers: Mapping[str, int]) -> list[bytes | None]:
    """Return fields 2, each with a Feature; None for a missing value."""
    lists = cells.lists(with_varints=numbers is _TF_FEATURE)
    features = _fields(2, _fields(numbers[cells.kind], lists))
    return [None if row is None else feature for row, feature in zip(lists, features, strict=True)]


def _weights(number: int, cells: Cells) -> _Column:
    tag = varint(number << 3 | 5)
    return [tag + row[:4] if row else b"" for row in cells.floats()]


def _batch(table: pa.Table) -> bytes:
    renamed = {_LABEL: "__LABEL__", LINE_ID: "__LINE_ID__"}
    parts = []
    for name, cells in _named_cells(table).items():
        features = _features(cells, _FEATURE)
        missing = put_bytes(2, b"")
        listed = b"".join(missing if feature is None else feature for feature in features)
        parts.append(put_bytes(1, put_bytes(1, renamed.get(name, name).encode()) + listed))
    return b"".join(parts) + put_varint(3, table.num_rows)


def _example(table: pa.Table) -> list[_Column]:
    columns, tail = [], {}
    for name, cells in _named_cells(table).items():
        if name == LINE_ID:
            tail[100] = _fields(100, cells.pieces())
        elif name == _LABEL:
            tail[101] = _packed(101, cells.floats())
        elif name == _WEIGHT:
            tail[102] = _weights(102, cells)
        else:
            columns.append(_fields(1, _features(cells, _FEATURE), put_bytes(1, name.encode())))
    return columns + [tail[number] for number in sorted(tail)]


def _tf_example(table: pa.Table) -> list[_Column]:
    cells_by_name = {name: cells_of(name, table.column(name)) for name in table.column_names}
    return [
        _fields(1, _features(cells, _TF_FEATURE), put_bytes(1, name.encode()))
        for name, cells in sorted(cells_by_name.items())
    ]


def _instance(table: pa.Table) -> list[_Column]:
    flat: list[_Column] = []
    features: list[_Column] = []
    tail = {}
    for name, cells in _named_cells(table).items():
        slot = _slot_of(name)
        if name == LINE_ID:
            tail[5] = _fields(5, cells.pieces())
        elif name == _LABEL:
            tail[3] = _packed(3, cells.floats())
        elif name == _WEIGHT:
            tail[4] = _weights(4, cells)
        elif slot is not None and cells.kind == "ids":
            flat.append([b"" if row is None else _fids_v1(row[0], slot) for row in cells.rows])
        else:
            features.append(_instance_features(name, cells))
    fids = _packed(1, [b"".join(parts) for parts in zip(*flat, strict=True)]) if flat else None
    return ([fids] if fids else []) + [tail[number] for number in sorted(tail)] + features


def _instance_features(name: str, cells: Cells) -> _Column:
    number, head = _INSTANCE_FEATURE[cells.kind], put_bytes(1, name.encode())
    if cells.kind != "strings":
        return _fields(9, _packed(number, cells.pieces()), head)
    rows = [b"".join(put_bytes(number, item) for item in row or []) for row in cells.rows]
    return _fields(9, rows, head)


def _slot_of(name: str) -> int | None:
    digits = name.removeprefix("fc_").removeprefix("slot_")
    is_slot = name.endswith(f"slot_{digits}") and digits.isdigit() and int(digits) < _NUM_SLOTS
    return int(digits) if is_slot else None


def _fids_v1(data: bytes, slot: int) -> bytes:
    """Return the flat fids v1 of fids v2, whose signatures have 48 bits."""
    fids = np.frombuffer(data, np.uint64)
    wrong = fids[fids >> np.uint64(_V2_BITS) != slot]
    if len(wrong):
        raise ValueError(
            f"[RecordWriter] expected fids v2 of slot {slot}, got one of slot "
            f"{int(wrong[0]) >> _V2_BITS} (column slot_{slot})"
        )
    signatures = fids & np.uint64((1 << _V2_BITS) - 1)
    flat: bytes = (signatures | np.uint64(slot << _V1_BITS)).tobytes()
    return flat
