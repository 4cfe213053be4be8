"""What a cell of CSV can hold: nothing, the empty string, ends of lines, lists."""

import itertools

import pyarrow as pa
import pytest

from monolith import data
from monolith.data.files.tabular import RawFiles, write_rows
from monolith.errors import DataLossError

LISTS = pa.list_(pa.int64())


def raw(path, text):
    """The columns of a file, as lists."""
    path.write_text(text)
    return pa.Table.from_batches(RawFiles(path, "csv")).to_pydict()


def test_nothing_is_missing_and_quotes_are_the_empty_string(tmp_path):
    text = 'city,user\nNA,1\n,2\n"",NA\n"a""b",\n'
    rows = {"city": ["NA", None, "", 'a"b'], "user": [1, 2, None, None]}
    assert raw(tmp_path / "f", text) == rows


def test_a_column_of_empty_strings_is_one_of_strings(tmp_path):
    assert raw(tmp_path / "f", 'user,city\n1,""\n2,\n') == {"user": [1, 2], "city": ["", None]}


def test_numbers_may_be_missing_in_quotes(tmp_path):
    assert raw(tmp_path / "f", '"user","n"\n"1",""\n"2","3"\n')["n"] == [None, 3]


def test_values_with_ends_of_lines_are_cut_where_they_end(tmp_path, monkeypatch):
    monkeypatch.setattr("monolith.data.files.text_lines._BLOCK", 40)
    texts = [f"{'x' * i}\n,{i}" if i % 3 else f"{i}" for i in range(30)]
    rows = pa.table({"text": texts, "user": list(range(30))})
    write_rows(tmp_path / "f", "csv", rows.schema, iter(rows.to_batches()))
    assert pa.Table.from_batches(RawFiles(tmp_path / "f", "csv")) == rows
    source = data.csv(tmp_path / "f").batch(1)
    whole = [batch.features["text"].to_lists() for batch in source]
    for position in range(30):
        batches = iter(source)
        list(itertools.islice(batches, position))
        rest = source.resume(batches.state_dict())
        assert [batch.features["text"].to_lists() for batch in rest] == whole[position:]


def test_a_quote_amid_a_value_is_a_character(tmp_path, monkeypatch):
    monkeypatch.setattr("monolith.data.files.text_lines._BLOCK", 30)
    lines = [f'disk of {i}",{i}' for i in range(20)]
    got = raw(tmp_path / "f", "text,user\n" + "\n".join(lines) + "\n")
    assert got == {"text": [f'disk of {i}"' for i in range(20)], "user": list(range(20))}


def test_lists_are_json(tmp_path):
    text = 'a,b,c\n"[1,-2]",[],"[""x,y"",""é\\n"",null]"\n,[],[]\n'
    rows = {"a": [[1, -2], None], "b": [[], []], "c": [["x,y", "é\n", None], []]}
    assert raw(tmp_path / "f", text) == rows


def test_lists_whose_items_come_later_get_their_type_then(tmp_path):
    (tmp_path / "a").write_text("user,b\n1,[]\n")
    (tmp_path / "b").write_text('user,b\n2,"[7,8]"\n')
    (batch,) = data.csv(tmp_path).batch(9)
    assert batch.features["b"].to_lists() == [[], [7, 8]]


def test_text_in_brackets_stays_text(tmp_path):
    assert raw(tmp_path / "f", "a,b\n[x],1\n[y],2\n")["a"] == ["[x]", "[y]"]


def test_types_say_that_a_column_is_text(tmp_path):
    (tmp_path / "f").write_text("a,b\n[1],1\n")
    source = data.csv(tmp_path / "f", types={"a": "string"})
    (batch,) = source.batch(2)
    assert batch.features["a"].values.tolist() == data.hash_strings(pa.array(["[1]"])).tolist()


@pytest.mark.parametrize(
    ("cell", "kind", "expected"),
    [
        ("[1,", LISTS, "a list of int64"),
        ("7", LISTS, "a list of int64"),
        ("[1]]", LISTS, "a list of int64"),
        ('[1]},{""v"":[2]', LISTS, "a list of int64"),
        ('[1],""w"":2', LISTS, "a list of int64"),
        ("[1.5]", LISTS, "a list of int64"),
        ('[""x""]', LISTS, "a list of int64"),
        ("[1,2,3]", pa.list_(pa.float32(), 2), "a list of float with 2 items"),
    ],
)
@pytest.mark.parametrize("depth", [0, 2])
def test_a_bad_list_is_named_with_its_place(tmp_path, cell, kind, expected, depth):
    (tmp_path / "a.csv").write_text('user,ids\n1,"[3,4]"\n')
    (tmp_path / "f.csv").write_text(f'user,ids\n1,"[3,4]"\n2,"{cell}"\n')
    columns = data.Columns(["user"], [data.DenseColumn("ids", width=2)])
    shown = cell.replace('""', '"')
    source = data.csv(tmp_path, types={"ids": kind}, columns=columns).batch(2)
    with pytest.raises(DataLossError) as caught:
        list(source.prefetch(depth) if depth else source)
    assert str(caught.value) == (
        f"[data] '{tmp_path}/f.csv', sample 1 of the block at byte 9: expected {expected} as JSON, "
        f"such as [] or [1,2], in column 'ids', got {shown!r}; fix the data"
    )


def test_the_only_column_of_a_file_has_no_missing_values(tmp_path):
    rows = pa.table({"a": ["x", None]})
    with pytest.raises(ValueError, match=r"expected values in 'a', the only column of a CSV"):
        write_rows(tmp_path / "f", "csv", rows.schema, iter(rows.to_batches()))


def test_whole_floats_stay_floats_and_missing_ones_missing(tmp_path):
    rows = pa.table({"a": [1.0, -2.5, None, 1e30], "b": [1, None, -3, 4]})
    write_rows(tmp_path / "f", "csv", rows.schema, iter(rows.to_batches()))
    assert (tmp_path / "f").read_text() == '"a","b"\n1.0,1\n-2.5,\n,-3\n1e+30,4\n'
    assert pa.Table.from_batches(RawFiles(tmp_path / "f", "csv")) == rows


def test_dictionaries_are_written_as_their_values(tmp_path):
    rows = pa.table({"a": pa.array(["x", "y", "x"]).dictionary_encode(), "b": [1, 2, 3]})
    write_rows(tmp_path / "f", "csv", rows.schema, iter(rows.to_batches()))
    assert RawFiles(tmp_path / "f", "csv").schema.field("a").type == pa.string()
