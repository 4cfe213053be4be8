"""Instance and tf.train.Example as columns."""

import itertools
import struct

import numpy as np
import pyarrow as pa
import pytest

from monolith import data
from monolith.errors import DataLossError
from tests.data.records.record_bytes import (
    fids,
    floats,
    ids_of,
    parse,
    put_bytes,
    put_fixed32,
    put_varint,
    tf_example,
    v1,
    v2,
    varint,
)

UE = [0.25 * i for i in range(16)]


def feature(name, *payloads):
    return put_bytes(9, put_bytes(1, name.encode()) + b"".join(payloads))


def packed(number, form, *values):
    return put_bytes(number, struct.pack(f"<{len(values)}{form}", *values))


# Of section 6.1 of the reference's description: its published test.
INSTANCE = (
    packed(1, "Q", *[v1(i, i) for i in range(10)])
    + packed(3, "f", 1.1, 2.2, 3.3)
    + put_bytes(
        5,
        varint(2 << 3 | 1)
        + (110).to_bytes(8, "little")
        + put_fixed32(27, 0.5)
        + put_bytes(6, varint(0) + varint(100))
        + put_bytes(49, b"123"),
    )
    + feature("fidv2", packed(2, "Q", *[v2(100, i) for i in range(10)]))
    + feature("ue", packed(3, "f", *UE))
)


def test_flat_fids_become_features_of_their_slots_as_fids_v2():
    made = parse("instance", [INSTANCE], ["slot_1", "fc_slot_2", "slot_77", "fidv2"])
    assert made.features["slot_1"].to_lists() == [[v2(1, 1)]]
    assert made.features["fc_slot_2"].to_lists() == [[v2(2, 2)]]
    assert made.features["slot_77"].to_lists() == [[]]
    assert made.features["fidv2"].to_lists() == [[v2(100, i) for i in range(10)]]


def test_features_of_one_instance_side_by_side_have_the_published_splits():
    made = parse("instance", [INSTANCE], ["slot_0", "slot_1", "fidv2"])
    lengths = [int(made.features[name].lengths[0]) for name in ("slot_0", "slot_1", "fidv2")]
    assert [0, *itertools.accumulate(lengths)] == [0, 1, 2, 12]


def test_fids_become_v2_whatever_else_is_asked_for_and_stay_v1_by_option():
    assert ids_of("instance", INSTANCE, "slot_1") == [[v2(1, 1)]]
    assert ids_of("instance", INSTANCE, "slot_1", keep_fid_v1=True) == [[v1(1, 1)]]


def test_values_of_the_published_instance():
    dense = [data.DenseColumn("ue", width=16), data.DenseColumn("gone", width=8, fill=0.0)]
    label = data.Label("label", width=3)
    made = parse(
        "instance",
        [INSTANCE],
        ["line_id.uid", "line_id.actions"],
        [*dense, "line_id.sample_rate"],
        [label],
        weight="instance_weight",
    )
    assert made.dense["ue"].tolist() == [UE]
    assert made.dense["gone"].tolist() == [[0.0] * 8]
    assert made.label.tolist() == [np.float32([1.1, 2.2, 3.3]).tolist()]
    assert made.features["line_id.actions"].to_lists() == [[0, 100]]
    assert made.features["line_id.uid"].to_lists() == [[110]]
    assert (made.dense["line_id.sample_rate"].item(), made.weight.item()) == (0.5, 1.0)


def test_fids_that_are_not_packed_and_split_ones_are_read():
    record = b"".join(varint(1 << 3 | 1) + v1(3, i).to_bytes(8, "little") for i in (1, 2))
    assert ids_of("instance", record + packed(1, "Q", v1(3, 3)), "slot_3") == [
        [v2(3, 1), v2(3, 2), v2(3, 3)]
    ]


def test_a_feature_with_the_name_of_a_slot_goes_after_the_flat_fids():
    record = packed(1, "Q", v1(3, 1)) + feature("fc_slot_3", packed(2, "Q", v2(3, 2)))
    assert ids_of("instance", record, "fc_slot_3") == [[v2(3, 1), v2(3, 2)]]


def test_the_first_payload_that_is_not_empty_counts():
    record = feature("a", put_bytes(2, b""), put_bytes(4, varint(5)), put_bytes(5, b"x"))
    assert ids_of("instance", record, "a") == [[5]]
    lists = put_bytes(6, fids(1, 2)), put_bytes(6, fids(3))
    assert ids_of("instance", feature("a", *lists), "a") == [[1, 2, 3]]


def test_typed_fields_are_columns():
    record = (
        packed(2, "f", 0.5, 1.5) + put_fixed32(4, 2.0) + put_fixed32(4, 3.0) + put_varint(100, 256)
    )
    made = parse(
        "instance",
        [record],
        ["data_source_key"],
        [data.DenseColumn("value", width=2)],
        weight="instance_weight",
    )
    assert made.dense["value"].tolist() == [[0.5, 1.5]]
    assert made.weight.tolist() == [3.0]
    assert made.features["data_source_key"].to_lists() == [[256]]


