"""Errors of text name file and line."""

import pytest

from monolith import data
from monolith.errors import DataLossError


def test_a_value_that_csv_cannot_convert_is_named_with_its_place(tmp_path):
    (tmp_path / "a.csv").write_text("user\n1\n")
    (tmp_path / "b.csv").write_text("user\n2\nx\n")
    with pytest.raises(DataLossError, match=r"b.csv', line 3: column 'user': .* value 'x'"):
        list(data.csv(tmp_path).batch(4))


def test_a_line_with_other_columns_is_named_though_lines_before_are_empty(tmp_path):
    (tmp_path / "x.dat").write_text("1::2\n\n3::4\r\n\r\n5\n")
    with pytest.raises(DataLossError, match=r"x.dat', line 5: .* Expected 2 columns, got 1: 5"):
        data.csv(tmp_path / "x.dat", separator="::", names=["a", "b"])


def test_the_separator_in_an_error_is_that_of_the_file(tmp_path):
    (tmp_path / "x.dat").write_text("1::2\n3::4::5\n")
    with pytest.raises(DataLossError, match=r"x.dat', line 2: .* got 3: 3::4::5"):
        data.csv(tmp_path / "x.dat", separator="::", names=["a", "b"])


def test_lines_are_counted_over_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("monolith.data.text_lines._BLOCK", 8)
    (tmp_path / "x.csv").write_text("user\n" + "1\n" * 20 + "x\n")
    with pytest.raises(DataLossError, match=r"x.csv', line 22: "):
        list(data.csv(tmp_path / "x.csv", types={"user": "int64"}).batch(4))


def test_invalid_utf8_of_csv_is_named_with_its_place(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"city\noslo\n")
    (tmp_path / "b.csv").write_bytes(b"city\n\xff\xfe\n")
    with pytest.raises(DataLossError, match=r"b.csv', line 2: column 'city': .*UTF8"):
        list(data.csv(tmp_path).batch(4))


def test_broken_json_is_named_with_its_place(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"user": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"user": 2}\n{"user": \n')
    with pytest.raises(DataLossError, match=r"b.jsonl', in the block at byte 0: "):
        list(data.jsonl(tmp_path).batch(4))


def test_a_line_that_never_ends_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("monolith.data.text_lines._MAX_LINE", 10)
    monkeypatch.setattr("monolith.data.text_lines._BLOCK", 8)
    (tmp_path / "a.jsonl").write_text('{"user": 1111111111111111111111}\n')
    with pytest.raises(DataLossError, match=r"the line at byte 0 is longer than 10 bytes"):
        data.jsonl(tmp_path / "a.jsonl")
