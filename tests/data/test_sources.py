"""Each source gives the same samples."""

import gzip
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from monolith import data
from monolith.data import Columns
from monolith.errors import DataLossError, FailedPreconditionError, NotFoundError
from tests.data.samples import table, users, write_parquet

COLUMNS = Columns(["user", "items"], ["price"], ["label"])


def write_csv(path, rows, separator=",", header=True):
    text = [separator.join(rows.schema.names)] if header else []
    for row in rows.to_pylist():
        row["items"] = "|".join(map(str, row["items"]))
        text.append(separator.join("" if cell is None else str(cell) for cell in row.values()))
    path.write_text("\n".join(text) + "\n")


def write(folder, kind):
    rows = table(100)
    path = folder / f"samples.{kind}"
    if kind == "parquet":
        pq.write_table(rows, path)
        return data.parquet(path)
    if kind == "arrow":
        with pa.ipc.new_file(path, rows.schema) as sink:
            sink.write_table(rows, max_chunksize=33)
        return data.arrow(path)
    if kind == "arrows":
        with pa.OSFile(str(path), "wb") as out, pa.ipc.new_stream(out, rows.schema) as sink:
            sink.write_table(rows, max_chunksize=33)
        return data.arrow(path)
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows.to_pylist())))
        return data.jsonl(path)
    write_csv(path, rows)
    return data.csv(
        path, lists={"items": "|"}, types={"items": pa.list_(pa.int64())}, label="label"
    )


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrows", "jsonl", "csv"])
def test_every_format_gives_the_same_samples(tmp_path, kind):
    (batch,) = write(tmp_path, kind).batch(100)
    expected = table(100).to_pydict()
    assert batch.features["user"].values.tolist() == expected["user"]
    assert batch.features["items"].to_lists() == expected["items"]
    assert batch.dense["price"].tolist() == expected["price"]
    assert batch.label.tolist() == expected["label"]


@pytest.mark.parametrize("make", [lambda rows: rows, lambda rows: rows.to_pandas(),
                                  lambda rows: rows.to_pydict(),
                                  lambda rows: rows.combine_chunks().to_batches()[0]])  # fmt: skip
def test_tables_in_memory_give_the_same_samples(make):
    (batch,) = data.arrow_table(make(table(5))).batch(10)
    assert batch.features["items"].to_lists() == table(5)["items"].to_pylist()


class Frame:
    """Gives an Arrow stream, as frames of polars and relations of duckdb do."""

    def __arrow_c_stream__(self, requested_schema=None):
        return table(5).__arrow_c_stream__(requested_schema)


def test_whoever_gives_an_arrow_stream_is_taken():
    assert users(data.arrow_table(Frame())) == [0, 1, 2, 3, 4]


def test_missing_numbers_of_pandas_are_missing():
    frame = pd.DataFrame({"user": [1.0, 2.0], "x": [1.0, np.nan]})
    with pytest.raises(DataLossError, match=r"'table', sample 1: expected a number in column 'x'"):
        list(data.arrow_table(frame).batch(2))


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match=r"expected an Arrow table.*got int"):
        data.arrow_table(3)


def test_columns_can_be_named(tmp_path):
    paths = write_parquet(tmp_path)
    source = data.parquet(paths, columns=Columns(["user"], labels=["price"])).batch(8)
    batch = next(iter(source))
    assert list(batch.features) == ["user"]
    assert batch.label.tolist() == [i / 4 for i in range(8)]


def test_columns_and_label_exclude_each_other():
    with pytest.raises(ValueError, match="expected columns or label, got both"):
        data.arrow_table(table(5), columns=COLUMNS, label="price")


def test_on_error_is_one_of_two_words():
    with pytest.raises(ValueError, match=r'on_error "raise" or "skip", got \'ignore\''):
        data.arrow_table(table(5), on_error="ignore")


