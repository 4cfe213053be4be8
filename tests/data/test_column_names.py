"""Files whose columns cannot be named, or told apart, and files without columns, are named."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monolith import data
from monolith.errors import DataLossError

TWICE = r"x': expected columns of different names, got 'a' 2 times; rename them"


def test_two_csv_columns_of_one_name_are_refused(tmp_path):
    (tmp_path / "x").write_text("b,a,a\n1,2,3\n")
    with pytest.raises(DataLossError, match=TWICE):
        data.csv(tmp_path / "x", columns=data.Columns(["b"]))


def test_two_csv_columns_of_one_name_in_a_later_file_are_refused(tmp_path):
    (tmp_path / "w").write_text("a\n1\n")
    (tmp_path / "x").write_text("a,a\n2,3\n")
    with pytest.raises(DataLossError, match=TWICE):
        list(data.csv(tmp_path).batch(1))


def test_two_given_names_of_csv_columns_that_are_equal_are_refused(tmp_path):
    (tmp_path / "x").write_text("1,2\n")
    with pytest.raises(DataLossError, match=TWICE):
        data.csv(tmp_path / "x", names=["a", "a"])


def test_two_parquet_columns_of_one_name_are_refused(tmp_path):
    rows = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(rows, tmp_path / "x")
    with pytest.raises(DataLossError, match=TWICE):
        data.parquet(tmp_path / "x")


def test_json_names_that_are_no_utf8_are_named_with_the_file(tmp_path):
    (tmp_path / "x").write_bytes(b'{"\xff": 1}\n')
    with pytest.raises(DataLossError, match=r"x': expected names of columns in UTF-8, got .*0xff"):
        data.jsonl(tmp_path / "x")


def test_json_names_that_are_no_utf8_in_a_later_file_are_named_with_it(tmp_path):
    (tmp_path / "w").write_text('{"a": null}\n')
    (tmp_path / "x").write_bytes(b'{"a": 1, "\xff": 1}\n')
    with pytest.raises(DataLossError, match=r"x': expected names of columns in UTF-8, got .*0xff"):
        list(data.jsonl(tmp_path).batch(1))


@pytest.mark.parametrize("read", [data.csv, data.jsonl])
@pytest.mark.parametrize("columns", [None, data.Columns(["a"])])
def test_an_empty_file_of_text_is_named(tmp_path, read, columns):
    (tmp_path / "x").write_text("")
    with pytest.raises(
        ValueError, match=r"expected at least one column, got none \(file '.*/x'\);"
    ):
        read(tmp_path / "x", columns=columns)


def test_many_empty_files_are_counted(tmp_path):
    for name in "xyz":
        (tmp_path / name).write_text("")
    with pytest.raises(ValueError, match=r"got none \(file '.*/x' and 2 more\); leave out empty"):
        data.csv(tmp_path)
