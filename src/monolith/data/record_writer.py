"""Records of the rows of a table: for tests, and to convert files."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import fsspec
import pyarrow as pa

from monolith.data.byte_stream import compress, compression_of
from monolith.data.framing import Framing, tfrecord_frame
from monolith.data.record_cells import LINE_ID, Cells, cells_of, line_ids
from monolith.data.record_columns import RECORD_TYPES
from monolith.util.protobuf import put_bytes, put_varint, varint

__all__ = ["RecordWriter"]

_LABEL, _WEIGHT = "label", "instance_weight"
# Field numbers of payloads of ids, floats and strings.
_FEATURE = MappingProxyType({"ids": 2, "floats": 3, "strings": 6})
_TF_FEATURE = MappingProxyType({"ids": 3, "floats": 2, "strings": 1})
_INSTANCE_FEATURE = MappingProxyType({"ids": 2, "floats": 3, "strings": 5})
_V1_BITS, _V2_BITS = 54, 48


@dataclass(frozen=True)
class RecordWriter:
    """Makes records of the rows of tables.

    Integers become ids (fids v2, in `tf.train.Example` integers), strings become strings, other
    numbers floats; a missing value is left out. A column `label` is the label, `instance_weight`
    the weight, and columns `line_id.<field>` make the line id. In an Instance columns
    `slot_<n>` and `fc_slot_<n>` of fids v2 become flat fids v1.

    Args:
        kind: "example", "example_batch", "instance" or "tf_example".
        framing: of the files; ignored for "tf_example", whose files are TFRecord files.
        compression: of the files; "auto": by the ends of their names.
        batch_size: rows of an ExampleBatch.

    Raises:
        ValueError: an unknown kind.

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

    def records(self, table: pa.Table) -> list[bytes]:
        """The bytes of the records."""
        if self.kind == "example_batch":
            starts = range(0, table.num_rows, self.batch_size)
            return [self._batch(table.slice(start, self.batch_size)) for start in starts]
        make = {"example": _example, "instance": _instance, "tf_example": _tf_example}[self.kind]
        named = _named_cells(table, self.kind != "tf_example")
        return [make(named, row) for row in range(table.num_rows)]

    def _batch(self, table: pa.Table) -> bytes:
        parts = []
        renamed = {_LABEL: "__LABEL__", LINE_ID: "__LINE_ID__"}
        for name, cells in _named_cells(table, True).items():
            features = b"".join(
                put_bytes(2, _feature(cells, row, _FEATURE)) for row in range(table.num_rows)
            )
            parts.append(put_bytes(1, put_bytes(1, renamed.get(name, name).encode()) + features))
        return b"".join(parts) + put_varint(3, table.num_rows)

    def frames(self, records: Iterable[bytes]) -> bytes:
        """The records one after another, as in a file without compression."""
        if self.kind == "tf_example":
            return b"".join(tfrecord_frame(record) for record in records)
        number = RECORD_TYPES[self.kind]
        return b"".join(self.framing.frame(record, record_type=number) for record in records)

    def write(self, table: pa.Table, path: str | os.PathLike[str]) -> int:
        """Write a file of the rows of a table; the number of records."""
        records = self.records(table)
        self.write_records(records, path)
        return len(records)

    def write_records(self, records: Sequence[bytes], path: str | os.PathLike[str]) -> None:
        """Write a file of records."""
        name = os.fspath(path)
        data = compress(self.frames(records), compression_of(name, self.compression))
        with fsspec.open(name, "wb") as file:
            file.write(data)


def _named_cells(table: pa.Table, with_line_id: bool) -> dict[str, Cells]:
    cells = {
        name: cells_of(name, table.column(name))
        for name in table.column_names
        if not (with_line_id and name.startswith(LINE_ID))
    }
    if with_line_id and (lines := line_ids(table)) is not None:
        cells[LINE_ID] = lines
    return cells


def _feature(cells: Cells, row: int, numbers: Mapping[str, int]) -> bytes:
    """A Feature; nothing if the value is missing."""
    values = cells.rows[row]
    if values is None:
        return b""
    packed = b"".join(put_bytes(1, value) for value in values) if cells.is_strings else b""
    if not cells.is_strings:
        data = cells.varints(row) if numbers is _TF_FEATURE and cells.kind == "ids" else values[0]
        packed = put_bytes(1, data) if data else b""
    return put_bytes(numbers[cells.kind], packed)


def _example(named: dict[str, Cells], row: int) -> bytes:
    parts, tail = [], {101: b"", 100: b"", 102: b""}
    for name, cells in named.items():
        values = cells.rows[row]
        if values is None:
            continue
        if name == _LABEL:
            tail[101] = put_bytes(101, cells.floats(row))
        elif name == _WEIGHT:
            tail[102] = varint(102 << 3 | 5) + cells.floats(row)[:4]
        elif name == LINE_ID:
            tail[100] = put_bytes(100, values[0])
        else:
            feature = put_bytes(2, _feature(cells, row, _FEATURE))
            parts.append(put_bytes(1, put_bytes(1, name.encode()) + feature))
    return b"".join(parts) + tail[100] + tail[101] + tail[102]


def _tf_example(named: dict[str, Cells], row: int) -> bytes:
    entries = [
        put_bytes(1, put_bytes(1, name.encode()) + put_bytes(2, _feature(cells, row, _TF_FEATURE)))
        for name, cells in sorted(named.items())
        if cells.rows[row] is not None
    ]
    return put_bytes(1, b"".join(entries))


def _instance(named: dict[str, Cells], row: int) -> bytes:
    fids, features, tail = b"", [], {3: b"", 4: b"", 5: b""}
    for name, cells in named.items():
        values = cells.rows[row]
        if values is None:
            continue
        slot = _slot_of(name)
        if name == _LABEL:
            tail[3] = put_bytes(3, cells.floats(row))
        elif name == _WEIGHT:
            tail[4] = varint(4 << 3 | 5) + cells.floats(row)[:4]
        elif name == LINE_ID:
            tail[5] = put_bytes(5, values[0])
        elif slot is not None and cells.kind == "ids":
            fids += _fids_v1(values[0], slot)
        else:
            features.append(
                put_bytes(9, put_bytes(1, name.encode()) + _instance_values(cells, row))
            )
    flat = put_bytes(1, fids) if fids else b""
    return flat + tail[3] + tail[4] + tail[5] + b"".join(features)


def _instance_values(cells: Cells, row: int) -> bytes:
    values = cells.rows[row] or []
    number = _INSTANCE_FEATURE[cells.kind]
    return b"".join(put_bytes(number, value) for value in values if value or cells.is_strings)


def _slot_of(name: str) -> int | None:
    digits = name.removeprefix("fc_").removeprefix("slot_")
    return int(digits) if name.endswith(f"slot_{digits}") and digits.isdigit() else None


def _fids_v1(data: bytes, slot: int) -> bytes:
    """Flat fids of fids v2, whose signatures have 48 bits."""
    fids = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    for fid in fids:
        if fid >> _V2_BITS != slot:
            raise ValueError(
                f"[RecordWriter] expected fids v2 of slot {slot}, got one of slot "
                f"{fid >> _V2_BITS} (column slot_{slot})"
            )
    flat = [slot << _V1_BITS | fid & ((1 << _V2_BITS) - 1) for fid in fids]
    return b"".join(fid.to_bytes(8, "little") for fid in flat)
