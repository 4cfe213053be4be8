"""Example, ExampleBatch and LineId as columns."""

import struct

import numpy as np
import pytest

from monolith import data
from monolith.errors import DataLossError
from monolith.ops import Ragged
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
    v1,
    v2,
    varint,
)

FID_V1, FID_V2, FLOAT, DOUBLE, INT64, BYTES = 1, 2, 3, 4, 5, 6


def xxh64(text):
    import pyarrow as pa

    return int(data.hash_strings(pa.array([text]))[0])


@pytest.mark.parametrize(
    ("feature", "expected"),
    [
        (put_bytes(FID_V1, fids(v1(1, 100))), [v2(1, 100)]),
        (put_bytes(FID_V2, fids(v2(1, 100), 7)), [v2(1, 100), 7]),
        (put_bytes(INT64, put_bytes(1, varint(5) + varint(-3))), [5, -3]),
        (put_bytes(INT64, put_varint(1, 5) + put_varint(1, 6)), [5, 6]),  # not packed
        (put_bytes(BYTES, put_bytes(1, b"abc")), [xxh64("abc")]),
        (put_bytes(7, put_bytes(1, fids(1, 2)) + put_bytes(1, fids(3))), [1, 2, 3]),
        (put_bytes(16, put_bytes(1, fids(v1(2, 9)))), [v2(2, 9)]),
        (put_bytes(10, put_bytes(1, put_varint(1, 4))), [4]),
        (put_bytes(11, put_bytes(1, put_bytes(1, b"abc"))), [xxh64("abc")]),
        (put_varint(12, 9), [9]),
        (put_bytes(15, b"abc"), [xxh64("abc")]),
        (put_bytes(FLOAT, b""), []),  # empty, whatever it is a list of
        (b"", []),
    ],
)
def test_ids_are_taken_of_every_payload_that_has_them(feature, expected):
    assert ids_of("example", example({"a": feature}), "a") == [expected]


@pytest.mark.parametrize(
    ("feature", "expected"),
    [
        (put_bytes(FLOAT, floats(0.5)), 0.5),
        (put_bytes(FLOAT, put_fixed32(1, 0.5)), 0.5),  # not packed
        (put_bytes(DOUBLE, put_bytes(1, struct.pack("<d", 0.25))), 0.25),
        (put_bytes(INT64, put_varint(1, -3)), -3.0),
        (put_varint(12, 7), 7.0),
        (put_fixed32(13, 1.5), 1.5),
        (varint(14 << 3 | 1) + struct.pack("<d", 2.5), 2.5),
        (put_bytes(8, put_bytes(1, floats(3.5))), 3.5),
    ],
)
def test_numbers_are_taken_of_every_payload_that_has_them(feature, expected):
    made = parse("example", [example({"a": feature})], dense=["a"])
    assert made.dense["a"].tolist() == [expected]


def test_fids_v1_are_kept_when_asked_for():
    record = example({"a": put_bytes(FID_V1, fids(v1(1, 100)))})
    assert ids_of("example", record, "a", keep_fid_v1=True) == [[v1(1, 100)]]


def test_the_last_payload_of_a_oneof_counts_and_equal_ones_are_merged():
    feature = put_bytes(FID_V2, fids(1)) + put_bytes(INT64, put_varint(1, 2))
    feature += put_bytes(INT64, put_varint(1, 3))
    assert ids_of("example", example({"a": feature}), "a") == [[2, 3]]


def test_a_feature_in_two_parts_is_merged_and_a_name_may_come_last():
    entry = put_bytes(2, put_bytes(FID_V2, fids(1))) + put_bytes(2, put_bytes(FID_V2, fids(2)))
    record = put_bytes(1, entry + put_bytes(1, b"b") + put_bytes(1, b"a"))
    assert ids_of("example", record, "a") == [[1, 2]]


def test_the_last_of_two_features_with_one_name_counts():
    record = example({"a": put_bytes(FID_V2, fids(1))}) + example({"a": put_bytes(FID_V2, fids(2))})
    assert ids_of("example", record, "a") == [[2]]


def test_unknown_fields_are_skipped():
    group = varint(60 << 3 | 3) + put_varint(1, 5) + varint(60 << 3 | 4)
    rest = put_varint(50, 1) + put_fixed32(51, 1.0) + group + varint(52 << 3 | 1) + bytes(8)
    entry = named("a", put_bytes(FID_V2, fids(7)) + rest, rest=put_varint(3, 5) + rest)
    assert ids_of("example", put_bytes(1, entry) + rest, "a") == [[7]]


def test_features_in_another_order_are_found_by_name():
    one, two = put_bytes(FID_V2, fids(1)), put_bytes(FID_V2, fids(2))
    records = [example({"a": one, "b": two}), example({"b": two, "c": one, "a": one}), example({})]
    made = parse("example", records, ["a", "b"])
    assert made.features["a"].to_lists() == [[1], [1], []]
    assert made.features["b"].to_lists() == [[2], [2], []]


