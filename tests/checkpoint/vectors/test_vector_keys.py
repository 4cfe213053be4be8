import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monolith import data
from monolith.checkpoint.vectors.vector_keys import KeyRule, read_keys
from monolith.data.columns import Columns, IdColumn
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError

PLAIN, HASHED = KeyRule(), KeyRule(is_hashed=True)
WORDS = ["ada", "", 'a,"b"', "null", "ä"]


def text(tmp_path, content):
    path = tmp_path / "ids.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def parquet(tmp_path, **columns):
    path = tmp_path / "ids.parquet"
    pq.write_table(pa.table(columns), path)
    return str(path)


@pytest.mark.parametrize(
    "content", ["7\n-1\n4611686018427387904\n", "7\r\n-1\r\n4611686018427387904"]
)
def test_a_line_of_a_text_file_is_a_key(tmp_path, content):
    assert read_keys(text(tmp_path, content), PLAIN, 3).tolist() == [7, -1, 1 << 62]


def test_strings_have_the_keys_that_a_data_source_gives_them(tmp_path):
    columns = Columns([IdColumn("w", slot=7)])
    source = data.arrow_table(pa.table({"w": WORDS}), columns=columns)
    (batch,) = source.batch(9)
    keys = read_keys(text(tmp_path, "\n".join(WORDS)), KeyRule(is_hashed=True, slot=7), 5)
    assert keys.tolist() == batch.features["w"].values.tolist()


def test_a_column_of_a_parquet_file_has_keys(tmp_path):
    path = parquet(tmp_path, id=[3, 4], name=pa.array(["a", "b"]).dictionary_encode())
    assert read_keys(path, PLAIN, 2, "id").tolist() == [3, 4]
    assert (
        read_keys(path, HASHED, 2, "name").tolist()
        == data.hash_strings(pa.array(["a", "b"])).tolist()
    )


def test_the_only_column_needs_no_name_and_unsigned_keys_keep_their_bits(tmp_path):
    path = parquet(tmp_path, id=np.array([(1 << 64) - 1, 5], np.uint64))
    assert read_keys(path, PLAIN, 2).tolist() == [-1, 5]


def test_range_numbers_the_rows_and_an_empty_file_has_no_keys(tmp_path):
    assert read_keys("range", KeyRule(slot=1), 3).tolist() == [(1 << 48) + i for i in range(3)]
    assert read_keys(text(tmp_path, ""), PLAIN, 0).tolist() == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("7\nx\n", "an int64 in each line of .*Row #2: .*invalid value 'x'; hash strings with"),
        ("7\n\n8\n", "Row #2: .*invalid value ''"),
        ("18446744073709551615\n", "Row #1: .*invalid value '18446744073709551615'"),
    ],
)
def test_a_line_that_is_no_key_is_named(tmp_path, content, message):
    with pytest.raises(DataLossError, match=message):
        read_keys(text(tmp_path, content), PLAIN, 2)


def test_a_line_of_no_text_is_named(tmp_path):
    with pytest.raises(DataLossError, match=r"a string in each line of .*Row #1: .*invalid UTF8"):
        read_keys(text(tmp_path, b"\xff\n"), HASHED, 1)


@pytest.mark.parametrize(
    ("columns", "rule", "name", "message"),
    [
        ({"a": [1], "b": [1]}, PLAIN, None, "expected one column of keys, got a, b in .*--key-c"),
        ({"a": [1], "b": [1]}, PLAIN, "c", "one of the columns a, b as --key-column, got 'c'"),
        ({"a": ["x"]}, PLAIN, None, "keys as integers, got string .*hash strings with --hash-k"),
        ({"a": [1]}, HASHED, None, "as strings with --hash-keys, got int64 .*leave --hash-keys"),
        ({"a": [1.5]}, PLAIN, None, r"keys as integers, got double \(\S+\)$"),
    ],
)
def test_columns_that_are_no_keys_are_refused(tmp_path, columns, rule, name, message):
    with pytest.raises(InvalidArgumentError, match=message):
        read_keys(parquet(tmp_path, **columns), rule, 1, name)


def test_a_missing_key_is_named(tmp_path):
    with pytest.raises(DataLossError, match=r"a key in each row, got none in row 1 of \S+parquet"):
        read_keys(parquet(tmp_path, a=[1, None]), PLAIN, 2)


def test_options_of_other_files_of_keys_are_refused(tmp_path):
    with pytest.raises(
        InvalidArgumentError, match=r"file of keys with --hash-keys and .*got --keys"
    ):
        read_keys("range", HASHED, 1)
    with pytest.raises(
        InvalidArgumentError, match="--key-column with a Parquet file, got the text"
    ):
        read_keys(text(tmp_path, "1\n"), PLAIN, 1, "id")
    with pytest.raises(InvalidArgumentError, match="slot from 0 to 32767, got 32768"):
        KeyRule(slot=1 << 15)


def test_a_missing_file_is_named():
    with pytest.raises(NotFoundError, match=r"expected a file of keys, got none at 'no.txt'"):
        read_keys("no.txt", PLAIN, 1)
