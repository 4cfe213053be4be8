import errno
import queue
import sys

import fsspec
import pytest
from fsspec.exceptions import FSTimeoutError
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from monolith.errors import InvalidArgumentError
from monolith.util import stores
from monolith.util.stores import Store, open_store


class DriverError(Exception):
    """An error of a driver that is no OSError, as botocore has them."""


class Failing(MemoryFileSystem):  # type: ignore[misc]
    """A store whose calls fail."""

    error = DriverError("no answer")

    def cat_file(self, path, **options):
        raise self.error


class Blocks(fsspec.spec.AbstractBufferedFile):  # type: ignore[misc]
    """A new file that notes what becomes of it."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.calls = []

    def _upload_chunk(self, final=False):
        self.calls.append("completed" if final else "uploaded")

    def discard(self):
        self.calls.append("discarded")


class BlockStore(MemoryFileSystem):  # type: ignore[misc]
    def _open(self, path, mode="rb", block_size=None, **options):
        return Blocks(self, path, mode, block_size=block_size)


def test_paths_of_this_machine_have_the_local_file_system(tmp_path):
    for path in (str(tmp_path), f"file://{tmp_path}"):
        system, inside = open_store(path)
        assert isinstance(system, LocalFileSystem)
        assert inside == str(tmp_path)


def test_the_same_store_is_equal():
    assert open_store("memory://a")[0] == open_store("memory://b")[0]


def test_an_error_of_a_driver_is_an_os_error_that_names_the_path():
    with pytest.raises(OSError, match=r"no answer \(memory:///a\)") as caught:
        Store(Failing()).cat_file("/a")
    assert isinstance(caught.value.__cause__, DriverError)


def test_an_os_error_of_a_driver_stays():
    store = Store(Failing())
    store.system.error = PermissionError("denied")
    with pytest.raises(PermissionError, match=r"^denied$"):
        store.cat_file("/a")


def test_a_store_without_its_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    text = r"got 's3://b/a': Install s3fs to access S3; pip install 'monolith-torch\[s3\]'$"
    with pytest.raises(InvalidArgumentError, match=text):
        open_store("s3://b/a")


@pytest.mark.parametrize("protocol", ["s3", "s3a"])
def test_options_of_fsspec_come_before_our_timeouts(monkeypatch, protocol):
    config = {"config_kwargs": {"read_timeout": 3}}
    monkeypatch.setitem(fsspec.config.conf, protocol, config)
    system = open_store(f"{protocol}://b/a")[0].system
    assert system.config_kwargs["read_timeout"] == 3
    assert system.config_kwargs["connect_timeout"] == 5


class Slow(MemoryFileSystem):  # type: ignore[misc]
    """A store that answers a read when `answers` has something."""

    answers: "queue.Queue[str]" = queue.Queue()

    def cat_file(self, path, **options):
        return self.answers.get(timeout=60).encode()


def test_a_call_that_takes_long_says_what_it_waits_for(monkeypatch):
    monkeypatch.setattr(stores, "_FIRST_WORD_SECONDS", 0.0)
    monkeypatch.setattr(stores._log, "warning", lambda text, *words: Slow.answers.put(text % words))
    told = Store(Slow()).cat_file("/a")
    assert told == b"waiting for a store to read memory:///a, since 0 s of at most 120 s"


def test_a_store_that_hangs_ends_a_call(monkeypatch):
    monkeypatch.setattr(stores, "_CALL_SECONDS", 0.01)
    with pytest.raises(TimeoutError, match=r"no answer for 0.01 s \(memory:///a\)"):
        Store(Slow()).cat_file("/a")
    Slow.answers.put("late")


def test_the_timeout_of_a_driver_is_told_with_the_path():
    store = Store(Failing())
    store.system.error = FSTimeoutError()
    with pytest.raises(TimeoutError, match=r"no answer for 120 s \(memory:///a\)"):
        store.cat_file("/a")


def test_a_new_file_is_uploaded_in_blocks():
    with Store(BlockStore()).open("/a", "wb") as file:
        for _ in range(17):
            file.write(bytes(1 << 20))
    assert file._file.calls == ["uploaded", "uploaded", "completed"]


def test_a_new_file_that_is_discarded_is_not_completed():
    file = Store(BlockStore()).open("/a", "wb")
    file.write(b"x")
    file.discard()
    file.close()
    assert file.closed
    assert file._file.calls == ["discarded"]


def test_a_new_file_is_discarded_by_an_error_of_its_block():
    with pytest.raises(KeyError), Store(BlockStore()).open("/a", "wb") as file:
        raise KeyError
    assert file._file.calls == ["discarded"]


def test_a_discarded_file_of_a_store_without_uploads_is_closed():
    file = Store(MemoryFileSystem()).open("/discarded", "wb")
    file.discard()
    assert Store(MemoryFileSystem()).exists("/discarded")


def test_a_new_file_takes_no_name_that_is_taken():
    store = Store(MemoryFileSystem())
    store.create_file("/taken", b"one")
    with pytest.raises(FileExistsError):
        store.create_file("/taken", b"two")
    assert store.cat_file("/taken") == b"one"


class WithoutConditions(MemoryFileSystem):  # type: ignore[misc]
    """A store that refuses a condition on a write."""

    def pipe_file(self, path, value, mode="overwrite", **options):
        if mode == "create":
            raise OSError(errno.ENOSYS, "not implemented")
        super().pipe_file(path, value)


def test_a_new_file_needs_no_conditions_of_the_store(tmp_path):
    store, path = Store(WithoutConditions()), f"/{tmp_path.name}"
    store.create_file(path, b"one")
    with pytest.raises(FileExistsError, match=f"a file is there.*memory:///{tmp_path.name}"):
        store.create_file(path, b"two")
    assert store.cat_file(path) == b"one"


def test_another_error_of_a_new_file_stays():
    class Full(MemoryFileSystem):
        def pipe_file(self, *arguments, **options):
            raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        Store(Full()).create_file("/a", b"")


class Uploads(MemoryFileSystem):  # type: ignore[misc]
    """A store with unfinished uploads, which are listed one at a time."""

    protocol = "s3"

    def __init__(self):
        super().__init__()
        self.keys, self.dropped = ["run/a", "run/b"], []

    def split_path(self, path):
        bucket, _, key = path.partition("/")
        return bucket, key, None

    def call_s3(self, method, Bucket, Prefix, KeyMarker=None, UploadIdMarker=None):  # noqa: N803
        assert (method, Bucket, Prefix) == ("list_multipart_uploads", "bucket", "run/")
        number = 0 if KeyMarker is None else self.keys.index(KeyMarker) + 1
        key = self.keys[number]
        page = {"Uploads": [{"Key": key, "UploadId": f"id {key}"}]}
        is_more = number + 1 < len(self.keys)
        return {**page, "IsTruncated": is_more, "NextKeyMarker": key, "NextUploadIdMarker": "x"}

    def abort_mpu(self, bucket, key, number):
        self.dropped.append((bucket, key, number))


def test_all_unfinished_uploads_of_a_start_are_dropped():
    system = Uploads()
    Store(system).drop_uploads("bucket/run/")
    assert system.dropped == [("bucket", "run/a", "id run/a"), ("bucket", "run/b", "id run/b")]


def test_other_stores_have_no_unfinished_uploads():
    Store(Failing()).drop_uploads("/a")
