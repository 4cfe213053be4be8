import os
from functools import partial

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from monolith.errors import NotFoundError
from monolith.native_training.util.files import copy_file, copy_tree


@pytest.fixture
def memory():
    """An empty file system `memory://`."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


@pytest.fixture
def tries(memory, monkeypatch):
    """What was opened in memory://; the file `late` appears at the third try."""
    seen = []
    plain_open = MemoryFileSystem.open

    def counting_open(self, path, mode="rb", **options):
        seen.append((path, mode))
        if seen == [("/late", "rb")] * 3:
            memory.pipe("/late", b"now")
        return plain_open(self, path, mode, **options)

    monkeypatch.setattr(MemoryFileSystem, "open", counting_open)
    return seen


def write_tree(folder):
    """a, b/c, b/d/e, and an empty folder."""
    for name, text in {"a": "1", "b/c": "22", "b/d/e": ""}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "b" / "empty").mkdir()
    return folder


def tree(folder):
    """Every path below a local folder, with the content of files."""
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.mark.req("MN-UTIL-T1")
def test_a_source_that_appears_at_the_third_try_is_copied(tries, tmp_path):
    copy_file("memory://late", str(tmp_path / "copy"), max_retries=2)
    assert (tmp_path / "copy").read_bytes() == b"now"
    assert tries.count(("/late", "rb")) == 3


@pytest.mark.req("MN-UTIL-T1")
def test_a_source_that_never_appears_is_skipped_silently(tries, tmp_path, capsys):
    copy_file("memory://never", str(tmp_path / "copy"), max_retries=4)
    assert tree(tmp_path) == {}
    assert tries == [("/never", "rb")] * 5
    assert capsys.readouterr() == ("", "")


@pytest.mark.req("MN-UTIL-T1")
def test_a_missing_source_is_an_error_where_it_must_be_there(tries, tmp_path):
    with pytest.raises(NotFoundError, match=r"^\[copy_file\] expected a file, got none at /never$"):
        copy_file("memory://never", str(tmp_path / "copy"), skip_missing=False)
    assert len(tries) == 1


