"""What an iteration that fails leaves behind: no thread, no open file, no block."""

import gc
import os
import threading
import weakref

import pytest

from monolith import data
from monolith.data.convert import BadSamples
from monolith.data.files.file_source import FileSource
from monolith.data.files.listing import find_files
from monolith.data.files.parquet import ParquetFormat
from tests.data.samples import write_parquet


class BrokenError(RuntimeError):
    """Can be referred to weakly."""


def break_map(block):
    if block["user"][0].as_py() >= 20:
        raise BrokenError("broken")
    return block


def fail(source):
    """The iteration after its first batch, and the error of the second."""
    batches = iter(source)
    next(batches)
    with pytest.raises(RuntimeError) as caught:
        list(batches)
    return batches, caught.value


def opened(folder):
    links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return [link for link in links if os.path.realpath(link).startswith(str(folder))]


def threads():
    return {each for each in threading.enumerate() if each.name.startswith("monolith-")}


@pytest.fixture
def source(tmp_path):
    """Fails in the second row group of the first of four files."""
    return data.parquet(write_parquet(tmp_path)).map(break_map).batch(20)


@pytest.mark.parametrize("depth", [0, 2])
def test_a_failed_iteration_that_is_kept_has_no_threads_and_no_files(source, depth, tmp_path):
    before = threads()
    kept = [fail(source.prefetch(depth) if depth else source) for _ in range(5)]
    for ours in threads() - before:
        ours.join(30)  # those that made the batches end by themselves
    assert (threads() - before, opened(tmp_path), len(kept)) == (set(), [], 5)


def test_a_failed_iteration_that_is_dropped_frees_its_memory(source):
    gone = weakref.ref(fail(source.prefetch(2))[0])
    for ours in threads():
        ours.join(30)
    gc.collect()
    assert gone() is None


def test_a_closed_iteration_does_not_hold_its_failure(source):
    batches, error = fail(source.prefetch(2))
    batches.close()
    gone = weakref.ref(error)
    del error
    gc.collect()
    assert gone() is None


def test_a_state_whose_second_file_is_gone_leaves_the_first_one_closed(tmp_path):
    files = find_files(write_parquet(tmp_path, num_files=2))
    source = FileSource(files, ParquetFormat(), data.Columns(["user"]), BadSamples(), interleave=2)
    os.unlink(files[1].path)
    state = {"next": 2, "turn": 0, "open": [[0, 20], [1, 20]]}
    with pytest.raises(FileNotFoundError, match=r"part-1.parquet"):
        source.open(0, state)
    assert opened(tmp_path) == []


def test_a_cache_that_cannot_be_filled_leaves_its_files_closed(source, tmp_path):
    cached = data.parquet(f"{tmp_path}/*.parquet").map(break_map).cache()
    with pytest.raises(RuntimeError, match="broken") as caught:
        cached.stage.open(1)
    assert opened(tmp_path) == []
    assert caught.value is not None
