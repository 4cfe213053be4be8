"""JSON that is nested too deep is refused before Arrow, which would crash, sees it."""

import json

import pytest

from monolith import data
from monolith.data.files.json_depth import depth_of
from monolith.errors import DataLossError

DEEP = 20_000


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a":', "}"), ('["]",', "]"), ("[", "")])
def test_a_deep_json_line_is_named_with_its_place(tmp_path, begin, end):
    (tmp_path / "w.jsonl").write_text('{"a": 1}\n')
    deep = '{"a": 2, "b": ' + begin * DEEP + "0" + end * DEEP + "}"
    (tmp_path / "x.jsonl").write_text('{"a": 1, "b": 0}\n' + deep + "\n")
    source = data.jsonl(tmp_path)
    expected = r"nested at most 64 deep, got 2\d{4} \(line 2 of the block\)"
    with pytest.raises(DataLossError, match=rf"x.jsonl', in the block at byte 0: .*{expected}"):
        list(source.batch(2))


def test_a_deep_json_line_is_refused_where_types_are_guessed(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": ' + "[" * DEEP + "]" * DEEP + "}\n")
    with pytest.raises(DataLossError, match=r"x.jsonl' cannot be read: expected JSON values"):
        data.jsonl(tmp_path / "x.jsonl")


def test_a_deep_csv_cell_is_named_with_its_place(tmp_path):
    (tmp_path / "w.csv").write_text("a\n[1]\n")
    (tmp_path / "x.csv").write_text(f"a\n[1]\n{'[' * DEEP}{']' * DEEP}\n")
    source = data.csv(tmp_path)
    with pytest.raises(DataLossError, match=r"x.csv', sample 1 .* column 'a', got '\[\[\[\["):
        list(source.batch(2))


def test_a_column_of_deep_csv_cells_is_guessed_to_be_text(tmp_path):
    (tmp_path / "x.csv").write_text(f"a,b\n{'[' * DEEP}{']' * DEEP},1\n")
    (batch,) = data.csv(tmp_path / "x.csv").batch(1)
    assert batch.features["b"].to_lists() == [[1]]


@pytest.mark.parametrize(
    "text", ["[" * 99, "]" * 99, '["' * 99, '\\"[' * 99, '"' + "{" * 99, "\\" * 9 + "[" * 99]
)
def test_brackets_in_strings_are_not_counted(tmp_path, text):
    lines = [json.dumps({"a": text, "b": [i]}) for i in range(9)]
    assert depth_of("\n".join(lines).encode()) <= 4
    (tmp_path / "x.jsonl").write_text("\n".join(lines) + "\n")
    (batch,) = data.jsonl(tmp_path / "x.jsonl").batch(9)
    assert batch.features["b"].to_lists() == [[i] for i in range(9)]


def test_values_may_be_nested_a_little(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": 1, "b": ' + "[" * 50 + "]" * 50 + "}\n")
    source = data.jsonl(tmp_path / "x.jsonl", columns=data.Columns(["a"]))
    assert [batch.features["a"].to_lists() for batch in source.batch(1)] == [[[1]]]


@pytest.mark.parametrize(
    ("middle", "levels"), [("0", 0), ('"["', 0), ("[]", 1), ("{}", 1), ('{"a": []}', 2)]
)
@pytest.mark.parametrize("depth", [1, 60])
def test_a_depth_is_never_too_small_and_too_large_by_at_most_2(depth, middle, levels):
    found = depth_of(("[" * depth + middle + "]" * depth).encode())
    assert depth + levels <= found <= depth + levels + 2
