"""Columns of records, found in the first records, because records have no schema.

ids      fids, integers, strings      int64 if each record has one, else lists
floats   floats, doubles              float32 if each record has one; a fixed-size list if all
                                      have as many; else lists
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa

from monolith.errors import DataLossError
from monolith.util.protobuf import fields

_RESERVED = frozenset({"__LINE_ID__", "__LABEL__", "instance_weight"})
_FLOATS = frozenset({3, 4, 8, 9, 13, 14})  # payloads of Feature with floats
_NESTED = frozenset({7, 8, 9, 10, 11, 16})
_SCALARS = frozenset({12, 13, 14, 15})
_WIDTHS = MappingProxyType({1: 8, 2: 8, 3: 4, 4: 8})  # bytes per packed number
_TF_PAYLOADS = MappingProxyType({1: 6, 2: 3, 3: 5})  # bytes, floats, integers, as in Feature
_INSTANCE_PAYLOADS = MappingProxyType({2: 2, 3: 3, 4: 5, 5: 6, 6: 7, 7: 8, 8: 10, 9: 11})
_V1_BITS = 54


@dataclass(slots=True)
class _ColumnCounts:
    """Observations of one column."""

    is_float: bool
    counts: set[int]
    num_records: int = 0

    def kind(self, num_records: int) -> pa.DataType:
        item = pa.float32() if self.is_float else pa.int64()
        if self.num_records < num_records and not self.is_float:
            return pa.list_(item)
        if self.counts == {1}:
            return item
        if self.is_float and len(self.counts) == 1:
            return pa.list_(item, next(iter(self.counts)))
        return pa.list_(item)


def schema_of(kind: str, records: Sequence[bytes]) -> pa.Schema:
    """Return the columns of records.

    Args:
        kind: kind of the records, as in `RecordFormat`.
        records: bytes of each record.
    """
    observations: dict[str, _ColumnCounts] = {}
    num_rows = 0
    for record in records:
        rows = 1
        try:
            columns = list(_COLUMNS[kind](record))
        except (DataLossError, UnicodeDecodeError):
            continue  # the reader reports the bad record
        for name, is_float, counts in columns:
            rows = max(rows, len(counts))
            column = observations.setdefault(name, _ColumnCounts(is_float, set()))
            column.counts.update(counts)
            column.num_records += len(counts)
        num_rows += rows
    # A column of floats without a value in any record has no known width.
    known = {
        name: column
        for name, column in observations.items()
        if not column.is_float or any(column.counts)
    }
    return pa.schema([(name, column.kind(num_rows)) for name, column in known.items()])


_ColumnValues = Iterator[tuple[str, bool, list[int]]]  # name, whether floats, values of each row


def _example_columns(record: bytes) -> _ColumnValues:
    for number, value in fields(record):
        if number == 1 and isinstance(value, bytes):
            name, features, _ = _named_feature(value)
            if name not in _RESERVED:
                yield from _one(name, features[:1])
            elif name == "__LABEL__":
                yield "label", True, [count for _, count in map(_payload, features[:1])]
            elif name == "instance_weight":
                yield name, True, [1]
        elif number == 101:
            yield "label", True, [_count(value, 4)]
        elif number == 102:
            yield "instance_weight", True, [1]


def _batch_columns(record: bytes) -> _ColumnValues:
    for number, value in fields(record):
        if number != 1 or not isinstance(value, bytes):
            continue
        name, features, _ = _named_feature(value)
        if name == "__LABEL__":
            yield "label", True, [count for _, count in map(_payload, features)]
        elif name == "instance_weight":
            yield name, True, [1] * len(features)
        elif name not in _RESERVED:
            yield from _one(name, features)


def _tf_example_columns(record: bytes) -> _ColumnValues:
    for number, features in fields(record):
        if number != 1 or not isinstance(features, bytes):
            continue
        for _, entry in fields(features):
            if isinstance(entry, bytes):
                name, values, _ = _named_feature(entry)
                yield from _one(name, values[:1], _TF_PAYLOADS)


def _instance_columns(record: bytes) -> _ColumnValues:
    slots: dict[int, int] = {}
    labels = 0
    for number, value in fields(record):
        if number == 1 and isinstance(value, bytes):
            for at in range(0, len(value) // 8 * 8, 8):
                slot = int.from_bytes(value[at : at + 8], "little") >> _V1_BITS
                slots[slot] = slots.get(slot, 0) + 1
        elif number == 2:
            yield "value", True, [_count(value, 4)]
        elif number == 3:
            labels += _count(value, 4)
        elif number == 4:
            yield "instance_weight", True, [1]
        elif number == 9 and isinstance(value, bytes):
            yield from _instance_feature(value)
    if labels:
        yield "label", True, [labels]
    for slot, count in slots.items():
        yield f"fc_slot_{slot}", False, [count]


def _instance_feature(message: bytes) -> _ColumnValues:
    name, counts = "", dict[int, int]()
    for number, value in fields(message):
        if number == 1 and isinstance(value, bytes):
            name = value.decode()
        elif number in _INSTANCE_PAYLOADS:
            payload = _INSTANCE_PAYLOADS[number]
            is_list = payload in _NESTED or payload == 6
            count = 1 if is_list else _count(value, _WIDTHS.get(payload, 0))
            counts[payload] = counts.get(payload, 0) + count
    first = min((payload for payload, count in counts.items() if count), default=None)
    if first is not None:
        yield name, first in _FLOATS, [0 if first in _NESTED else counts[first]]


_COLUMNS = MappingProxyType(
    {
        "example": _example_columns,
        "example_batch": _batch_columns,
        "instance": _instance_columns,
        "tf_example": _tf_example_columns,
    }
)


def _named_feature(message: bytes) -> tuple[str, list[bytes], int]:
    """Return name, features and type of a NamedFeature, a NamedFeatureList or a map entry."""
    name, features, kind = "", list[bytes](), 0
    for number, value in fields(message):
        if number == 1 and isinstance(value, bytes):
            name = value.decode()
        elif number == 2 and isinstance(value, bytes):
            features.append(value)
        elif number == 3 and isinstance(value, int):
            kind = value
    return name, features, kind


def _one(
    name: str, features: Iterable[bytes], numbers: Mapping[int, int] | None = None
) -> _ColumnValues:
    """Yield a column, unless its features have no payload."""
    pairs = [_payload(feature, numbers) for feature in features]
    payloads = [payload for payload, _ in pairs if payload]
    if payloads:
        yield name, payloads[0] in _FLOATS, [count for _, count in pairs]


def _payload(feature: bytes, numbers: Mapping[int, int] | None = None) -> tuple[int, int]:
    """Return the payload of a feature, 0 without one, and the number of its values."""
    payload, count = 0, 0
    for number, value in fields(feature):
        number = number if numbers is None else numbers.get(number, 0)
        if not 1 <= number <= 16:
            continue
        payload, count = number, 1 if number in _SCALARS else 0
        if isinstance(value, bytes) and number not in _SCALARS | _NESTED:
            sizes = [
                _count(inner, _WIDTHS.get(number, 0)) for at, inner in fields(value) if at == 1
            ]
            count = len(sizes) if number == 6 else sum(sizes)
    return payload, count


def _count(value: int | bytes, width: int) -> int:
    """Return the number of values of a field; a width of 0 means packed varints."""
    if isinstance(value, int):
        return 1
    if width:
        return len(value) // width
    return sum(byte < 0x80 for byte in value)
