import os
import sys

import pytest

from monolith.checkpoint.storage import (
    delete,
    drop_uploads,
    exists,
    isabs,
    list_names,
    modified_time,
    path_of,
    read_file,
    storage_errors,
    write_file,
)
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError, OpError
from monolith.util.stores import Store


@pytest.fixture(params=["local", "file", "memory"])
def root(request, tmp_path):
    return {
        "local": str(tmp_path),
        "file": f"file://{tmp_path}",
        "memory": f"memory://storage-{tmp_path.name}",
    }[request.param]


def test_files_are_written_listed_and_removed(root):
    write_file(f"{root}/a", b"one")
    write_file(f"{root}/a", b"two")
    write_file(f"{root}/b", b"")
    assert read_file(f"{root}/a") == b"two"
    assert list_names(root) == ["a", "b"]
    assert exists(f"{root}/b")
    assert modified_time(f"{root}/a") > 0
    delete(f"{root}/b")
    delete(f"{root}/b")
    assert list_names(root) == ["a"]


def test_what_is_not_there(root):
    assert not exists(f"{root}/x")
    assert list_names(f"{root}/x") == []
    with pytest.raises(NotFoundError, match=r"\[read_file\] expected to read .*/x, got"):
        read_file(f"{root}/x")
    with pytest.raises(NotFoundError, match=r"\[modified_time\] expected to look at .*/x, got"):
        modified_time(f"{root}/x")


@pytest.mark.parametrize(
    ("path", "text"), [("nowhere://a", "Protocol not known"), ("gs://a", "Please install gcsfs")]
)
def test_what_fsspec_does_not_reach_is_told(monkeypatch, path, text):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(InvalidArgumentError, match=rf"fsspec reaches, got '{path}': {text}"):
        exists(path)


def test_an_absolute_path_without_a_host_is_no_local_folder():
    with pytest.raises(InvalidArgumentError, match=r"as hdfs://host/a or hdfs:///a, got 'hdfs:/a'"):
        exists("hdfs:/a")


def test_a_folder_is_removed_with_what_is_in_it(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    delete(str(tmp_path / "a"))
    assert os.listdir(tmp_path) == []


def test_what_the_system_says_becomes_an_op_error_with_its_cause():
    text = r"^\[f\] expected to go, got Is a directory$"
    with pytest.raises(OpError, match=text) as caught, storage_errors("f", "go"):
        raise IsADirectoryError(21, "Is a directory")
    assert isinstance(caught.value.__cause__, IsADirectoryError)


@pytest.mark.parametrize("error", [DataLossError("x"), NotFoundError("x"), ValueError("x")])
def test_other_errors_stay(error):
    with pytest.raises(type(error), match=r"^x$"), storage_errors("f", "go"):
        raise error


def test_paths_below_a_directory():
    assert path_of("memory://a", "b") == "memory://a/b"
    assert path_of("/a", "s3://b/c") == "s3://b/c"


@pytest.mark.req("NT-RUNU-T3")
def test_absolute_paths():
    original = os.path.isabs
    assert isabs("hdfs:/a")
    assert isabs("/a")
    assert not isabs("a")
    assert os.path.isabs is original
    assert not os.path.isabs("hdfs:/a")


@pytest.mark.parametrize(
    ("error", "is_told"), [(FileNotFoundError("no bucket"), False), (OSError("denied"), True)]
)
def test_uploads_that_cannot_be_listed_end_no_save(monkeypatch, caplog, error, is_told):
    def fail(store, start):
        raise error

    monkeypatch.setattr(Store, "drop_uploads", fail)
    drop_uploads("memory://a/c-1.")
    assert ("uploads of memory://a/c-1.* may stay: denied" in caplog.text) == is_told
