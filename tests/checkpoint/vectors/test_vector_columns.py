import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from monolith.checkpoint.vectors.vector_columns import ParquetVectors, VectorColumns
from monolith.checkpoint.vectors.vector_keys import KeyRule
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError

VECTORS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
FLOATS = pa.list_(pa.float32())


def write(path, vectors=VECTORS, kind=FLOATS, keys=(7, 8, 9), **columns):
    table = {"id": pa.array(keys), "v": pa.array(vectors, kind), **columns}
    pq.write_table(pa.table(table), path)
    return path


def open_vectors(path, time=None, **options):
    return ParquetVectors(path, VectorColumns("id", "v", time), KeyRule(), **options)


@pytest.mark.parametrize(
    "kind",
    [
        FLOATS,
        pa.list_(pa.float32(), 2),
        pa.large_list(pa.float64()),
        pa.list_(pa.field("item", pa.float16(), nullable=False), 2),
    ],
    ids=str,
)
def test_every_list_of_floats_is_read_in_chunks(tmp_path, kind):
    vectors = [[np.float16(x) for x in row] for row in VECTORS]
    source = open_vectors(write(tmp_path / "v.parquet", vectors, kind))
    first, second = source.chunks(2)
    assert (source.dim, source.num_rows, source.num_keys) == (2, 3, 3)
    assert (first.keys.tolist(), second.keys.tolist(), second.first_row) == ([7, 8], [9], 2)
    assert torch.equal(torch.cat([first.vectors, second.vectors]), torch.tensor(VECTORS))
    assert first.times is None


def test_the_files_of_a_folder_follow_each_other(tmp_path):
    write(tmp_path / "b.parquet")
    write(tmp_path / "a.parquet", keys=[1, 2, 3])
    counts = []
    source = open_vectors(tmp_path, advance=counts.append)
    assert [chunk.keys.tolist() for chunk in source.chunks(9)] == [[1, 2, 3], [7, 8, 9]]
    assert source.where == f"{tmp_path}/a.parquet and 1 more"
    assert counts == [3, 6]


@pytest.mark.parametrize(
    "times",
    [
        pa.array([5, 6, 7], pa.int32()),
        pa.array([5_999_999, 6_000_000, 7_000_001], pa.timestamp("us")),
    ],
    ids=["seconds", "timestamps"],
)
def test_times_are_in_seconds(tmp_path, times):
    (chunk,) = open_vectors(write(tmp_path / "v.parquet", at=times), "at").chunks(9)
    assert chunk.times.tolist() == [5, 6, 7]


def test_equal_keys_are_refused_with_both_places_or_counted(tmp_path):
    write(tmp_path / "a.parquet", keys=[1, 2, 3])
    write(tmp_path / "b.parquet", keys=[4, 5, 2])
    message = "key 2 in row 1 of .*a.parquet and in row 2 of .*b.parquet .*--duplicates last"
    with pytest.raises(InvalidArgumentError, match=message):
        open_vectors(tmp_path)
    source = open_vectors(tmp_path, is_last_kept=True)
    assert (source.num_rows, source.num_keys) == (6, 5)


def test_files_without_rows_have_no_vectors(tmp_path):
    source = open_vectors(write(tmp_path / "v.parquet", [], keys=pa.array([], pa.int64())))
    assert (source.dim, source.num_rows, list(source.chunks(9))) == (0, 0, [])


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0, 2.0], [3.0], [4.0, 5.0]], "a list of 2 floats in each row, got a list of 1 in row"),
        ([[1.0, 2.0], [4.0, 5.0], None], "2 floats in each row, got none in row 2 of column 'v'"),
        ([[1.0, 2.0], [4.0, None], [5.0, 6.0]], "a list with a missing number in row 1 of column"),
    ],
)
def test_a_list_of_another_size_is_named(tmp_path, vectors, message):
    with pytest.raises(DataLossError, match=message):
        list(open_vectors(write(tmp_path / "v.parquet", vectors)).chunks(9))


def test_a_missing_first_list_is_named(tmp_path):
    with pytest.raises(DataLossError, match="a list of floats in each row, got none in row 0"):
        open_vectors(write(tmp_path / "v.parquet", [None, *VECTORS[1:]]))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (VectorColumns("item", "v"), "one of the columns id, v, at as --key, got 'item'"),
        (VectorColumns("id", "w"), "as --vector, got 'w'"),
        (VectorColumns("id", "v", "t"), "as --time, got 't'"),
        (VectorColumns("id", "at"), "expected lists of floats, got string .column 'at' of"),
        (VectorColumns("v", "v"), "expected keys as integers, got list<.*column 'v'"),
        (VectorColumns("id", "v", "at"), "times as integers or timestamps, got string"),
    ],
)
def test_a_column_that_does_not_fit_is_refused(tmp_path, columns, message):
    path = write(tmp_path / "v.parquet", at=["x", "y", "z"])
    with pytest.raises(InvalidArgumentError, match=message):
        list(ParquetVectors(path, columns, KeyRule()).chunks(9))


def test_a_missing_time_is_named(tmp_path):
    path = write(tmp_path / "v.parquet", at=[5, None, 7])
    with pytest.raises(DataLossError, match="a time in each row, got none in row 1 of column 'at'"):
        list(open_vectors(path, "at").chunks(9))


def test_a_truncated_file_and_a_missing_one_are_refused(tmp_path):
    path = write(tmp_path / "v.parquet")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataLossError, match=r"v.parquet' cannot be read"):
        open_vectors(path)
    with pytest.raises(NotFoundError, match="at least one file at 'no/'"):
        open_vectors("no/")
