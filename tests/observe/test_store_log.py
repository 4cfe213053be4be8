"""Logs in a store, which may be slow, gone for a while, or gone for good."""

import logging
import queue
import threading

import fsspec
import pytest

from monolith.observe import store_log
from monolith.observe.store_log import StoreLog
from monolith.util.stores import Store


@pytest.fixture
def store(monkeypatch):
    """A store in memory whose `uploads` are noted; `errors` and `gate` let uploads fail or hang."""
    system = fsspec.implementations.memory.MemoryFileSystem(
        global_store=False, skip_instance_cache=True
    )
    store = Noted(Store(system))
    monkeypatch.setattr(store_log, "open_store", lambda url: (store, url.split("://")[1]))
    monkeypatch.setattr(store_log, "_PACE_SECONDS", 0.0)
    return store


class Noted:
    def __init__(self, store):
        self._store, self.uploads, self.errors = store, queue.Queue(), []
        self.gate = threading.Event()
        self.gate.set()
        self.create_file = store.create_file

    def pipe_file(self, path, data):
        self.uploads.put((path, data))
        self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)
        self._store.pipe_file(path, data)

    def files(self):
        return {path: self._store.cat_file(path) for path in self._store.find("/")}


def log_of(first=0, header=b"#"):
    return StoreLog(lambda number: f"memory:///log.{number}", first, header)


def test_what_was_flushed_is_uploaded_as_a_whole_file(store):
    log = log_of()
    for text in (b"one,", b"two,"):
        log.write(text)
        log.flush()
        assert store.uploads.get(timeout=60)[0] == "/log.0"
    log.close()
    assert store.files() == {"/log.0": b"#one,two,"}


def test_a_new_log_has_its_header_at_once(store):
    log = log_of(first=3)
    assert store.files() == {"/log.3": b"#"}
    log.close()


def test_a_log_takes_no_file_that_is_there(store):
    log_of().close()
    with pytest.raises(FileExistsError):
        log_of()


def test_a_large_file_is_followed_by_another_one(store, monkeypatch):
    monkeypatch.setattr(store_log, "_FILE_BYTES", 8)
    log = log_of()
    for _ in range(3):
        log.write(b"12345")
        log.flush()
    assert log.path == "memory:///log.1"
    log.close()
    assert store.files() == {"/log.0": b"#1234512345", "/log.1": b"#12345"}


def test_uploads_wait_for_their_pace(store, monkeypatch):
    monkeypatch.setattr(store_log, "_PACE_SECONDS", 1e6)
    log = log_of()
    for _ in range(100):
        log.write(b".")
        log.flush()
    log.close()  # ends the wait
    assert store.uploads.qsize() == 1
    assert store.files() == {"/log.0": b"#" + b"." * 100}


def test_a_failed_upload_is_logged_counted_and_tried_again(store, caplog):
    store.errors += [OSError("no answer")] * 2
    log = log_of()
    log.write(b"one")
    log.flush()
    for _ in range(3):
        store.uploads.get(timeout=60)
    log.close()
    assert store.files() == {"/log.0": b"#one"}
    assert (log.num_failed, log.num_lost) == (2, 0)
    assert caplog.text.count("memory:///log.0 is not uploaded, it is tried again: no answer") == 1
    assert "the store has not got 0 bytes of the log memory:///log.0; 2 uploads" in caplog.text


def test_a_file_is_uploaded_after_the_files_before_it(store, monkeypatch):
    monkeypatch.setattr(store_log, "_FILE_BYTES", 1)
    store.gate.clear()
    log = log_of()
    for text in (b"a", b"b"):
        log.write(text)
        log.flush()
    store.errors.append(OSError("no answer"))
    store.gate.set()
    log.close()
    assert [path for path, _ in store.uploads.queue][:2] == ["/log.0", "/log.0"]
    assert store.files() == {"/log.0": b"#a", "/log.1": b"#b"}


def test_writes_do_not_wait_for_a_store_that_hangs(store, monkeypatch, caplog):
    monkeypatch.setattr(store_log, "_FIRST_WORD_SECONDS", 0.01)
    monkeypatch.setattr(store_log, "_CLOSE_SECONDS", 0.02)
    store.gate.clear()
    log = log_of()
    log.write(b"one")
    log.flush()
    store.uploads.get(timeout=60)  # the thread hangs now
    log.write(b"two")
    log.flush()
    log.close()
    store.gate.set()
    assert log.num_lost == 6
    assert "waiting up to 0.02 s to upload memory:///log.0" in caplog.text
    assert "the store has not got 6 bytes of the log memory:///log.0" in caplog.text


def test_a_store_that_is_gone_for_good_loses_the_oldest_files(store, monkeypatch):
    monkeypatch.setattr(store_log, "_FILE_BYTES", 10)
    monkeypatch.setattr(store_log, "_KEPT_BYTES", 35)
    store.errors += [OSError("no answer")] * 1000
    log = log_of(header=b"")
    for _ in range(10):
        log.write(bytes(10))
        log.flush()
    assert sum(len(part.data) for part in log._parts) <= 35
    log.close()
    assert log.num_lost == 100


def test_a_closed_log_stays_closed(store, caplog):
    caplog.set_level(logging.WARNING)
    log = log_of()
    log.close()
    log.close()
    assert log.closed
    assert caplog.text == ""