@pytest.mark.parametrize("name", ["", "x", "n" * 5, "n" * 23, "n" * 100, "n" * 126, "n" * 300])
def test_names_of_any_length_are_told_apart(name):
    feature = put_bytes(FID_V2, fids(7))
    records = [example({name: feature})] * 2 + [example({name + "x": feature})]
    assert parse("example", records, [name]).features[name].to_lists() == [[7], [7], []]


def test_a_label_of_the_record_gives_way_to_reserved_and_named_ones():
    typed = put_bytes(101, struct.pack("<f", 1)) + put_fixed32(101, 4)
    reserved = {"__LABEL__": put_bytes(FLOAT, floats(2, 5))}
    plain = {"label": put_bytes(FLOAT, floats(3, 6))}
    records = [example({}, typed), example(reserved, typed), example(plain | reserved, typed)]
    made = parse("example", records, labels=[data.Label("label", width=2)])
    assert made.label.tolist() == [[1, 4], [2, 5], [3, 6]]


def test_of_more_labels_the_first_are_taken_and_missing_ones_are_filled():
    records = [example({}, put_fixed32(101, value)) for value in (1.0, 2.0)]
    records[1] += put_fixed32(101, 3.0)
    label = data.Label("label", width=2, fill=data.INVALID_LABEL)
    made = parse("example", records, labels=[label]).label
    assert made.tolist() == [[1, np.float32(data.INVALID_LABEL)], [2, 3]]
    assert parse("example", records[1:], labels=["label"]).label.tolist() == [2]


def test_a_missing_label_or_number_without_a_fill_is_an_error():
    with pytest.raises(
        DataLossError, match=r"record 0, byte 0: .*'label'.*expected a value, got none"
    ):
        parse("example", [example({})], labels=["label"])
    record = example({"a": put_bytes(FLOAT, floats(1, 2, 3))})
    with pytest.raises(DataLossError, match=r"'a'\): expected 2 values, got 3"):
        parse("example", [record], dense=[data.DenseColumn("a", width=2)])


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_weight_of_the_record_that_is_none_reads_as_one(value):
    records = [example({}, put_fixed32(102, value)), example({}), example({}, put_fixed32(102, 2))]
    made = parse("example", records, ["a"], weight="instance_weight")
    assert made.weight.tolist() == [1, 1, 2]


def test_a_named_weight_counts_and_an_empty_one_reads_as_one():
    records = [
        example({"instance_weight": put_bytes(FLOAT, value)}, put_fixed32(102, 3))
        for value in (floats(0.5), b"")
    ]
    assert parse("example", records, ["a"], weight="instance_weight").weight.tolist() == [0.5, 1]


LINE = (
    varint(2 << 3 | 1)
    + (110).to_bytes(8, "little")
    + put_varint(3, 1700000000)
    + put_bytes(6, varint(0) + varint(100))
    + put_fixed32(27, 0.5)
    + put_varint(39, 4)
    + put_varint(39, 5)
    + put_bytes(49, b"123")
)
LINE_IDS = ["line_id.uid", "line_id.actions", "line_id.special_strategies", "line_id.user_id"]


@pytest.mark.parametrize(
    "record",
    [
        example({}, put_bytes(100, LINE)),
        example({"__LINE_ID__": put_bytes(BYTES, put_bytes(1, LINE))}, put_bytes(100, b"\x18\x05")),
    ],
)
def test_fields_of_the_line_id_are_columns(record):
    made = parse("example", [record], LINE_IDS, ["line_id.sample_rate"], time="line_id.req_time")
    lists = {name: made.features[f"line_id.{name}"].to_lists()[0] for name in ("uid", "actions")}
    assert lists == {"uid": [110], "actions": [0, 100]}
    assert made.features["line_id.special_strategies"].to_lists() == [[4, 5]]
    assert made.features["line_id.user_id"].to_lists() == [[xxh64("123")]]
    assert (made.dense["line_id.sample_rate"].item(), made.time.item()) == (0.5, 1700000000)


def test_line_ids_in_two_parts_are_merged():
    parts = put_bytes(100, put_bytes(6, varint(1)) + put_varint(3, 7)) + put_bytes(
        100, put_varint(6, 2)
    )
    made = parse("example", [parts], ["line_id.actions"], time="line_id.req_time")
    assert made.features["line_id.actions"].to_lists() == [[1, 2]]
    assert made.time.tolist() == [7]


def test_a_line_id_without_a_sample_rate_has_one_of_one():
    made = parse("example", [example({})], ["line_id.uid"], ["line_id.sample_rate"])
    assert made.dense["line_id.sample_rate"].tolist() == [1.0]
    assert made.features["line_id.uid"].to_lists() == [[]]


