"""Integers that no int64 holds are not made floats: an id would be another one."""

import pytest

from monolith import data
from monolith.errors import DataLossError

LARGE = 1 << 63


@pytest.mark.parametrize("cell", [LARGE, -LARGE - 1, "1" * 5000])
def test_a_csv_column_of_an_integer_beyond_64_bits_is_refused(tmp_path, cell):
    (tmp_path / "x").write_text(f"v,user\n1,5\n2,{cell}\n3,\n")
    expected = rf"x': expected integers of int64 in column 'user', got {str(cell)[:40]}; name its"
    with pytest.raises(DataLossError, match=expected):
        data.csv(tmp_path / "x")


@pytest.mark.parametrize("cell", ["{}", "[3, {}, null]"])
def test_a_json_column_of_an_integer_beyond_64_bits_is_refused(tmp_path, cell):
    (tmp_path / "x").write_text(f'{{"u": {cell.format(5)}}}\n{{"u": {cell.format(LARGE)}}}\n')
    with pytest.raises(DataLossError, match=rf"x': .* column 'u', got {LARGE}; name its type"):
        data.jsonl(tmp_path / "x")


def test_a_csv_column_of_lists_of_such_integers_is_refused(tmp_path):
    (tmp_path / "x").write_text(f'v,u\n1,[5]\n2,"[7,{LARGE}]"\n')
    with pytest.raises(DataLossError, match=rf"x': .* column 'u', got {LARGE}; name its type"):
        data.csv(tmp_path / "x")


def test_a_csv_column_whose_first_lists_are_empty_is_refused_likewise(tmp_path):
    (tmp_path / "w").write_text("v,u\n1,[]\n")
    (tmp_path / "x").write_text(f"v,u\n1,[{LARGE}]\n")
    with pytest.raises(DataLossError, match=rf"x': .* column 'u', got {LARGE}; name its type"):
        data.csv(tmp_path)


@pytest.mark.parametrize(
    ("read", "text"), [(data.csv, f"u\n{LARGE}\n"), (data.jsonl, f'{{"u": {LARGE}}}\n')]
)
def test_a_type_says_that_ids_are_unsigned(tmp_path, read, text):
    (tmp_path / "x").write_text(text)
    (batch,) = read(tmp_path / "x", types={"u": "uint64"}).batch(1)
    assert batch.features["u"].to_lists() == [[-LARGE]]


@pytest.mark.parametrize(
    ("read", "text"),
    [(data.csv, f"u\n{LARGE}\n1.5\n"), (data.jsonl, f'{{"u": {LARGE}}}\n{{"u": 1e19}}\n')],
)
def test_a_column_of_floats_may_have_a_large_integer(tmp_path, read, text):
    (tmp_path / "x").write_text(text)
    (batch,) = read(tmp_path / "x").batch(2)
    assert batch.dense["u"][0] == LARGE


def test_objects_over_several_lines_are_left_to_arrow(tmp_path):
    (tmp_path / "x").write_text(f'{{"u":\n{LARGE}}}\n')
    (batch,) = data.jsonl(tmp_path / "x").batch(2)
    assert batch.dense["u"][0] == LARGE
