"""Dense files on their way into memory: short reads, files that shrink, errors on a thread."""

import io
import os

import pytest
import torch

from monolith.checkpoint import Contents, open_checkpoint, write
from monolith.errors import DataLossError, OpError
from monolith.table.disk import folder
from monolith.table.disk.buffers import crc32c

TENSORS = {"a": torch.arange(40_000), "b": torch.arange(7.0)}
DENSE = ".dense-00000-of-00002.safetensors"


@pytest.fixture
def prefix(tmp_path):
    write(Contents(dense=[{"a": TENSORS["a"]}, {"b": TENSORS["b"]}]), tmp_path / "ckpt-1")
    return str(tmp_path / "ckpt-1")


class ShortReads(io.BytesIO):
    """A file that gives less than it was asked for."""

    def readinto(self, view):
        return super().readinto(view[:999])


def test_reads_of_a_store_that_return_less_are_continued():
    data = bytes(range(256)) * 40
    for size in (5000, len(data), len(data) + 1):
        memory = bytearray(size)
        found = data[:size]
        assert folder._read_all(ShortReads(data), memoryview(memory)) == (len(found), crc32c(found))
        assert memory[: len(found)] == found


def test_a_file_that_shrinks_while_it_is_read_is_refused(prefix, monkeypatch):
    read = folder._read_local

    def cut_off(*arguments):
        os.truncate(prefix + DENSE, 100)
        return read(*arguments)

    checkpoint, size = open_checkpoint(prefix), os.path.getsize(prefix + DENSE)
    monkeypatch.setattr(folder, "_read_local", cut_off)
    with pytest.raises(DataLossError, match=rf"expected {size} bytes .*, got 100 with .*{DENSE}"):
        checkpoint.read_dense(["a"])


def test_an_error_on_a_reading_thread_names_the_checkpoint(prefix, monkeypatch):
    def fail(*arguments):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(folder, "_read_local", fail)
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
    write(Contents(dense=TENSORS), tmp_path / "ckpt-1")
    found = open_checkpoint(tmp_path / "ckpt-1").read_dense()
    assert found["b"].untyped_storage().nbytes() == 28


def test_tensors_come_in_the_order_of_their_names_whatever_files_they_are_in(tmp_path):
    groups = [{"d": torch.ones(1), "b": torch.ones(2)}, {"c": torch.ones(3), "a": torch.ones(4)}]
    write(Contents(dense=groups), tmp_path / "ckpt-1")
    checkpoint = open_checkpoint(tmp_path / "ckpt-1")
    assert list(checkpoint.read_dense()) == ["a", "b", "c", "d"]
    assert list(checkpoint.read_dense(["d", "c"])) == ["c", "d"]