def test_a_file_is_replaced_unless_it_must_not_be(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    with pytest.raises(FileExistsError, match=r"expected no file, got one at .*b; set overwrite$"):
        copy_file(str(tmp_path / "a"), str(tmp_path / "b"), overwrite=False)
    copy_file(str(tmp_path / "a"), str(tmp_path / "b"))
    assert tree(tmp_path) == {"a": "a", "b": "a"}


def test_folders_above_a_copy_are_made(memory, tmp_path):
    (tmp_path / "a").write_text("a")
    for target in (str(tmp_path / "x" / "y" / "a"), "memory://x/y/a"):
        copy_file(str(tmp_path / "a"), target, overwrite=False)
        assert fsspec.open(target).open().read() == b"a"


class Broken:
    """A file that fails after some bytes."""

    def __enter__(self):
        return self

    def __exit__(self, *error): ...

    def read(self, size):
        if hasattr(self, "was_read"):
            raise OSError("broken")
        self.was_read = True
        return b"half"


@pytest.mark.parametrize("system", ["file", "memory"])
def test_half_a_copy_is_removed(memory, monkeypatch, tmp_path, system):
    target = f"file://{tmp_path}/copy" if system == "file" else "memory://copy"
    plain_open = MemoryFileSystem.open
    monkeypatch.setattr(
        MemoryFileSystem,
        "open",
        lambda self, path, mode: Broken() if mode == "rb" else plain_open(self, path, mode),
    )
    with pytest.raises(OSError, match="broken"):
        copy_file("memory://source", target)
    assert (tree(tmp_path), memory.ls("/")) == ({}, [])


def test_a_local_file_stays_when_its_replacement_fails(memory, monkeypatch, tmp_path):
    (tmp_path / "copy").write_text("old")
    monkeypatch.setattr(MemoryFileSystem, "open", lambda self, path, mode: Broken())
    with pytest.raises(OSError, match="broken"):
        copy_file("memory://source", str(tmp_path / "copy"))
    assert tree(tmp_path) == {"copy": "old"}


@pytest.mark.parametrize("copy", [copy_file, copy_tree])
def test_a_negative_number_of_retries_is_refused(copy):
    with pytest.raises(
        ValueError, match=rf"^\[{copy.__name__}\] expected max_retries >= 0, got -1$"
    ):
        copy("a", "b", max_retries=-1)


@pytest.mark.req("MN-UTIL-T2")
@pytest.mark.parametrize("max_workers", [1, 4])
def test_a_tree_replaces_what_was_there(tmp_path, max_workers):
    source = write_tree(tmp_path / "source")
    write_tree(tmp_path / "copy" / "stale")
    copy_tree(str(source), str(tmp_path / "copy"), max_workers=max_workers)
    assert tree(tmp_path / "copy") == tree(source)
    assert set(tree(source)) == {"a", "b", "b/c", "b/d", "b/d/e", "b/empty"}


@pytest.mark.req("MN-UTIL-T2")
@pytest.mark.parametrize("max_workers", [1, 4])
def test_a_tree_goes_to_memory_and_back(memory, tmp_path, max_workers):
    source = write_tree(tmp_path / "source")
    memory.pipe("/there/stale", b"")
    copy_tree(str(source), "memory://there/", max_workers=max_workers)
    assert sorted(memory.find("/there")) == ["/there/a", "/there/b/c", "/there/b/d/e"]
    copy_tree("memory://there", f"file://{tmp_path}/copy", max_workers=max_workers)
    assert tree(tmp_path / "copy") == tree(source)


@pytest.mark.req("MN-UTIL-T2")
@pytest.mark.parametrize("max_workers", [1, 4])
def test_a_file_that_fails_fails_the_copy(memory, monkeypatch, tmp_path, max_workers):
    source = write_tree(tmp_path / "source")
    plain_open = MemoryFileSystem.open

    def refuse(self, path, mode):
        if str(path).endswith("c"):
            raise PermissionError(path)
        return plain_open(self, path, mode)

    monkeypatch.setattr(MemoryFileSystem, "open", refuse)
    with pytest.raises(PermissionError, match=r"^/there/b/c$"):
        copy_tree(str(source), "memory://there", max_workers=max_workers)


@pytest.mark.parametrize("max_workers", [1, 4])
def test_each_file_of_a_tree_is_tried_again(memory, monkeypatch, tmp_path, max_workers):
    memory.pipe("/there/a", b"")
    tried = []

    def missing(self, path, mode):
        tried.append(path)
        raise FileNotFoundError(path)

    monkeypatch.setattr(MemoryFileSystem, "open", missing)
    copy_tree("memory://there", str(tmp_path / "copy"), max_workers=max_workers, max_retries=2)
    assert (tried, tree(tmp_path)) == (["/there/a"] * 3, {"copy": None})


def test_a_missing_tree_is_skipped_or_refused(tmp_path):
    source, target = str(tmp_path / "source"), tmp_path / "copy"
    target.mkdir()
    copy_tree(source, str(target))
    assert target.is_dir()
    with pytest.raises(ValueError, match=f"^{source} doesn't exist!$"):
        copy_tree(source, str(target), skip_missing=False)


def test_a_file_is_no_tree(tmp_path):
    (tmp_path / "a").write_text("a")
    with pytest.raises(NotADirectoryError, match=r"expected a folder, got a file at .*a$"):
        copy_tree(str(tmp_path / "a"), str(tmp_path / "b"))


@pytest.mark.parametrize("target", ["source", "source/b", "link", "."])
def test_a_tree_is_not_copied_into_itself_or_over_what_holds_it(tmp_path, target):
    source = write_tree(tmp_path / "source")
    os.symlink(source, tmp_path / "link")
    before = tree(source)
    with pytest.raises(ValueError, match=r"^\[copy_tree\] expected two separate folders, got "):
        copy_tree(str(source), str(tmp_path / target))
    assert tree(source) == before


def test_folders_with_a_common_beginning_are_separate(memory):
    memory.pipe("/a/x", b"1")
    copy_tree("memory://a", "memory://ab")
    assert memory.cat("/ab/x") == b"1"


def test_a_copy_needs_a_worker():
    with pytest.raises(ValueError, match=r"^\[copy_tree\] expected max_workers > 0, got 0$"):
        copy_tree("a", "b", max_workers=0)


@pytest.mark.parametrize("max_workers", [1, 2])
def test_links_are_followed(tmp_path, max_workers):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "folder").symlink_to(tmp_path / "other")
    (tmp_path / "src" / "gone").symlink_to(tmp_path / "nothing")
    copy_tree(str(tmp_path / "src"), str(tmp_path / "dst"), max_workers=max_workers)
    assert (tmp_path / "dst" / "folder" / "file").read_text() == "x"
    assert [path.name for path in (tmp_path / "dst").iterdir()] == ["folder"]


def test_a_link_to_a_folder_above_is_refused_before_any_change(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "up").symlink_to(tmp_path / "src")
    (tmp_path / "dst").mkdir()
    (tmp_path / "dst" / "old").write_text("x")
    with pytest.raises(ValueError, match=r"expected no links to folders above, got .*/up$"):
        copy_tree(str(tmp_path / "src"), str(tmp_path / "dst"))
    assert (tmp_path / "dst" / "old").exists()


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "src" / "closed").mkdir(parents=True)
    monkeypatch.setattr(os, "scandir", partial(_refuse, os.scandir))
    with pytest.raises(PermissionError):
        copy_tree(str(tmp_path / "src"), str(tmp_path / "dst"))


def _refuse(scandir, path):
    if str(path).endswith("closed"):
        raise PermissionError(path)
    return scandir(path)
