import fsspec
import pytest

from monolith.data.files import find_files
from monolith.errors import NotFoundError


def names(paths):
    return [file.path.rsplit("/", 1)[-1] for file in find_files(paths)]


@pytest.fixture
def folder(tmp_path):
    for name in ("b.csv", "a.csv", "c.txt", "_SUCCESS", ".hidden"):
        (tmp_path / name).write_text(name)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "d.csv").write_text("d")
    return tmp_path


def test_a_glob_gives_sorted_files(folder):
    assert names(f"{folder}/*.csv") == ["a.csv", "b.csv"]


def test_a_directory_gives_all_files_below_it_but_hidden_ones(folder):
    assert names(folder) == ["a.csv", "b.csv", "c.txt", "d.csv"]


def test_given_files_keep_their_order(folder):
    assert names([folder / "c.txt", str(folder / "a.csv")]) == ["c.txt", "a.csv"]


def test_a_file_that_is_named_may_be_hidden(folder):
    assert names(folder / "_SUCCESS") == ["_SUCCESS"]


def test_sizes_are_known(folder):
    assert find_files(folder / "a.csv")[0].size == 5


@pytest.mark.parametrize("path", ["nothing.csv", "*.parquet"])
def test_no_file_is_an_error(folder, path):
    with pytest.raises(NotFoundError, match=r"expected at least one file at '.*', got none"):
        find_files(f"{folder}/{path}")


def test_other_stores_are_reached_through_fsspec():
    fsspec.filesystem("memory").pipe("/bucket/x.csv", b"1,2")
    (file,) = find_files("memory://bucket/*.csv")
    with file.open() as opened:
        assert opened.read() == b"1,2"
    assert not file.is_local


@pytest.mark.parametrize("method", ["open", "size_now"])
def test_a_file_that_vanished_is_an_error_that_names_it(folder, method):
    (file,) = find_files(folder / "a.csv")
    (folder / "a.csv").unlink()
    with pytest.raises(NotFoundError, match=r"expected file '.*a\.csv'.*it is gone"):
        getattr(file, method)()


def test_hidden_folders_are_left_out_unless_named(folder):
    (folder / "_temporary").mkdir()
    (folder / "_temporary" / "e.csv").write_text("e")
    assert names(folder) == ["a.csv", "b.csv", "c.txt", "d.csv"]
    assert names(f"{folder}/**/*.csv") == ["a.csv", "b.csv", "d.csv"]
    assert names(f"{folder}/_temporary/*.csv") == ["e.csv"]


def test_a_name_with_brackets_is_the_file_if_there_is_one(folder):
    (folder / "a[1].csv").write_text("1")
    assert names(folder / "a[1].csv") == ["a[1].csv"]


def test_no_path_is_an_error():
    with pytest.raises(NotFoundError, match="expected at least one path, got none"):
        find_files([])
