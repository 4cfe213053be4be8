"""Messages by hand: field numbers are those of the published schemas."""

import struct

from monolith import data
from monolith.util.protobuf import put_bytes, put_fixed32, put_varint, varint


def fids(*values):
    return put_bytes(1, struct.pack(f"<{len(values)}Q", *values))


def floats(*values):
    return put_bytes(1, struct.pack(f"<{len(values)}f", *values))


def named(name, feature, *, rest=b""):
    return put_bytes(1, name.encode()) + put_bytes(2, feature) + rest


def example(features, rest=b""):
    return b"".join(put_bytes(1, named(*each)) for each in features.items()) + rest


def named_list(name, features, shared=False):
    lists = b"".join(put_bytes(2, feature) for feature in features)
    kind = put_varint(3, 1) if shared else b""
    return put_bytes(1, put_bytes(1, name.encode()) + lists + kind)


def batch(size, *lists, rest=b""):
    return b"".join(lists) + put_varint(3, size) + rest


def tf_example(features):
    return put_bytes(1, b"".join(put_bytes(1, named(*each)) for each in features.items()))


def v1(slot, signature):
    return slot << 54 | signature


def v2(slot, signature):
    return slot << 48 | signature


def parse(kind, records, ids=(), dense=(), labels=(), **options):
    columns = data.Columns(
        ids, dense, labels, options.pop("weight", None), options.pop("time", None)
    )
    return data.RecordParser(kind, columns, **options)(records)


def ids_of(kind, record, name, **options):
    """The ids of a feature in the rows of one record."""
    return parse(kind, [record], [name], **options).features[name].to_lists()


__all__ = [
    "batch",
    "example",
    "fids",
    "floats",
    "ids_of",
    "named",
    "named_list",
    "parse",
    "put_bytes",
    "put_fixed32",
    "put_varint",
    "tf_example",
    "v1",
    "v2",
    "varint",
]