def test_bad_samples_are_skipped_and_counted():
    rows = {"user": [1, 2, 3], "x": [1.0, None, 3.0]}
    batches = iter(data.arrow_table(rows, on_error="skip").batch(2))
    assert users(batches) == [1, 3]
    assert batches.num_skipped == {"expected a number in column 'x'": 1}


def test_a_block_of_bad_samples_only_is_left_out():
    rows = {"user": [1], "x": pa.array([None], pa.float32())}
    assert list(data.arrow_table(rows, on_error="skip").batch(2)) == []


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_bad_sample_is_named_by_its_number_in_the_whole_file(tmp_path, kind):
    rows, path = pa.table({"x": [0.5, 1.5, 2.5, None]}), tmp_path / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(rows, path, row_group_size=2)
    else:
        with pa.ipc.new_file(path, rows.schema) as sink:
            sink.write_table(rows, max_chunksize=2)
    with pytest.raises(DataLossError, match=r"sample 3: expected a number in column 'x'"):
        list(getattr(data, kind)(path).batch(4))


def test_a_second_file_without_a_column_is_named(tmp_path):
    write_parquet(tmp_path, 1)
    pq.write_table(table(5).drop_columns("price"), tmp_path / "part-1.parquet")
    with pytest.raises(ValueError, match=r"'.*part-1.parquet' expected a column 'price', got"):
        list(data.parquet(tmp_path).batch(8))


def test_a_second_file_with_another_type_is_named(tmp_path):
    write_parquet(tmp_path, 1)
    wrong = table(5).set_column(2, "price", pa.array(["x"] * 5))
    pq.write_table(wrong, tmp_path / "part-1.parquet")
    with pytest.raises(TypeError, match=r"'.*part-1.parquet' expected column 'price' of numbers"):
        list(data.parquet(tmp_path).batch(8))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_truncated_file_is_an_error_that_names_it(tmp_path, kind):
    write(tmp_path, kind)
    path = tmp_path / f"samples.{kind}"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataLossError, match=rf"samples.{kind}' cannot be read: "):
        list(getattr(data, kind)(path, columns=COLUMNS).batch(8))


def test_a_damaged_second_file_is_an_error_that_names_it(tmp_path):
    write_parquet(tmp_path, 1)
    (tmp_path / "part-1.parquet").write_bytes(b"PAR1 this is no parquet file PAR1")
    with pytest.raises(DataLossError, match=r"\[data\] '.*part-1.parquet' cannot be read: "):
        list(data.parquet(tmp_path).batch(8))


def test_an_empty_file_is_an_error_that_names_it(tmp_path):
    write_parquet(tmp_path, 1)
    (tmp_path / "part-1.parquet").write_bytes(b"")
    with pytest.raises(DataLossError, match=r"\[data\] '.*part-1.parquet' cannot be read: "):
        list(data.parquet(tmp_path).batch(8))


def test_lists_whose_offsets_are_wrong_are_refused(tmp_path):
    offsets = pa.array([0, 5, 2], pa.int32())
    wrong = pa.ListArray.from_buffers(
        pa.list_(pa.int64()), 2, [None, offsets.buffers()[1]], children=[pa.array([1, 2])]
    )
    rows = pa.record_batch({"user": wrong})
    with pa.ipc.new_file(tmp_path / "x.arrow", rows.schema) as sink:
        sink.write_batch(rows)
    with pytest.raises(DataLossError, match=r"x.arrow' cannot be read"):
        list(data.arrow(tmp_path / "x.arrow").batch(8))


def test_a_file_that_grew_is_refused(tmp_path):
    source = data.parquet(write_parquet(tmp_path, 1)).batch(8)
    with open(tmp_path / "part-0.parquet", "ab") as file:
        file.write(b"more")
    with pytest.raises(FailedPreconditionError, match=r"expected file .* bytes, as when"):
        next(iter(source))


def test_a_file_that_vanished_is_refused(tmp_path):
    source = data.parquet(write_parquet(tmp_path, 2)).batch(50)
    batches = iter(source)
    next(batches)
    (tmp_path / "part-1.parquet").unlink()
    with pytest.raises(NotFoundError, match=r"part-1.parquet'; it is gone"):
        list(batches)


