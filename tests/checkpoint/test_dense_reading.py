"""Dense files on their way into memory: short reads, files that shrink, errors on a thread."""

import os

import pytest
import torch

from monolith.checkpoint import open_checkpoint, save_checkpoint, take_cut
from monolith.embedding.disk import folder
from monolith.errors import DataLossError, OpError
from tests.checkpoint.cases import assert_same_tensors

TENSORS = {"a": torch.arange(40_000), "b": torch.arange(7.0)}
DENSE = ".dense-00000-of-00002.safetensors"


@pytest.fixture
def prefix(tmp_path):
    with take_cut(dense=[{"a": TENSORS["a"]}, {"b": TENSORS["b"]}]) as cut:
        save_checkpoint(tmp_path / "ckpt-1", cut)
    return str(tmp_path / "ckpt-1")


class Reads:
    """A file whose reads are what `change` makes of the buffers."""

    def __init__(self, file, change):
        self._file, self._change = file, change

    def readinto(self, view):
        return self._file.readinto(self._change(view))


def change_reads(monkeypatch, change):
    read_all = folder._read_all
    monkeypatch.setattr(
        folder, "_read_all", lambda file, *rest: read_all(Reads(file, change), *rest)
    )


def test_reads_that_return_less_are_continued(prefix, monkeypatch):
    change_reads(monkeypatch, lambda view: view[:999])
    assert_same_tensors(open_checkpoint(prefix).read_dense(num_threads=2), TENSORS)


def test_a_file_that_shrinks_while_it_is_read_is_refused(prefix, monkeypatch):
    def cut_off(view):
        os.truncate(prefix + DENSE, 100)
        return view[:50]

    checkpoint, size = open_checkpoint(prefix), os.path.getsize(prefix + DENSE)
    change_reads(monkeypatch, cut_off)
    with pytest.raises(DataLossError, match=rf"expected {size} bytes .*, got 100 with .*{DENSE}"):
        checkpoint.read_dense(["a"])


def test_an_error_on_a_reading_thread_names_the_checkpoint(prefix, monkeypatch):
    def fail(view):
        raise OSError(5, "Input/output error")

    change_reads(monkeypatch, fail)
    targets = {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()}
    text = rf"\[Checkpoint.read_dense\] expected to read {prefix}, got Input/output error"
    with pytest.raises(OpError, match=text):
        open_checkpoint(prefix).restore(dense=targets, num_threads=2)
    assert not any(tensor.any() for tensor in targets.values())


def test_no_tensor_changes_where_another_file_is_damaged(prefix):
    with open(prefix + DENSE, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\1")
    targets = {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()}
    with pytest.raises(DataLossError, match="it is damaged or foreign"):
        open_checkpoint(prefix).restore(dense=targets, num_threads=2)
    assert not any(tensor.any() for tensor in targets.values())


def test_tensors_of_one_file_have_storages_of_their_own(tmp_path):
    with take_cut(dense=TENSORS) as cut:
        save_checkpoint(tmp_path / "ckpt-1", cut)
    found = open_checkpoint(tmp_path / "ckpt-1").read_dense()
    assert found["b"].untyped_storage().nbytes() == 28
