import os

import fsspec
import pytest

from monolith.data.files.listing import find_files
from monolith.errors import DataLossError, NotFoundError


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


def test_linked_folders_are_followed(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / "deep").mkdir()
    (other / "deep" / "e.csv").write_text("e")
    (folder / "z").symlink_to(other)
    (other / "back").symlink_to(folder)
    assert names(folder) == ["a.csv", "b.csv", "c.txt", "d.csv", "e.csv"]


@pytest.mark.parametrize("target", ["deep", ".", "..", "/"])
def test_links_add_no_folder_twice_and_none_above(folder, target):
    (folder / "latest").symlink_to(target)
    (folder / "deep" / "up").symlink_to("..")
    assert names(folder) == ["a.csv", "b.csv", "c.txt", "d.csv"]


def test_a_link_into_a_hidden_folder_is_followed(folder):
    (folder / ".store").mkdir()
    (folder / ".store" / "e.csv").write_text("e")
    (folder / "latest").symlink_to(".store")
    assert names(folder) == ["a.csv", "b.csv", "c.txt", "d.csv", "e.csv"]


def test_a_link_that_leads_nowhere_is_named(folder):
    (folder / "x.csv").symlink_to("nothing.csv")
    with pytest.raises(NotFoundError, match=r"expected file '.*/x.csv'; it is gone"):
        find_files(folder)


def test_a_link_to_itself_is_named(folder):
    (folder / "x.csv").symlink_to("x.csv")
    with pytest.raises(DataLossError, match=r"expected a file at '.*/x.csv', got .*symbolic"):
        find_files(folder)


def test_a_folder_in_the_place_of_a_file_is_named(folder):
    (file,) = find_files(folder / "a.csv")
    os.unlink(file.path)
    os.mkdir(file.path)
    with pytest.raises(DataLossError, match=r"'.*/a.csv' cannot be opened: .*directory"):
        file.open()
