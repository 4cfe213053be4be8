"""Disks that are full, closed or gone: an error, and old checkpoints as they were."""

import errno
import os
import shutil

import pytest

from monolith.checkpoint import Contents, commit, open_checkpoint, remove, write
from monolith.checkpoint.storage import write_file
from monolith.errors import OpError
from monolith.table.disk import folder as folder_module
from monolith.table.disk.new_file import LocalFile
from tests.checkpoint.cases import filled, listing, saved
from tests.table.disk.cases import assert_same_table
from tests.table.disk.test_faults import FullDisk, file_size_limit

pytestmark = pytest.mark.thorough


def is_complete(prefix):
    return open_checkpoint(prefix).verify() > 0


@pytest.fixture
def calls(monkeypatch):
    """Paths that are synced, and pairs of an old and a new name, in the order of the calls."""
    found, sync, replace = [], os.fsync, os.replace

    def note_sync(number):
        sync(number)
        found.append(os.readlink(f"/proc/self/fd/{number}"))

    def note_replace(old, new):
        found.append((old, new))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
    return found


@pytest.mark.parametrize("limit", [0, 100, 1000])
def test_files_that_cannot_grow(tmp_path, limit):
    prefix = saved(tmp_path / "c-1")
    before = listing(tmp_path)
    with file_size_limit(limit), pytest.raises(OpError, match=r"^\[checkpoint.write\] expected to"):
        saved(tmp_path / "c-2")
    left = {name for name in listing(tmp_path) if not name.endswith(".saving")}
    assert left == set(before)
    assert is_complete(prefix)


def test_full_disk_at_any_write_and_any_sync(tmp_path):
    old = saved(tmp_path / "c-1")
    with pytest.MonkeyPatch.context() as monkeypatch:
        disk = FullDisk(monkeypatch, failing=0)
        saved(tmp_path / "c-2")
    assert disk.num_calls > 20
    for failing in range(1, disk.num_calls + 1):
        remove(f"{tmp_path}/c-2")
        with pytest.MonkeyPatch.context() as monkeypatch:
            FullDisk(monkeypatch, failing)
            with pytest.raises(OpError, match=r"\[checkpoint.write\] .* got No space left"):
                saved(tmp_path / "c-2")
        assert is_complete(old)
        # It is visible if only the last sync failed, of the directory after the step.
        assert (tmp_path / "c-2.manifest.json").exists() == (failing == disk.num_calls)
        names = [name for name in listing(tmp_path) if name.startswith("c-2.")]
        assert names == [] or failing == disk.num_calls


@pytest.mark.parametrize("text", [b"ARROW1", b'"format": "monolith-checkpoint"'])
def test_an_older_checkpoint_of_the_prefix_stays_while_new_files_are_written(
    tmp_path, monkeypatch, text
):
    prefix = saved(tmp_path / "c-1")
    before = listing(tmp_path)
    write = LocalFile.write

    def fail(file, data):
        if text in bytes(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data)

    monkeypatch.setattr(LocalFile, "write", fail)
    with pytest.raises(OpError, match="No space left"):
        saved(prefix, tables=filled(num_rows=500))
    assert listing(tmp_path) == before
    assert_same_table(open_checkpoint(prefix).load_tables()["user"], filled())


def test_files_are_synced_before_they_get_their_names_and_folders_before_the_manifest(
    tmp_path, calls
):
    saved(tmp_path / "c-1")
    steps = [(i, *call) for i, call in enumerate(calls) if isinstance(call, tuple)]
    last, _, manifest = steps[-1]
    assert manifest == f"{tmp_path}/c-1.manifest.json"
    assert len(steps) == len([name for name in listing(tmp_path) if name.startswith("c-1.")])
    assert all(old in calls[: steps[0][0]] for _, old, _ in steps)
    assert all(os.path.dirname(new) in calls[i:last] for i, _, new in steps[:-1])
    assert calls[-1] == str(tmp_path)


def test_the_name_of_the_folder_of_tables_is_synced_before_the_manifest(tmp_path, calls):
    write(Contents(tables=filled()), tmp_path / "c-1")
    steps = [i for i, call in enumerate(calls) if isinstance(call, tuple)]
    assert str(tmp_path) in calls[steps[-2] : steps[-1]]


def test_the_names_of_new_folders_are_synced_before_a_file(tmp_path, calls):
    saved(tmp_path / "a" / "b" / "c-1")
    first = next(i for i, call in enumerate(calls) if "/c-1." in str(call))
    assert {str(tmp_path), f"{tmp_path}/a"} <= set(calls[:first])


def test_a_small_file_is_synced_before_it_gets_its_name_and_its_folder_before_and_after(
    tmp_path, calls
):
    path = f"{tmp_path}/checkpoint"
    write_file(path, b"text")
    assert calls == [f"{path}.new", str(tmp_path), (f"{path}.new", path), str(tmp_path)]


def test_an_older_manifest_is_gone_before_a_file_takes_the_place_of_another(tmp_path, monkeypatch):
    prefix, replace, found = saved(tmp_path / "c-1"), os.replace, []

    def note(old, new):
        found.append(os.path.exists(f"{prefix}.manifest.json"))
        replace(old, new)

    monkeypatch.setattr(os, "replace", note)
    saved(prefix)
    assert len(found) > 2
    assert not any(found)


def test_a_directory_that_nobody_can_write():
    with pytest.raises(OpError, match=r"\[checkpoint.write\] expected to write /proc/self/x/c"):
        saved("/proc/self/x/c")


def test_a_directory_that_vanishes_during_a_save(tmp_path):
    path = tmp_path / "gone"

    def vanish(_):
        shutil.rmtree(path, ignore_errors=True)

    with pytest.raises(OpError, match=r"\[checkpoint.write\] expected to write .*/gone/c, got"):
        saved(path / "c", progress=vanish)


def test_a_read_that_fails_is_an_op_error(tmp_path, monkeypatch):
    prefix = saved(tmp_path / "c-1")

    def fail(folder, name):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(folder_module._LocalFolder, "read", fail)
    with pytest.raises(OpError, match=r"\[open_checkpoint\] expected to read .* got Input/output"):
        open_checkpoint(prefix)


@pytest.mark.parametrize("num_done", range(6))
def test_a_removal_that_was_killed_is_finished_by_the_next_save(tmp_path, monkeypatch, num_done):
    prefix = saved(tmp_path / "c-1")
    delete, calls = commit.delete, []

    def killed(path):
        calls.append(path)
        if len(calls) > num_done:
            raise KeyboardInterrupt
        delete(path)

    with monkeypatch.context() as patch:
        patch.setattr(commit, "delete", killed)
        with pytest.raises(KeyboardInterrupt):
            remove(prefix)
    saved(tmp_path / "c-2")
    left = {name for name in listing(tmp_path) if name.startswith("c-1.")}
    assert (left == set()) == (num_done > 0)
    assert is_complete(prefix) if left else True


def test_a_prefix_that_is_saved_again_after_a_killed_removal_stays(tmp_path):
    prefix = saved(tmp_path / "c-1")
    (tmp_path / "c-1.manifest.json.deleted").write_text("")
    saved(tmp_path / "c-2")
    assert is_complete(prefix)
    assert not (tmp_path / "c-1.manifest.json.deleted").exists()
