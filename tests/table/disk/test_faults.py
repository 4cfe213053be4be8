"""A disk that is full or cannot be written: a clear error, nothing partial, the table as it was."""

import errno
import fcntl
import os
import resource
import signal
from contextlib import contextmanager

import fsspec
import pytest
import torch

from monolith.errors import NotFoundError
from monolith.ops.compiled import load_native
from monolith.table.disk import folder as folder_module
from monolith.table.disk import load_table, save_tables
from monolith.table.disk.buffers import address_of
from monolith.table.disk.new_file import LocalFile
from tests.table.disk.cases import assert_same_table, filled, listing, make, plain, saved

pytestmark = pytest.mark.thorough


@contextmanager
def file_size_limit(num_bytes):
    """Writes beyond so many bytes of a file fail as on a full disk."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def fails(path, code, table=None):
    """A save raises the error and leaves folder and table alone."""
    table = table or filled()
    before, copy = listing(path) if path.is_dir() else None, make(table.config)
    for chunk in table.export():
        copy.import_rows(chunk)
    with pytest.raises(OSError, match=r"\[save_tables\] expected to write to ") as caught:
        save_tables(table, path)
    assert caught.value.errno == code
    text = f"[save_tables] expected to write to {path}, got {os.strerror(code)}"
    assert str(caught.value) == f"[Errno {code}] {text}"
    assert len(table) == len(copy)
    if before is not None:
        assert listing(path) == before


@pytest.mark.parametrize("limit", [0, 1, 1000, 5000, 30_000])
def test_files_that_cannot_grow(tmp_path, limit):
    table = load_table(saved(tmp_path))
    with file_size_limit(limit):
        fails(tmp_path, errno.EFBIG)
    assert_same_table(load_table(tmp_path), table)


@pytest.mark.parametrize("limit", [1 << 20, (5 << 19) + 100])
def test_files_that_cannot_grow_while_a_thread_writes_them(tmp_path, limit):
    table = load_table(saved(tmp_path))
    large = make(plain(1000))
    large.assign(torch.arange(1500), torch.ones(1500, 1000))
    with file_size_limit(limit):
        fails(tmp_path, errno.EFBIG, large)
    assert_same_table(load_table(tmp_path), table)


class FullDisk:
    """Writes and syncs of which one fails, counted over a save."""

    def __init__(self, monkeypatch, failing):
        self.num_calls, self._failing = 0, failing
        write, sync = LocalFile.write, os.fsync
        monkeypatch.setattr(LocalFile, "write", lambda file, data: self._call(write, file, data))
        monkeypatch.setattr(os, "fsync", lambda number: self._call(sync, number))

    def _call(self, call, *arguments):
        self.num_calls += 1
        if self.num_calls == self._failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return call(*arguments)


def test_full_disk_at_any_write_and_any_sync(tmp_path):
    old, new = filled(10), filled(100)
    with pytest.MonkeyPatch.context() as monkeypatch:
        disk = FullDisk(monkeypatch, failing=0)
        save_tables(new, tmp_path)
    assert disk.num_calls > 20
    for failing in range(1, disk.num_calls + 1):
        save_tables(old, tmp_path)
        with pytest.MonkeyPatch.context() as monkeypatch:
            FullDisk(monkeypatch, failing)
            with pytest.raises(OSError, match=r"expected to write to .* No space left"):
                save_tables(new, tmp_path)
        # The save is visible if only the last sync failed, of the folder after the step.
        expected = new if failing == disk.num_calls else old
        assert_same_table(load_table(tmp_path), expected)


@pytest.mark.parametrize("path", ["file", "file/below"])
def test_a_file_in_place_of_the_folder(tmp_path, path):
    (tmp_path / "file").write_text("kept")
    code = errno.EEXIST if path == "file" else errno.ENOTDIR
    fails(tmp_path / path, code)
    assert (tmp_path / "file").read_text() == "kept"


def test_a_folder_that_nobody_can_write():
    with pytest.raises(OSError, match=r"\[save_tables\] expected to write to /proc/self/x, got"):
        save_tables(filled(), "/proc/self/x")


def test_a_read_that_fails_is_an_error_of_the_file(tmp_path, monkeypatch):
    saved(tmp_path)

    def fail(file, memory, is_read_again):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(folder_module, "_read_local", fail)
    with pytest.raises(OSError, match="Input/output error"):
        load_table(tmp_path)


def test_an_error_of_the_disk_keeps_its_number():
    memory = bytearray(8)
    with pytest.raises(OSError, match="Bad file descriptor") as error:
        load_native().read_file(-1, address_of(memory), len(memory), False)
    assert error.value.errno == errno.EBADF


def test_an_error_of_a_store_without_a_number_is_passed_on(tmp_path, monkeypatch):
    def refuse(folder, name):
        raise OSError("the store said no")

    monkeypatch.setattr(folder_module._LocalFolder, "create", refuse)
    with pytest.raises(OSError, match=r"^the store said no$"):
        save_tables(filled(3), tmp_path)


def test_a_store_without_a_save_or_a_file(tmp_path):
    with pytest.raises(NotFoundError, match=r"got none at memory://nowhere/x/manifest.json"):
        load_table("memory://nowhere/x")
    saved("memory://lost")
    files = fsspec.filesystem("memory")
    files.rm(next(name for name in files.find("/lost") if "rows" in name))
    with pytest.raises(NotFoundError, match=r"got none at memory://lost/data-\w+/0-user.rows-0000"):
        load_table("memory://lost")


def test_a_disk_without_locks_is_written_with_a_warning(tmp_path, monkeypatch):
    def no_locks(file, kind):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    text = rf"\[save_tables\] expected a lock at {tmp_path}, got No locks available; nothing keeps"
    with pytest.warns(RuntimeWarning, match=text):
        saved(tmp_path)
    with pytest.warns(RuntimeWarning, match=text):
        saved(tmp_path, filled(20))
    assert_same_table(load_table(tmp_path), filled(20))


def test_every_folder_that_a_save_makes_is_synced_in_the_one_above(tmp_path, monkeypatch):
    synced, sync = [], folder_module._sync_directory
    monkeypatch.setattr(
        folder_module, "_sync_directory", lambda path: (synced.append(path), sync(path))
    )
    saved(tmp_path / "a" / "b" / "c", filled(3))
    assert synced[:3] == [str(tmp_path / "a" / "b"), str(tmp_path / "a"), str(tmp_path)]
    synced.clear()
    saved(tmp_path / "a" / "b" / "c", filled(3))
    assert synced[:2] == [str(tmp_path / "a" / "b"), str(next((tmp_path / "a/b/c").glob("data-*")))]
