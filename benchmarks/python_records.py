"""Records decoded in plain Python, value by value: the baseline, and what tests compare with."""

import struct
from collections.abc import Iterator
from typing import Any

Row = dict[str, list[Any]]

_PAYLOADS = {1: "<Q", 2: "<Q", 3: "<f", 4: "<d", 5: "varint", 6: "bytes"}
_TF_PAYLOADS = {1: "bytes", 2: "<f", 3: "varint"}


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where the next byte is."""
    number, shift = 0, 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & (2**64 - 1), at
        shift += 7


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        kind = tag & 7
        if kind == 0:
            value: Any
            value, at = varint(data, at)
        else:
            size, at = varint(data, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
            value = data[at : at + size]
            at += size
        yield tag >> 3, value


def numbers(data: Any, form: str) -> list[Any]:
    """Numbers of a field, packed or not."""
    if form == "bytes":
        return [data]
    if form == "varint":
        if isinstance(data, int):
            return [data]
        found, at = [], 0
        while at < len(data):
            number, at = varint(data, at)
            found.append(number)
        return found
    return [number for (number,) in struct.iter_unpack(form, data)]


def feature(data: bytes, payloads: dict[int, str]) -> list[Any]:
    """Values of a Feature."""
    values: list[Any] = []
    for number, inside in fields(data):
        if number in payloads:
            for _, value in fields(inside):
                values += numbers(value, payloads[number])
    return values


def _named(data: bytes, payloads: dict[int, str]) -> tuple[str, list[list[Any]]]:
    name, features = "", []
    for number, value in fields(data):
        if number == 1:
            name = value.decode()
        elif number == 2:
            features.append(feature(value, payloads))
    return name, features


def example(record: bytes) -> list[Row]:
    """An Example."""
    row: Row = {}
    for number, value in fields(record):
        if number == 1:
            name, features = _named(value, _PAYLOADS)
            row[name] = features[0]
        elif number == 101:
            row.setdefault("label", []).extend(numbers(value, "<f"))
    return [row]


def tf_example(record: bytes) -> list[Row]:
    """A tf.train.Example."""
    row: Row = {}
    for _, features in fields(record):
        for _, entry in fields(features):
            name, values = _named(entry, _TF_PAYLOADS)
            row[name] = values[0]
    return [row]


def instance(record: bytes) -> list[Row]:
    """An Instance, its fids as v2."""
    row: Row = {}
    for number, value in fields(record):
        if number == 1:
            for fid in numbers(value, "<Q"):
                v2 = (fid >> 54) << 48 | fid & (2**48 - 1)
                row.setdefault(f"slot_{fid >> 54}", []).append(v2)
        elif number == 3:
            row.setdefault("label", []).extend(numbers(value, "<f"))
        elif number == 9:
            inside = dict(fields(value))
            form = "<Q" if 2 in inside else "<f"
            row[inside[1].decode()] = numbers(inside[2 if 2 in inside else 3], form)
    return [row]


def example_batch(record: bytes) -> list[Row]:
    """An ExampleBatch of individual lists."""
    rows: list[Row] = []
    for number, value in fields(record):
        if number != 1:
            continue
        name, features = _named(value, _PAYLOADS)
        rows += [{} for _ in range(len(features) - len(rows))]
        for row, values in zip(rows, features, strict=True):
            row["label" if name == "__LABEL__" else name] = values
    return rows


DECODERS = {
    "example": example,
    "example_batch": example_batch,
    "instance": instance,
    "tf_example": tf_example,
}
