"""Errors of text name file and line."""

import gzip
import os

import pytest

from monolith import data
from monolith.data.files.listing import find_files
from monolith.data.files.text_lines import Text, bad_text
from monolith.errors import DataLossError, FailedPreconditionError


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
    monkeypatch.setattr("monolith.data.files.text_lines._BLOCK", 8)
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
    monkeypatch.setattr("monolith.data.files.text_lines._MAX_LINE", 10)
    monkeypatch.setattr("monolith.data.files.text_lines._BLOCK", 8)
    (tmp_path / "a.jsonl").write_text('{"user": 1111111111111111111111}\n')
    with pytest.raises(DataLossError, match=r"the line at byte 0 is longer than 10 bytes"):
        data.jsonl(tmp_path / "a.jsonl")


@pytest.fixture
def changing(tmp_path, monkeypatch):
    """A file of 84 bytes, read in blocks of 8, whose first block is read."""
    monkeypatch.setattr("monolith.data.files.text_lines._BLOCK", 8)
    (tmp_path / "x.csv").write_text("user\n" + "11\n" * 26 + "1")
    source = data.csv(tmp_path / "x.csv").batch(1)
    batches = iter(source)
    next(batches)
    return tmp_path / "x.csv", batches


def test_a_file_that_is_truncated_while_it_is_read_is_refused(changing):
    path, batches = changing
    os.truncate(path, 40)
    with pytest.raises(FailedPreconditionError, match=r"x.csv' of 84 bytes, .*, got 40; do not"):
        list(batches)


def test_a_file_that_grows_while_it_is_read_is_refused(changing):
    path, batches = changing
    with path.open("a") as opened:
        opened.write("2\n3\n")
    with pytest.raises(FailedPreconditionError, match=r"x.csv' of 84 bytes, .*, got 88; do not"):
        list(batches)


def test_a_compressed_file_that_grows_while_it_is_read_is_refused(tmp_path):
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(b"user\n1\n"))
    (file,) = find_files(path)
    text = Text(file, 0, None)
    with path.open("ab") as opened:
        opened.write(gzip.compress(b"2\n"))
    with pytest.raises(FailedPreconditionError, match=r"x.csv.gz' of \d+ bytes, .*, got \d+; do"):
        text.read()


def test_lines_of_a_file_that_is_truncated_meanwhile_are_not_counted_for_ever(tmp_path):
    (tmp_path / "x.csv").write_text("user\n1\n2\nx\n")
    (file,) = find_files(tmp_path / "x.csv")
    os.truncate(file.path, 0)
    with pytest.raises(FailedPreconditionError, match=r"x.csv' of 11 bytes, .*, got 0; do not"):
        bad_text(file, 9, b"x\n", ValueError("Row #1: bad"))