def test_csv_without_a_header_and_with_a_long_separator(tmp_path):
    write_csv(tmp_path / "ratings.dat", table(9), "::", header=False)
    source = data.csv(tmp_path / "ratings.dat", separator="::", names=table(1).schema.names)
    assert users(source.batch(4)) == list(range(9))


def test_the_header_of_csv_may_be_quoted(tmp_path):
    (tmp_path / "x.csv").write_text('"user","a, b"\n1,2.5\n')
    (batch,) = data.csv(tmp_path / "x.csv").batch(4)
    assert batch.dense["a, b"].tolist() == [2.5]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_compressed_text_is_read(tmp_path, kind):
    write(tmp_path, kind)
    packed = tmp_path / f"packed.{kind}.gz"
    packed.write_bytes(gzip.compress((tmp_path / f"samples.{kind}").read_bytes()))
    assert users(getattr(data, kind)(packed).batch(7)) == list(range(100))


def test_a_file_that_lost_its_end_cannot_be_resumed(tmp_path):
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(b"user\n1\n2\n"))
    source = data.csv(path)
    state = iter(source.batch(1)).state_dict()
    state["state"]["source"] = {"next": 1, "turn": 0, "open": [[0, 1000]]}
    with pytest.raises(DataLossError, match="is shorter than it was"):
        source.batch(1).resume(state)


def test_blank_lines_and_files_are_no_samples(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"user": 1}\n')
    (tmp_path / "b.jsonl").write_text("\n\n")
    (tmp_path / "c.jsonl").write_text("")
    (tmp_path / "d.jsonl").write_text('{"user": 2}\n')
    assert users(data.jsonl(tmp_path).batch(1)) == [1, 2]


def test_types_of_json_can_be_given(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"user": 1, "price": 2}\n')
    source = data.jsonl(tmp_path / "a.jsonl", types={"price": "float32"})
    assert [each.name for each in source.columns.dense_columns] == ["price"]


def test_an_empty_first_file_of_json_has_the_given_columns(tmp_path):
    (tmp_path / "a.jsonl").write_text("")
    assert list(data.jsonl(tmp_path / "a.jsonl", types={"user": "int64"}).batch(2)) == []


def test_a_csv_of_a_header_only_has_no_samples(tmp_path):
    (tmp_path / "a.csv").write_text("user,price\n")
    columns = data.Columns(["user"], ["price"])
    assert list(data.csv(tmp_path / "a.csv", columns=columns).batch(2)) == []


def test_types_that_no_value_tells_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("user,price\n")
    with pytest.raises(TypeError, match=r"expected column 'user' of numbers, .* got type null"):
        data.csv(tmp_path / "a.csv")


def test_files_without_columns_are_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(ValueError, match="expected at least one column, got none"):
        data.jsonl(tmp_path / "a.jsonl")


@pytest.mark.parametrize("first", ["", "user,city,price\n", "user,city,price\n,,1.5\n"])
def test_types_of_csv_are_those_of_the_first_values(tmp_path, first):
    (tmp_path / "a.csv").write_text(first)
    (tmp_path / "b.csv").write_text("user,city,price\n7,oslo,0.5\n")
    source = data.csv(tmp_path)
    assert [source.columns.names(), len(source.columns.ids)] == [["user", "city", "price"], 2]
    *_, last = source.batch(1)
    assert last.features["city"].values.tolist() == data.hash_strings(pa.array(["oslo"])).tolist()


@pytest.mark.parametrize("first", ["", '{"user": 7, "city": null, "items": []}\n', "\n"])
def test_types_of_json_are_those_of_the_first_values(tmp_path, first):
    (tmp_path / "a.jsonl").write_text(first)
    (tmp_path / "b.jsonl").write_text('{"user": 8, "city": "oslo", "items": [1]}\n')
    (tmp_path / "c.jsonl").write_text('{"user": 9, "new": 1}\n')
    *_, late, last = data.jsonl(tmp_path).batch(1)
    assert late.features["items"].to_lists() == [[1]]
    assert late.features["city"].values.tolist() == data.hash_strings(pa.array(["oslo"])).tolist()
    assert last.features["city"].to_lists() == last.features["items"].to_lists() == [[]]


