"""Records agree with google.protobuf, in both directions."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith import data
from monolith.native_training.ops import (
    FeatureConfig,
    FeatureConfigs,
    OutConfig,
    OutType,
    PoolingType,
    SliceConfig,
)
from monolith.native_training.ops.layout_messages import (
    decode_feature_configs,
    encode_feature_configs,
)
from tests.data.records.protos import EXAMPLE, INSTANCE, TF_EXAMPLE, classes

pytestmark = pytest.mark.req("G-T5")

INT64 = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-3, 3)
FIDS = st.integers(0, (1 << 64) - 1) | st.integers(0, 3)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.just(0.0)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1) | st.just(0)
WIRES = st.sampled_from(
    [(newer, packed) for newer in (False, True) for packed in (None, True, False)]
)


def signed(number):
    return number - (1 << 64) if number >= 1 << 63 else number


def to_v2(fid):
    """A fid v1 as fid v2."""
    return signed((fid >> 54) << 48 | fid & ((1 << 48) - 1))


def hashed(texts):
    return data.hash_strings(pa.array([text.decode() for text in texts], pa.string())).tolist()


def lists(values):
    return st.lists(values, max_size=4)


# Payload of a Feature -> its values, and the ids that they are.
IDS = {
    "fid_v1_list": (lists(FIDS), lambda xs: [to_v2(x) for x in xs]),
    "fid_v2_list": (lists(FIDS), lambda xs: [signed(x) for x in xs]),
    "int64_list": (lists(INT64), list),
    "bytes_list": (lists(TEXTS.map(str.encode)), hashed),
    "fid_v1_lists": (lists(lists(FIDS)), lambda xs: [to_v2(x) for part in xs for x in part]),
    "fid_v2_lists": (lists(lists(FIDS)), lambda xs: [signed(x) for part in xs for x in part]),
    "int64_lists": (lists(lists(INT64)), lambda xs: [x for part in xs for x in part]),
    "bytes_lists": (
        lists(lists(TEXTS.map(str.encode))),
        lambda xs: hashed([x for part in xs for x in part]),
    ),
    "int64_value": (INT64, lambda x: [x]),
    "bytes_value": (TEXTS.map(str.encode), lambda x: hashed([x])),
}
# Payload -> two values.
PAIRS = {
    name: st.lists(values, min_size=2, max_size=2)
    for name, values in (("float_list", FLOATS), ("double_list", FLOATS), ("int64_list", INT64))
}


def payloads(kinds):
    return st.sampled_from(sorted(kinds)).flatmap(
        lambda name: st.tuples(
            st.just(name), kinds[name][0] if isinstance(kinds[name], tuple) else kinds[name]
        )
    )


def fill(feature, payload):
    """Set one payload of a Feature, also an empty one."""
    name, values = payload
    if name.endswith("_value"):
        setattr(feature, name, values)
        return
    inner = getattr(feature, name)
    inner.SetInParent()
    if name.endswith("_lists"):
        for part in values:
            inner.list.add().value.extend(part)
    else:
        inner.value.extend(values)


def ids_of(payload):
    return [] if payload is None else IDS[payload[0]][1](payload[1])


def surprise(message):
    """Set the fields that our readers do not know."""
    if "newer_number" in message.DESCRIPTOR.fields_by_name:
        message.newer_number, message.newer_text = -5, "later"
        message.newer_numbers.extend([1, 1 << 63])


LINES = st.fixed_dictionaries(
    {},
    optional={
        "uid": FIDS,
        "req_time": INT64,
        "item_id": FIDS,
        "actions": lists(INT32),
        "chnid": INT64,
        "special_strategies": lists(INT32),
        "user_id": TEXTS,
        "is_draw": st.booleans(),
        "rank": INT32,
        "sample_rate": FLOATS,
    },
)
LINE_IDS = ["uid", "req_time", "item_id", "actions", "chnid", "special_strategies", "user_id",
            "is_draw", "rank"]  # fmt: skip


def put_line(message, line):
    message.SetInParent()
    surprise(message)
    for name, value in line.items():
        if isinstance(value, list):
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)


def line_ids(message, name):
    """The ids of a field of a line id, as google.protobuf reads the message back."""
    value = getattr(message, name)
    if name == "user_id":
        return hashed([value.encode()]) if value or has_presence(message, name) else []
    if not isinstance(value, int):
        return list(value)
    return [signed(value)] if value or has_presence(message, name) else []


def has_presence(message, name):
    field = message.DESCRIPTOR.fields_by_name[name]
    return field.has_presence and message.HasField(name)


@given(
    features=st.dictionaries(TEXTS.filter(bool), st.none() | payloads(IDS), max_size=4),
    pair=payloads(PAIRS),
    labels=st.lists(FLOATS, min_size=2, max_size=4),
    weight=st.none() | st.floats(0.5, 8, width=32),
    key=st.integers(0, (1 << 32) - 1),
    line=LINES,
    wire=WIRES,
)
def test_examples_of_google_are_read(features, pair, labels, weight, key, line, wire):
    features = {f"f{name}": payload for name, payload in features.items()}
    types = classes(EXAMPLE, newer=wire[0], packed=wire[1])
    message = types["Example"](label=labels, data_source_key=key)
    surprise(message)
    message.named_raw_feature.add(name="raw").raw_feature.feature.add().int64_value = 3
    for number, (name, payload) in enumerate([*features.items(), ("pair", pair)]):
        named = message.named_feature.add(name=name, id=number, sorted_id=-1)
        surprise(named)
        if payload is not None:
            fill(named.feature, payload)
    if weight is not None:
        message.instance_weight = weight
    put_line(message.line_id, line)
    columns = data.Columns(
        [*features, "data_source_key", *(f"line_id.{name}" for name in LINE_IDS)],
        [data.DenseColumn("pair", width=2)],
        [data.Label("label", width=2)],
        weight="instance_weight",
    )
    batch = data.RecordParser("example", columns)([message.SerializeToString()])
    read = {name: batch.features[name].to_lists()[0] for name in batch.features}
    assert {name: read[name] for name in features} == {
        name: ids_of(payload) for name, payload in features.items()
    }
    assert batch.dense["pair"].tolist() == [np.array(pair[1], np.float32).tolist()]
    assert batch.label.tolist() == [labels[:2]]
    assert batch.weight.tolist() == [1.0 if weight is None else weight]
    assert read["data_source_key"] == [key]
    assert {name: read[f"line_id.{name}"] for name in LINE_IDS} == {
        name: line_ids(message.line_id, name) for name in LINE_IDS
    }


@given(
    rows=st.lists(st.tuples(st.none() | payloads(IDS), lists(FLOATS)), min_size=1, max_size=4),
    shared=payloads(IDS),
    wire=WIRES,
)
def test_example_batches_of_google_are_read(rows, shared, wire):
    types = classes(EXAMPLE, newer=wire[0], packed=wire[1])
    message = types["ExampleBatch"](batch_size=len(rows), data_source_key=7)
    surprise(message)
    own, every, label = (
        message.named_feature_list.add(name=name, type=kind, id=-1)
        for name, kind in (("own", 0), ("every", 1), ("__LABEL__", 0))
    )
    fill(every.feature.add(), shared)
    for payload, numbers in rows:
        feature = own.feature.add()
        surprise(feature)
        if payload is not None:
            fill(feature, payload)
        label.feature.add().float_list.value.extend(numbers)
    columns = data.Columns(["own", "every"], labels=[data.Label("label", width=2, fill=-1.0)])
    batch = data.RecordParser("example_batch", columns)([message.SerializeToString()])
    assert batch.features["own"].to_lists() == [ids_of(payload) for payload, _ in rows]
    assert batch.features["every"].to_lists() == [ids_of(shared)] * len(rows)
    assert batch.label.tolist() == [[*numbers, -1.0, -1.0][:2] for _, numbers in rows]


INSTANCE_IDS = {
    "fid": (lists(FIDS), lambda xs: [signed(x) for x in xs]),
    "int64_value": (lists(INT64), list),
    "bytes_value": (lists(TEXTS.map(str.encode)), hashed),
    "fid_list": (lists(lists(FIDS)), lambda xs: [signed(x) for part in xs for x in part]),
    "int64_list": (lists(lists(INT64)), lambda xs: [x for part in xs for x in part]),
    "bytes_list": (
        lists(lists(TEXTS.map(str.encode))),
        lambda xs: hashed([x for part in xs for x in part]),
    ),
}


@given(
    fids=st.lists(
        st.tuples(st.sampled_from([0, 1, 1023]), st.integers(0, (1 << 54) - 1)), max_size=6
    ),
    features=st.dictionaries(TEXTS.filter(bool), payloads(INSTANCE_IDS), max_size=3),
    values=st.lists(FLOATS, min_size=2, max_size=2),
    labels=st.lists(FLOATS, min_size=1, max_size=3),
    weight=st.none() | FLOATS,
    line=LINES,
    wire=WIRES,
)
def test_instances_of_google_are_read(fids, features, values, labels, weight, line, wire):
    features = {f"fc_{name}": payload for name, payload in features.items()}
    types = classes(INSTANCE, newer=wire[0], packed=wire[1])
    flat = [slot << 54 | signature for slot, signature in fids]
    message = types["Instance"](fid=flat, value=values, label=labels, dense=[9.0], next_fid=[3])
    surprise(message)
    message.label_tag.add(key=-1, val=0.5)
    for name, (kind, items) in features.items():
        feature = message.feature.add(name=name)
        surprise(feature)
        if kind.endswith("_list"):
            for part in items:
                getattr(feature, kind).add().value.extend(part)
        else:
            getattr(feature, kind).extend(items)
    if weight is not None:
        message.instance_weight = weight
    put_line(message.line_id, line)
    slots = ["fc_slot_0", "fc_slot_1", "slot_1023"]
    columns = data.Columns(
        [*slots, *features, *(f"line_id.{name}" for name in LINE_IDS)],
        [data.DenseColumn("value", width=2), "line_id.sample_rate"],
        ["label"],
        weight="instance_weight",
    )
    batch = data.RecordParser("instance", columns)([message.SerializeToString()])
    read = {name: batch.features[name].to_lists()[0] for name in batch.features}
    for slot, name in ((0, slots[0]), (1, slots[1]), (1023, slots[2])):
        assert read[name] == [to_v2(fid) for fid in flat if fid >> 54 == slot]
    for name, (kind, items) in features.items():
        assert read[name] == INSTANCE_IDS[kind][1](items)
    for name in LINE_IDS:
        assert read[f"line_id.{name}"] == line_ids(message.line_id, name)
    assert batch.dense["value"].tolist() == [values]
    assert batch.dense["line_id.sample_rate"].tolist() == [line.get("sample_rate", 1.0)]
    assert batch.label.tolist() == labels[:1]
    assert batch.weight.tolist() == [1.0 if weight is None else weight]


TF_IDS = {"int64_list": IDS["int64_list"], "bytes_list": IDS["bytes_list"]}


@given(
    features=st.dictionaries(TEXTS.filter(bool), st.none() | payloads(TF_IDS), max_size=4),
    pair=payloads({"float_list": PAIRS["float_list"], "int64_list": PAIRS["int64_list"]}),
    wire=WIRES,
)
def test_tf_examples_of_google_are_read(features, pair, wire):
    features = {f"f{name}": payload for name, payload in features.items()}
    types = classes(TF_EXAMPLE, newer=wire[0], packed=wire[1])
    message = types["Example"]()
    surprise(message)
    for name, payload in [*features.items(), ("pair", pair)]:
        feature = message.features.feature[name]
        surprise(feature)
        if payload is not None:
            fill(feature, payload)
    columns = data.Columns([*features], [data.DenseColumn("pair", width=2)])
    batch = data.RecordParser("tf_example", columns)([message.SerializeToString()])
    for name, payload in features.items():
        assert batch.features[name].to_lists() == [ids_of(payload)]
    assert batch.dense["pair"].tolist() == [np.array(pair[1], np.float32).tolist()]


# What RecordWriter writes is what google.protobuf reads.

ROWS = st.fixed_dictionaries(
    {
        "one": st.none() | INT64,
        "many": st.none() | lists(INT64),
        "text": st.none() | TEXTS,
        "texts": lists(TEXTS),
        "price": st.none() | FLOATS,
        "pair": lists(FLOATS),
        "label": FLOATS,
        "instance_weight": FLOATS,
        "line_id.uid": st.none() | FIDS,
        "line_id.actions": lists(INT32),
        "line_id.special_strategies": lists(INT32),
        "line_id.chnid": st.none() | INT64,
        "line_id.user_id": st.none() | TEXTS,
        "line_id.sample_rate": st.none() | FLOATS,
    }
)
TYPES = {
    "one": pa.int64(),
    "many": pa.list_(pa.int64()),
    "text": pa.string(),
    "texts": pa.list_(pa.string()),
    "price": pa.float32(),
    "pair": pa.list_(pa.float32()),
    "label": pa.float32(),
    "instance_weight": pa.float32(),
    "line_id.uid": pa.uint64(),
    "line_id.actions": pa.list_(pa.int32()),
    "line_id.special_strategies": pa.list_(pa.int32()),
    "line_id.chnid": pa.int64(),
    "line_id.user_id": pa.string(),
    "line_id.sample_rate": pa.float32(),
}
PLAIN = ["one", "many", "text", "texts", "price", "pair"]


def table_of(rows):
    return pa.table(
        {name: pa.array([row[name] for row in rows], kind) for name, kind in TYPES.items()}
    )


def as_list(value):
    return value if isinstance(value, list) else [value]


def payload_of(feature):
    """Values of a Feature that google.protobuf has read; None without a payload."""
    kind = feature.WhichOneof("type")
    if kind is None:
        return None
    values = list(getattr(feature, kind).value)
    if kind == "bytes_list":
        return [value.decode() for value in values]
    return [signed(value) for value in values] if kind == "fid_v2_list" else values


def assert_line(message, row):
    line = classes(INSTANCE)["LineId"].FromString(message)
    for name in ("uid", "chnid", "user_id", "sample_rate"):
        value = getattr(line, name) if line.HasField(name) else None
        assert value == row[f"line_id.{name}"]
    assert list(line.actions) == row["line_id.actions"]
    assert list(line.special_strategies) == row["line_id.special_strategies"]


def assert_canonical(message, record):
    """The record has no unknown field, and the bytes that google.protobuf writes."""
    assert message.SerializeToString(deterministic=True) == record


def values_of(row):
    return {name: as_list(row[name]) for name in PLAIN if row[name] is not None}


@given(st.lists(ROWS, min_size=1, max_size=3))
def test_google_reads_our_examples(rows):
    # Bytes in place of a message keep what the line id does not say.
    types = classes(EXAMPLE.replace("line_id=100:LineId", "line_id=100:bytes"))
    for row, record in zip(rows, data.RecordWriter("example").records(table_of(rows)), strict=True):
        message = types["Example"].FromString(record)
        read = {named.name: payload_of(named.feature) for named in message.named_feature}
        assert {name: values for name, values in read.items() if values is not None} == values_of(
            row
        )
        assert list(message.label) == [row["label"]]
        assert message.instance_weight == row["instance_weight"]
        assert_line(message.line_id, row)


@given(st.lists(ROWS, min_size=1, max_size=3))
def test_google_reads_our_example_batches(rows):
    (record,) = data.RecordWriter("example_batch").records(table_of(rows))
    message = classes(EXAMPLE)["ExampleBatch"].FromString(record)
    assert message.batch_size == len(rows)
    read = {named.name: named.feature for named in message.named_feature_list}
    assert {named.type for named in message.named_feature_list} == {0}
    for number, row in enumerate(rows):
        plain = {name: payload_of(read[name][number]) for name in PLAIN}
        assert {name: each for name, each in plain.items() if each is not None} == values_of(row)
        assert payload_of(read["__LABEL__"][number]) == [row["label"]]
        assert payload_of(read["instance_weight"][number]) == [row["instance_weight"]]
        line = read["__LINE_ID__"][number].bytes_list.value[0]
        assert_line(line, row)
    assert_canonical(message, record)


@given(st.lists(ROWS, min_size=1, max_size=3))
def test_google_reads_our_instances(rows):
    table = table_of(rows).append_column(
        "fc_slot_5", pa.array([[5 << 48 | 3, 5 << 48]] * len(rows))
    )
    for row, record in zip(rows, data.RecordWriter("instance").records(table), strict=True):
        message = classes(INSTANCE)["Instance"].FromString(record)
        assert list(message.fid) == [5 << 54 | 3, 5 << 54]
        read = {}
        for feature in message.feature:
            kind = {"one": "fid", "many": "fid", "text": "bytes_value", "texts": "bytes_value"}
            values = list(getattr(feature, kind.get(feature.name, "float_value")))
            is_text = kind.get(feature.name) == "bytes_value"
            read[feature.name] = [v.decode() if is_text else v for v in values]
            if kind.get(feature.name) == "fid":
                read[feature.name] = [signed(value) for value in values]
        assert {name: read.get(name, []) for name in PLAIN} == {
            name: values_of(row).get(name, []) for name in PLAIN
        }
        assert (list(message.label), message.instance_weight) == (
            [row["label"]],
            row["instance_weight"],
        )
        assert_line(message.line_id.SerializeToString(), row)
        assert_canonical(message, record)


@given(st.lists(ROWS, min_size=1, max_size=3))
def test_google_reads_our_tf_examples(rows):
    table = table_of(rows).select(PLAIN)
    for row, record in zip(rows, data.RecordWriter("tf_example").records(table), strict=True):
        message = classes(TF_EXAMPLE)["Example"].FromString(record)
        read = {name: payload_of(feature) for name, feature in message.features.feature.items()}
        assert {name: each for name, each in read.items() if each is not None} == values_of(row)


@given(st.integers(1, 50), st.sampled_from(list(PoolingType)), st.booleans())
def test_feature_configs_agree_in_both_directions(width, pooling, is_newer):
    pieces = [(0, width), (width, width + 2)]
    configs = FeatureConfigs(
        {"b": FeatureConfig("t", (width, 2), pooling, 300), "a": FeatureConfig("u", (1,))},
        {"out": OutConfig([SliceConfig("b", *piece) for piece in pieces], OutType.NONE)},
    )
    ours = encode_feature_configs(configs, batch_size=-1)
    message = classes(EXAMPLE)["FeatureConfigs"].FromString(ours)
    assert message.SerializeToString(deterministic=True) == ours
    feature, out = message.feature_configs["b"], message.out_configs["out"]
    assert (feature.table, list(feature.slice_dims), feature.pooling_type) == (
        "t",
        [width, 2],
        pooling,
    )
    assert [(piece.feature_name, piece.start, piece.end) for piece in out.slice_configs] == [
        ("b", 0, width), ("b", width, width + 2),
    ]  # fmt: skip
    assert (out.out_type, out.shape[0].dims[0]) == (OutType.NONE, -1)
    theirs = classes(EXAMPLE, newer=is_newer, packed=not is_newer)["FeatureConfigs"].FromString(
        ours
    )
    surprise(theirs)
    surprise(theirs.feature_configs["b"])
    assert decode_feature_configs(theirs.SerializeToString()) == decode_feature_configs(ours)
    assert decode_feature_configs(ours).feature_configs == configs.feature_configs
