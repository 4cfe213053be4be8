"""One schema through every format; and schemas by looking at records."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monolith import data
from monolith.data.files.listing import find_files
from monolith.data.files.tabular import RawFiles, write_rows
from monolith.data.records.decoder import RecordFormat

SLOT = 5 << 48
COLUMNS = data.Columns(
    ["slot_5", "item", "history", "city"],
    ["price", data.DenseColumn("vector", width=2)],
    ["label"],
    weight="instance_weight",
    time="line_id.req_time",
)
TABLE = pa.table(
    {
        "slot_5": pa.array([SLOT + i for i in (1, 2, 3, 4)]),
        "item": pa.array([7, -8, (1 << 62) + 1, 0]),
        "history": pa.array([[1, 2], [], [3], [-4, 5, 6]], pa.list_(pa.int64())),
        "city": pa.array(["Oslo", "", 'a, "b"|c\nd\r\n[e]', "Malmö"]),
        "price": pa.array([0.5, -1.5, 2.25, 0.0], pa.float32()),
        "vector": pa.array([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.float32(), 2)),
        "label": pa.array([1, 0, 1, 1], pa.float32()),
        "instance_weight": pa.array([1, 0.5, 2, 4], pa.float32()),
        "line_id.req_time": pa.array([1700000000, 5, 6, 7]),
    }
)
KINDS = {
    "example": data.examples,
    "example_batch": data.example_batches,
    "instance": data.instances,
    "tf_example": data.tfrecords,
}


def write_jsonl(path):
    path.write_text("".join(json.dumps(row) + "\n" for row in TABLE.to_pylist()))


def batch_of(path, name):
    """Write the table in a format and read it as a batch."""
    if name == "parquet":
        pq.write_table(TABLE, path)
        source = data.parquet(path, columns=COLUMNS)
    elif name == "arrow":
        with pa.ipc.new_file(path, TABLE.schema) as file:
            file.write_table(TABLE)
        source = data.arrow(path, columns=COLUMNS)
    elif name == "jsonl":
        write_jsonl(path)
        source = data.jsonl(path, columns=COLUMNS)
    elif name == "csv":
        write_rows(path, "csv", TABLE.schema, iter(TABLE.to_batches()))
        source = data.csv(path, columns=COLUMNS)
    elif name == "memory":
        source = data.arrow_table(TABLE, columns=COLUMNS)
    else:
        data.RecordWriter(name).write(TABLE, path)
        source = KINDS[name](path, columns=COLUMNS)
    (batch,) = source.batch(100)
    return batch


def as_lists(batch):
    features = {name: each.to_lists() for name, each in batch.features.items()}
    floats = {name: each.tolist() for name, each in (*batch.dense.items(), *batch.labels.items())}
    return features, floats, batch.weight.tolist(), batch.time.tolist()


@pytest.mark.parametrize("name", ["parquet", "arrow", "csv", "jsonl", *KINDS])
def test_every_format_gives_the_same_batch(tmp_path, name):
    assert as_lists(batch_of(tmp_path / "f", name)) == as_lists(batch_of(None, "memory"))


FILES = ["parquet", "arrow", "csv", "jsonl"]


@pytest.mark.parametrize("second", [*FILES, *KINDS])
@pytest.mark.parametrize("first", FILES)
def test_files_become_files_of_every_other_format(tmp_path, first, second):
    write_rows(tmp_path / "one", first, TABLE.schema, iter(TABLE.to_batches()))
    rows = RawFiles(tmp_path / "one", first)
    write_rows(tmp_path / "two", second, rows.schema, iter(rows))
    read = KINDS.get(second) or getattr(data, second)
    (batch,) = read(tmp_path / "two", columns=COLUMNS).batch(9)
    assert as_lists(batch) == as_lists(batch_of(None, "memory"))


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_records_become_records_of_another_kind(tmp_path, first, second):
    ids = data.Columns(["slot_5", "history"], ["price"], ["label"])
    data.RecordWriter(first).write(TABLE, tmp_path / "one")
    (batch,) = KINDS[first](tmp_path / "one", columns=ids).batch(9)
    table = pa.table(
        {
            **{name: each.to_arrow() for name, each in batch.features.items()},
            "price": batch.dense["price"].numpy(),
            "label": batch.label.numpy(),
        }
    )
    data.RecordWriter(second).write(table, tmp_path / "two")
    (again,) = KINDS[second](tmp_path / "two", columns=ids).batch(9)
    assert again.features["history"].to_lists() == TABLE["history"].to_pylist()
    assert again.features["slot_5"].to_lists() == [[each] for each in TABLE["slot_5"].to_pylist()]
    assert again.label.tolist() == TABLE["label"].to_pylist()


@pytest.mark.parametrize("name", KINDS)
def test_without_columns_the_first_records_tell(tmp_path, name):
    data.RecordWriter(name).write(TABLE, tmp_path / "f")
    (batch,) = KINDS[name](tmp_path / "f").batch(9)
    slot = "fc_slot_5" if name == "instance" else "slot_5"
    extra = {"line_id.req_time"} if name == "tf_example" else set()
    assert set(batch.features) == {slot, "item", "history", "city"} | extra
    assert set(batch.dense) == {"price", "vector"}
    assert batch.features["history"].to_lists() == TABLE["history"].to_pylist()
    assert (batch.label.tolist(), batch.weight.tolist()) == ([1, 0, 1, 1], [1, 0.5, 2, 4])


def test_the_schema_of_a_file_has_the_types_of_its_features(tmp_path):
    data.RecordWriter("example").write(TABLE, tmp_path / "f")
    schema = RecordFormat("example").schema(find_files(tmp_path / "f")[0])
    kinds = {name: str(schema.field(name).type) for name in ("item", "history", "price", "vector")}
    assert kinds == {
        "item": "int64",
        "history": "list<item: int64>",
        "price": "float",
        "vector": "fixed_size_list<item: float>[2]",
    }


def test_bad_records_tell_nothing_of_the_columns(tmp_path):
    good = data.RecordWriter("example").records(pa.table({"a": [1, 2]}))
    records = [b"\x0a", b"\x0a\x03\x0a\x01\xff", *good]
    data.RecordWriter("example").write_records(records, tmp_path / "f")
    batches = iter(data.examples(tmp_path / "f", on_error="skip").batch(9))
    assert next(batches).features["a"].to_lists() == [[], [1], [2]]
    assert sum(batches.num_skipped.values()) == 1


def test_an_empty_file_has_no_columns(tmp_path):
    (tmp_path / "f").write_bytes(b"")
    assert RecordFormat("example").schema(find_files(tmp_path / "f")[0]).names == []


def test_missing_values_are_left_out(tmp_path):
    table = pa.table({"a": pa.array([1, None]), "d": pa.array([None, 0.5])})
    columns = data.Columns(["a"], [data.DenseColumn("d", fill=-1.0)])
    for name, read in KINDS.items():
        data.RecordWriter(name).write(table, tmp_path / "f")
        (batch,) = read(tmp_path / "f", columns=columns).batch(9)
        assert batch.features["a"].to_lists() == [[1], []]
        assert batch.dense["d"].tolist() == [-1.0, 0.5]


def test_writers_refuse_what_records_cannot_hold():
    with pytest.raises(ValueError, match="expected kind"):
        data.RecordWriter("json")
    with pytest.raises(TypeError, match="expected column 'a' of numbers, strings or lists"):
        data.RecordWriter("example").records(pa.table({"a": [b"x"]}))
    with pytest.raises(ValueError, match="did is not in line id, pls check!"):
        data.RecordWriter("example").records(pa.table({"line_id.did": [1]}))
    with pytest.raises(ValueError, match="expected fids v2 of slot 3, got one of slot 0"):
        data.RecordWriter("instance").records(pa.table({"slot_3": [1]}))


def test_line_ids_of_every_field_are_written_and_read():
    values = {
        "uid": (7, [7]),
        "actions": ([1, 2], [1, 2]),
        "special_strategies": ([3, 4], [3, 4]),
        "rank": (9, [9]),
        "item_id": (1 << 63, [-(1 << 63)]),
        "is_draw": (1, [1]),
    }
    table = pa.table(
        {
            f"line_id.{name}": pa.array([given], pa.uint64() if name == "item_id" else None)
            for name, (given, _) in values.items()
        }
        | {"line_id.sample_rate": [0.5], "line_id.cid": ["x"]}
    )
    (record,) = data.RecordWriter("example").records(table)
    columns = data.Columns([*table.column_names[:-2], "line_id.cid"], ["line_id.sample_rate"])
    made = data.RecordParser("example", columns)([record])
    for name, (_, expected) in values.items():
        assert made.features[f"line_id.{name}"].to_lists() == [expected]
    assert made.dense["line_id.sample_rate"].tolist() == [0.5]