def test_a_field_that_line_ids_do_not_have_is_refused():
    with pytest.raises(ValueError, match="did is not in line id, pls check!"):
        parse("example", [], ["line_id.did"])


def test_actions_may_be_a_padded_matrix():
    column = data.DenseColumn("actions", "line_id.actions", width=3, fill=0.0)
    made = parse("example", [example({}, put_bytes(100, LINE))], ["a"], [column])
    assert made.dense["actions"].tolist() == [[0, 100, 0]]


def test_the_key_of_the_data_source_is_a_column_and_zero_where_there_is_none():
    records = [example({}, put_varint(103, 914176)), example({})]
    made = parse("example", records, ["data_source_key"])
    assert made.features["data_source_key"].to_lists() == [[914176], [0]]


def feature_lists(*rows):
    return [put_bytes(FID_V2, fids(*row)) for row in rows]


def test_lists_of_a_batch_are_rows_and_shared_ones_are_replicated():
    record = batch(
        2,
        named_list("a", feature_lists([1], [2, 3])),
        named_list("s", feature_lists([7, 8]), shared=True),
        named_list("d", [put_bytes(FLOAT, floats(0.5))], shared=True),
        named_list("__LABEL__", [put_bytes(FLOAT, floats(each)) for each in (1, 0)]),
        named_list("instance_weight", [put_bytes(FLOAT, floats(3)), b""]),
        rest=put_varint(100, 256),
    )
    made = parse(
        "example_batch",
        [record, record],
        ["a", "s", "gone", "data_source_key"],
        ["d"],
        ["label"],
        weight="instance_weight",
    )
    assert made.features["a"].to_lists() == [[1], [2, 3]] * 2
    assert made.features["s"].to_lists() == [[7, 8]] * 4
    assert made.features["gone"].to_lists() == [[]] * 4
    assert made.features["data_source_key"].to_lists() == [[256]] * 4
    assert made.dense["d"].tolist() == [0.5] * 4
    assert (made.label.tolist(), made.weight.tolist()) == ([1, 0] * 2, [3, 1] * 2)


def test_line_ids_of_a_batch_are_columns():
    lines = [put_bytes(BYTES, put_bytes(1, line)) for line in (LINE, put_varint(3, 5))]
    record = batch(2, named_list("__LINE_ID__", lines))
    made = parse("example_batch", [record], ["line_id.actions"], time="line_id.req_time")
    assert made.features["line_id.actions"].to_lists() == [[0, 100], []]
    assert made.time.tolist() == [1700000000, 5]


def test_a_named_label_of_a_batch_counts_in_any_order():
    lists = [
        named_list(name, [put_bytes(FLOAT, floats(value))])
        for name, value in (("label", 1), ("__LABEL__", 2))
    ]
    for order in (lists, lists[::-1]):
        assert parse("example_batch", [batch(1, *order)], labels=["label"]).label.tolist() == [1]


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (
            batch(2, named_list("a", feature_lists([1]))),
            "expected as many features .* got 1 for 2 rows",
        ),
        (batch(1, named_list("a", feature_lists([1], [2]))), "got 2 for 1 rows"),
        (batch(1, named_list("a", [], shared=True)), "got 0 for 1 rows"),
        (batch(-1), "expected a batch_size of at least 0, got -1"),
        (batch(1 << 30), "expected at most 1048576 rows or values, got 1073741824"),
        (
            batch(1 << 20, named_list("a", feature_lists(range(17)), shared=True)),
            "expected at most 16777216 rows or values, got 17825792",
        ),
        (
            batch(1, put_bytes(1, put_bytes(1, b"a") + put_varint(2, 1))),
            "expected the field's wire type",
        ),
    ],
)
def test_a_batch_that_does_not_add_up_is_refused(record, text):
    with pytest.raises(DataLossError, match=text):
        parse("example_batch", [record], ["a"])


def test_a_shared_number_that_does_not_fit_is_refused():
    record = batch(2, named_list("d", [put_bytes(FLOAT, floats(1, 2))], shared=True))
    with pytest.raises(DataLossError, match="expected one value, got 2"):
        parse("example_batch", [record], dense=["d"])


def test_a_list_whose_type_and_name_come_last_is_read():
    lists = put_bytes(2, put_bytes(FID_V2, fids(7))) + put_varint(3, 1) + put_bytes(1, b"a")
    assert ids_of("example_batch", batch(3, put_bytes(1, lists)), "a") == [[7]] * 3


def test_one_column_cannot_be_wanted_in_two_ways():
    with pytest.raises(ValueError, match="expected column 'a' of records in one way, got two"):
        parse("example", [], ["a"], [data.DenseColumn("b", "a")])


def test_batches_of_records_are_ragged_features():
    made = parse("example", [example({"a": put_bytes(FID_V2, fids(1))})], ["a"])
    assert isinstance(made.features["a"], Ragged)
