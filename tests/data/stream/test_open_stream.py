"""Sources that take the URI of a stream in place of paths."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monolith import data

COLUMNS = data.Columns(["user"], labels=["click"])


def write(folder, *users):
    folder.mkdir(exist_ok=True)
    with open(folder / "a.jsonl", "a") as file:
        for user in users:
            file.write(json.dumps({"user": user, "click": user % 2}) + "\n")


def users_of(pipeline, number):
    with iter(pipeline.batch(number)) as batches:
        return [ids for (ids,) in next(batches).features["user"].to_lists()]


def test_json_lines_of_a_folder_are_a_stream(tmp_path):
    write(tmp_path, 7, 8)
    source = data.jsonl(f"tail:{tmp_path}", columns=COLUMNS)
    assert source.is_stream
    assert users_of(source, 2) == [7, 8]


def test_types_and_pattern_reach_the_stream(tmp_path):
    write(tmp_path, 7, 8)
    (tmp_path / "other.txt").write_text("nothing\n")
    uri = f"tail:{tmp_path}?pattern=*.jsonl"
    source = data.jsonl(uri, columns=COLUMNS, types={"user": "int64"})
    assert users_of(source, 2) == [7, 8]


def test_columns_are_chosen_by_the_files_that_are_there(tmp_path):
    write(tmp_path, 7)
    source = data.jsonl(f"tail:{tmp_path}", label="click")
    assert source.columns.names() == ["user", "click"]


def test_parquet_files_that_appear_are_a_stream(tmp_path):
    pq.write_table(pa.table({"user": [7, 8], "click": [0.0, 1.0]}), tmp_path / "a.parquet")
    assert users_of(data.parquet(f"tail:{tmp_path}", columns=COLUMNS), 2) == [7, 8]


def test_a_format_that_streams_do_not_have_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected JSON lines, Arrow, Parquet or records, got csv"):
        data.csv(f"tail:{tmp_path}", columns=COLUMNS)


def test_a_wrong_uri_is_told(tmp_path):
    with pytest.raises(ValueError, match="expected options of pattern, got 'start'"):
        data.jsonl(f"tail:{tmp_path}?start=latest", columns=COLUMNS)