def test_a_column_of_json_that_begins_late_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("monolith.data.files.text_lines._BLOCK", 40)
    lines = ['{"user": 1, "items": []}', '{"user": 2, "items": []}', '{"user": 3, "items": [5]}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    source = data.jsonl(tmp_path / "a.jsonl", columns=data.Columns(["user", "items"]))
    assert [batch.features["items"].to_lists() for batch in source.batch(3)] == [[[], [], [5]]]


def test_only_an_empty_string_of_csv_is_missing(tmp_path):
    (tmp_path / "a.csv").write_text("city,price\nNA,1\noslo,NA\n,2\n")
    columns = data.Columns(["city"], [data.DenseColumn("price", fill=-1)])
    (batch,) = data.csv(tmp_path / "a.csv", columns=columns).batch(4)
    hashes = data.hash_strings(pa.array(["NA", "oslo"])).tolist()
    assert batch.features["city"].to_lists() == [hashes[:1], hashes[1:], []]
    assert batch.dense["price"].tolist() == [1, -1, 2]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_invalid_utf8_is_refused_where_types_are_guessed(tmp_path, name):
    text = {"a.csv": b"city\n\xff\n", "a.jsonl": b'{"city": "\xff"}\n'}[name]
    (tmp_path / name).write_bytes(text)
    read = data.csv if name == "a.csv" else data.jsonl
    with pytest.raises(DataLossError, match=rf"{name}.*UTF8"):
        list(read(tmp_path / name).batch(4))


def test_names_of_csv_that_are_no_utf8_are_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"us\xffer\n1\n")
    with pytest.raises(DataLossError, match=r"a.csv', in the line of names: expected UTF-8"):
        data.csv(tmp_path / "a.csv")


def test_the_end_of_a_packed_file_may_be_in_capitals(tmp_path):
    (tmp_path / "A.CSV.GZ").write_bytes(gzip.compress(b"user\n1\n"))
    assert users(data.csv(tmp_path / "A.CSV.GZ").batch(2)) == [1]


def test_synthetic_samples_do_not_depend_on_the_block(monkeypatch):
    whole = users_of_synthetic(data.synthetic(1000, num_features=2, ids_per_feature=3))
    monkeypatch.setattr("monolith.data.memory._BLOCK", 64)
    assert users_of_synthetic(data.synthetic(1000, num_features=2, ids_per_feature=3)) == whole


def users_of_synthetic(source):
    return [row for batch in source for row in batch.features["feature_1"].to_lists()]


def test_synthetic_labels_follow_the_ids():
    source = data.synthetic(20_000, num_features=1, num_dense=0, vocabulary=50)
    (block,) = [source.stage.read(0, 20_000)]
    rates = pa.table(block).group_by("feature_0").aggregate([("label", "mean"), ("label", "count")])
    rates = rates.filter(pc.field("label_count") > 200)
    assert rates.num_rows > 5
    assert pc.max(rates["label_mean"]).as_py() - pc.min(rates["label_mean"]).as_py() > 0.5


def test_ids_of_synthetic_samples_are_below_the_vocabulary():
    block = data.synthetic(50_000, num_features=1, vocabulary=10).stage.read(0, 50_000)
    assert set(block["feature_0"].to_pylist()) == set(range(10))


def test_views_of_strings_are_strings():
    views = pa.array(["oslo", None], pa.string_view())
    lists = pa.LargeListArray.from_arrays([0, 0, 2], views)
    (batch,) = data.arrow_table(pa.table({"city": views, "cities": lists})).batch(4)
    oslo = data.hash_strings(pa.array(["oslo"])).tolist()
    assert batch.features["city"].to_lists() == [oslo, []]
    assert batch.features["cities"].to_lists() == [[], oslo]
