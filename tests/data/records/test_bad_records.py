"""Records that are anything: an error that says where, or a batch; never more."""

import numpy as np
import pytest

from benchmarks import python_records
from monolith import data
from monolith.errors import DataLossError
from tests.data.records.record_bytes import (
    batch,
    example,
    fids,
    floats,
    ids_of,
    named,
    named_list,
    parse,
    put_bytes,
    put_fixed32,
    put_varint,
    tf_example,
    v1,
    varint,
)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (b"\x0a", "byte 1: Example.named_feature: expected a whole number, got the end"),
        (b"\xff" * 11, "byte 0: Example: expected a varint of at most 10 bytes, got a longer one"),
        (
            b"\x0a\x7f",
            "byte 1: Example.named_feature: expected a length within the message, got one",
        ),
        (
            b"\x0a" + varint(1 << 62),
            "expected a length within the message, got one beyond its 9 by",
        ),
        (b"\x00", "byte 0: Example: expected a field number from 1 to 536870911, got another"),
        (varint(1 << 35), "Example: expected a field number"),
        (put_varint(1, 5), "Example.named_feature: expected the field's wire type, got another"),
        (put_varint(102, 5), "Example.instance_weight: expected the field's wire type"),
        (put_fixed32(103, 5), "Example.data_source_key: expected the field's wire type"),
        (varint(9 << 3 | 6), "Example: expected the field's wire type"),
        (varint(9 << 3 | 3), "Example: expected a group with its end, got none"),
        (varint(9 << 3 | 3) + varint(8 << 3 | 4), "expected a group with its end"),
        (varint(9 << 3 | 3) * 200, "expected a group with its end"),
        (varint(9 << 3 | 1) + b"1234", "Example: expected a whole number"),
        (put_bytes(1, b"\x0a\x05"), "byte 3: named_feature: expected a length within"),
        (put_bytes(1, put_varint(1, 1)), "named_feature: expected the field's wire type"),
        (
            example({"a": b"\x12\x05"}),
            "byte 8: Feature.fid_v2_list .column 'a'.: expected a length",
        ),
        (
            example({"a": put_varint(2, 1)}),
            "Feature.fid_v2_list .column 'a'.: expected the field's",
        ),
        (
            example({"a": put_bytes(12, b"1")}),
            "Feature.int64_value .column 'a'.: expected the field",
        ),
        (
            example({"a": put_bytes(2, put_bytes(1, b"123"))}),
            "expected whole packed numbers, got a p",
        ),
        (
            example({"a": put_bytes(3, floats(1))}),
            "Feature.float_list .column 'a'.: expected ids, got",
        ),
        (
            example({"a": put_bytes(5, put_bytes(1, b"\x80"))}),
            "int64_list .* expected a whole number",
        ),
        (example({"a": put_bytes(2, put_fixed32(1, 1.0))}), "expected the field's wire type"),
        (example({"d": put_bytes(2, fids(1))}), "'d'.: expected numbers, got strings or fids"),
        (
            example({"d": put_bytes(6, put_bytes(1, b"x"))}),
            "'d'.: expected numbers, got strings or",
        ),
        (put_bytes(100, b"\x12"), "byte 4: LineId .column 'line_id.uid'.: expected the field's"),
        (put_bytes(100, b"\x18"), "LineId: expected a whole number"),
        (example({"__LINE_ID__": b"\x32\x09"}), "__LINE_ID__: expected a length within"),
        (example({"__LINE_ID__": put_bytes(6, put_bytes(1, b"\x18"))}), "LineId: expected a whole"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(record, text):
    columns = {"ids": ["a", "line_id.uid"], "dense": [data.DenseColumn("d", fill=0.0)]}
    with pytest.raises(DataLossError, match=rf"\[RecordParser\] record 1, .*{text}"):
        parse("example", [b"", record], **columns, time=None)


@pytest.mark.parametrize(
    ("kind", "record", "text"),
    [
        ("tf_example", b"\x0a\x01", "Example.features: expected a length"),
        ("tf_example", put_bytes(1, b"\x0a\x09"), "Features.feature: expected a length"),
        ("tf_example", put_bytes(1, b"\x15"), "Features: expected a whole number"),
        ("tf_example", tf_example({"a": b"\x1a\x09"}), "Feature.int64_list .*: expected a length"),
        ("instance", b"\x0a\x03123", "Instance.fid: expected whole packed numbers"),
        ("instance", b"\x09123", "Instance.fid: expected a whole number"),
        ("instance", put_bytes(9, b"\x0a\x09"), "Instance.feature: expected a length"),
        (
            "instance",
            put_bytes(9, put_bytes(1, b"a") + put_varint(2, 1)),
            "Feature.fid .*wire type",
        ),
        ("instance", put_bytes(9, put_bytes(1, b"a") + put_fixed32(6, 1)), "fid_list .*wire type"),
        ("instance", put_bytes(3, b"12345"), "Instance.label .*: expected whole packed numbers"),
        ("example_batch", b"\x0a\x09", "named_feature_list: expected a length"),
        ("example_batch", put_bytes(3, b""), "ExampleBatch.batch_size: expected the field's wire"),
        ("example_batch", put_bytes(1, b"\x12\x05"), "named_feature_list: expected a length"),
        ("example_batch", b"\x15", "ExampleBatch: expected a whole number"),
    ],
)
def test_what_is_wrong_is_named_in_every_kind(kind, record, text):
    label = data.Label("label", fill=0.0)
    with pytest.raises(DataLossError, match=text):
        parse(kind, [record], ["a", "slot_1"], labels=[label])


FEATURES = {
    "a": put_bytes(2, fids(1, v1(3, 4))),
    "b": put_bytes(5, put_bytes(1, varint(5) + varint(1 << 60))),
    "s": put_bytes(6, put_bytes(1, b"text")),
    "d": put_bytes(3, floats(0.5, 1.5)),
}
LINE = put_bytes(100, put_varint(3, 7) + put_bytes(6, b"\x01\x02"))
TF = {"a": put_bytes(3, put_bytes(1, b"\x01\x02")), "d": put_bytes(2, floats(1, 2))}
GOOD = {
    "example": example(FEATURES, LINE + put_bytes(101, bytes(4)) + put_fixed32(102, 2.0)),
    "tf_example": tf_example(TF | {"b": put_bytes(1, put_bytes(1, b"x"))}),
    "instance": put_bytes(1, fids(v1(1, 2))[2:])
    + put_bytes(3, bytes(4))
    + put_bytes(5, LINE[3:])
    + put_bytes(9, named("a", b"")[:3] + fids(1, 2))
    + put_bytes(9, put_bytes(1, b"d") + bytes(0)),
    "example_batch": batch(
        2,
        named_list("a", [FEATURES["a"], FEATURES["b"]]),
        named_list("d", [FEATURES["d"]], shared=True),
        named_list("__LABEL__", [put_bytes(3, floats(1)), put_bytes(3, floats(0))]),
        named_list("__LINE_ID__", [put_bytes(6, put_bytes(1, LINE[3:]))] * 2),
    ),
}
COLUMNS = data.Columns(
    ["a", "b", "s", "slot_1", "line_id.actions"],
    [data.DenseColumn("d", width=2, fill=0.0)],
    [data.Label("label", fill=0.0)],
    weight="instance_weight",
)


def mutated(record, random):
    """The record with some bytes changed, removed, repeated or added."""
    changed = bytearray(record)
    for _ in range(random.integers(1, 6)):
        at = int(random.integers(0, len(changed) + 1))
        what = random.integers(0, 4)
        if what == 0 and at < len(changed):
            changed[at] = random.integers(0, 256)
        elif what == 1:
            del changed[at : at + int(random.integers(1, 9))]
        elif what == 2:
            changed[at:at] = changed[at : at + int(random.integers(1, 30))]
        else:
            changed[at:at] = random.bytes(int(random.integers(1, 11)))
    return bytes(changed)


def attempt(work):
    """What it gives, and the text of its error."""
    try:
        return work(), ""
    except DataLossError as error:
        return None, str(error)


def survive(kind, seed, count):
    """Decode mutations; each gives rows that add up, or an error."""
    random = np.random.default_rng(seed)
    parser, num_bad = data.RecordParser(kind, COLUMNS), 0
    for _ in range(count):
        record = mutated(GOOD[kind], random)
        made, error = attempt(lambda record=record: parser([GOOD[kind], record]))
        num_bad += made is None
        assert made is not None or "record 1, byte" in error or "finite" in error
        assert made is None or made.features["a"].row_splits[-1] == len(made.features["a"].values)
    assert 0 < num_bad < count


@pytest.mark.parametrize("kind", GOOD)
def test_mutated_records_are_errors_or_batches(kind):
    survive(kind, 0, 1500)


@pytest.mark.slow
@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize("seed", range(1, 5))
def test_many_mutated_records_are_errors_or_batches(kind, seed):
    survive(kind, seed, 25_000)


@pytest.mark.parametrize("kind", GOOD)
def test_the_unchanged_record_is_good(kind):
    made = data.RecordParser(kind, COLUMNS)([GOOD[kind]])
    assert sum(len(each.values) for each in made.features.values()) > 2


def test_random_files_are_errors_or_batches(tmp_path):
    random = np.random.default_rng(0)
    frames = b"".join(data.Framing().frame(GOOD["example"]) for _ in range(20))
    for _ in range(100):
        (tmp_path / "f").write_bytes(mutated(frames, random))
        source = data.examples(tmp_path / "f", columns=COLUMNS, on_error="skip").batch(7)
        sizes, error = attempt(lambda source=source: [len(each) for each in source])
        assert "f', byte" in error if sizes is None else max(sizes, default=0) <= 7


@pytest.mark.parametrize("kind", ["example", "tf_example"])
def test_random_records_decode_as_in_plain_python(kind):
    random = np.random.default_rng(0)
    make = {"example": example, "tf_example": tf_example}[kind]
    number = {"example": 5, "tf_example": 3}[kind]
    records = []
    for _ in range(300):
        names = random.permutation([f"feature_{i}" for i in range(12)])[: random.integers(0, 13)]
        ids = [random.integers(0, 2**63, random.integers(0, 20)) for _ in names]
        packed = [b"".join(varint(int(i) >> int(random.integers(64))) for i in row) for row in ids]
        lists = {n: put_bytes(number, put_bytes(1, p)) for n, p in zip(names, packed, strict=True)}
        records.append(make(lists))
    names = [f"feature_{i}" for i in range(0, 12, 2)]
    made = parse(kind, records, names)
    rows = [python_records.DECODERS[kind](record)[0] for record in records]
    for name in names:
        assert made.features[name].to_lists() == [row.get(name, []) for row in rows]


def test_a_parser_forgets_a_bad_record():
    parser = data.RecordParser("example", data.Columns(["a"]))
    with pytest.raises(DataLossError, match="record 0"):
        parser([b"\x0a"])
    assert parser([example({"a": put_bytes(2, fids(7))})]).features["a"].to_lists() == [[7]]


def test_hostile_sizes_do_not_take_memory():
    record = put_bytes(1, named("a", put_bytes(2, b"\x0a" + varint((1 << 63) - 1))))
    with pytest.raises(DataLossError, match="expected a length within the message"):
        ids_of("example", record, "a")