def quantized(values):
    low, high = np.float16(min(values)), np.float16(max(values))
    step = (float(high) - float(low)) / 255
    codes = bytes(int(0.5 + (x - float(low)) / step) for x in values)
    return b"UE_QTZ" + low.tobytes() + high.tobytes() + codes


def test_quantized_numbers_are_read():
    values = [1.1, 0.1, 3.1, 5.1, 2.2, 3.3, 4.3]
    record = feature("ue", put_bytes(5, quantized(values)))
    made = parse("instance", [record], ["a"], [data.DenseColumn("ue", width=7)])
    np.testing.assert_allclose(made.dense["ue"][0], values, atol=1e-2)


def test_few_quantized_numbers_are_half_floats_and_infinite_ones_the_largest():
    halves = np.array([1.5, -np.inf, np.inf, 2**-24], np.float16)
    record = feature("ue", put_bytes(5, b"UE_QTZ" + halves.tobytes()))
    made = parse("instance", [record], ["a"], [data.DenseColumn("ue", width=4)])
    assert made.dense["ue"].tolist() == [[1.5, -65504, 65504, 2**-24]]


def test_quantized_numbers_of_another_length_are_refused():
    record = feature("ue", put_bytes(5, quantized([1.0, 2.0, 3.0, 4.0, 5.0])))
    with pytest.raises(DataLossError, match="expected 11 values, got 9"):
        parse("instance", [record], ["a"], [data.DenseColumn("ue", width=7)])


def test_two_columns_of_one_slot_are_refused():
    with pytest.raises(ValueError, match="expected one column of slot 3, got two"):
        parse("instance", [], ["slot_3", "fc_slot_3"])


def test_tf_examples_have_integers_floats_and_strings():
    record = tf_example(
        {
            "a": put_bytes(3, put_bytes(1, varint(5) + varint(-3) + varint(1 << 40))),
            "b": put_bytes(3, put_varint(1, 6) + put_varint(1, 7)),
            "s": put_bytes(1, put_bytes(1, b"abc")),
            "d": put_bytes(2, floats(0.5, 1.5)),
            "e": put_bytes(2, put_fixed32(1, 2.5)),
        }
    )
    made = parse(
        "tf_example", [record, b""][:1], ["a", "b", "s"], [data.DenseColumn("d", width=2), "e"]
    )
    assert made.features["a"].to_lists() == [[5, -3, 1 << 40]]
    assert made.features["b"].to_lists() == [[6, 7]]
    assert made.features["s"].to_lists() == [[int(data.hash_strings(pa.array(["abc"]))[0])]]
    assert (made.dense["d"].tolist(), made.dense["e"].tolist()) == ([[0.5, 1.5]], [2.5])


def test_slots_make_fids_of_the_integers_of_a_tf_example():
    record = tf_example({"a": put_bytes(3, put_varint(1, 100))})
    assert parse("tf_example", [record], [data.IdColumn("a", slot=1)]).features["a"].to_lists() == [
        [281474976710756]
    ]


def test_missing_features_of_random_tf_examples_are_empty_or_filled():
    random = np.random.default_rng(0)
    rows, records = [], []
    for _ in range(10_000):
        ids = random.integers(0, 1 << 62, random.integers(0, 3)).tolist()
        number = float(np.float32(random.random())) if random.random() < 0.5 else None
        features = {"a": put_bytes(3, put_bytes(1, b"".join(map(varint, ids))))} if ids else {}
        if number is not None:
            features["d"] = put_bytes(2, floats(number))
        rows.append((ids, number or 0.0))
        records.append(tf_example(features))
    made = parse("tf_example", records, ["a"], [data.DenseColumn("d", fill=0.0)])
    assert made.features["a"].to_lists() == [ids for ids, _ in rows]
    assert made.dense["d"].tolist() == [number for _, number in rows]


def test_the_last_entry_of_a_key_counts():
    entries = [
        put_bytes(1, put_bytes(1, b"a") + put_bytes(2, put_bytes(3, put_varint(1, i))))
        for i in (1, 2)
    ]
    assert ids_of("tf_example", put_bytes(1, entries[0]) + put_bytes(1, entries[1]), "a") == [[2]]


def test_an_int64_of_any_size_is_read_at_the_end_of_the_data():
    for bits in range(64):
        record = tf_example({"a": put_bytes(3, put_bytes(1, varint(1 << bits)))})
        expected = (1 << bits) - (1 << 64 if bits == 63 else 0)
        assert ids_of("tf_example", record, "a") == [[expected]]
