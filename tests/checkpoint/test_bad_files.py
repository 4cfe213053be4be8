"""Damaged, truncated, missing, foreign and newer files are refused by name."""

import errno
import os
from pathlib import Path

import pytest

from monolith.checkpoint import find, load, open_checkpoint
from monolith.checkpoint.state import CheckpointState, write_checkpoint_state
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError, OpError
from monolith.util.stores import Store
from tests.checkpoint.cases import (
    dense_tensors,
    filled,
    listing,
    make,
    manifest_of,
    manifest_path,
    replace_file,
    saved,
    write_manifest,
)
from tests.table.disk.cases import assert_same_table

pytestmark = pytest.mark.thorough

FILES = (
    ".assets/user-00000-of-00001.arrow",
    ".assets/user-00000-of-00001.candidates.arrow",
    ".dense-00000-of-00001.safetensors",
    ".meta.json",
    ".trainer.json",
)


@pytest.fixture
def prefix(tmp_path):
    return saved(tmp_path / "model.ckpt-7")


def read_all(prefix):
    checkpoint = open_checkpoint(prefix)
    checkpoint.read_trainer()
    checkpoint.read_meta()
    checkpoint.read_dense()
    checkpoint.load_tables()


@pytest.mark.parametrize("suffix", FILES)
@pytest.mark.parametrize("read", [read_all, lambda prefix: open_checkpoint(prefix).verify()])
@pytest.mark.parametrize("damage", ["cut", "flip", "more", "empty"])
def test_a_damaged_file_is_refused_by_name(prefix, suffix, read, damage):
    path = prefix + suffix
    data = bytearray(Path(path).read_bytes())
    data[len(data) // 2] ^= 4
    text = {"cut": data[:-1], "flip": data, "more": data + b"x", "empty": b""}[damage]
    with open(path, "wb") as file:
        file.write(text)
    with pytest.raises(DataLossError, match=r"it is damaged or foreign") as caught:
        read(prefix)
    assert path in str(caught.value)


@pytest.mark.parametrize("suffix", FILES)
@pytest.mark.parametrize("read", [read_all, lambda prefix: open_checkpoint(prefix).verify()])
def test_a_missing_file_is_refused_by_name(prefix, suffix, read):
    os.unlink(prefix + suffix)
    with pytest.raises(NotFoundError, match=rf"expected a file, got none at {prefix + suffix}"):
        read(prefix)


def test_every_byte_of_the_manifest_counts(prefix):
    with open(manifest_path(prefix), "rb") as file:
        data = file.read()
    for at in range(0, len(data) - 1, 7):
        flipped = bytearray(data)
        flipped[at] ^= 1
        with open(manifest_path(prefix), "wb") as file:
            file.write(flipped)
        with pytest.raises(OpError, match=r"model\.ckpt-7\.manifest\.json"):
            open_checkpoint(prefix)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"version": 3}, InvalidArgumentError, "got 3 .*; a newer monolith-torch wrote it"),
        ({"version": 0}, InvalidArgumentError, "expected version 2 or the one before, got 0"),
        ({"format": "zip"}, InvalidArgumentError, "format 'monolith-checkpoint', got 'zip'"),
        ({"step": "x"}, DataLossError, "expected field 'step' as int, got 'x'"),
        ({"dense": [{"path": "../x"}]}, DataLossError, r"expected a file of it, got '\.\./x'"),
        ({"documents": {"a": {"path": ".b.json"}}}, DataLossError, "file of it, got '.b.json'"),
        ({"tables": 3}, DataLossError, "expected field 'tables' as list, got 3"),
    ],
)
def test_a_manifest_of_another_kind_is_refused(prefix, change, error, text):
    write_manifest(prefix, {**manifest_of(prefix), **change})
    with pytest.raises(error, match=rf"^\[open_checkpoint\] .*{text}") as caught:
        open_checkpoint(prefix)
    assert manifest_path(prefix) in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 10_000])
def test_a_file_that_is_no_manifest(prefix, text):
    with open(manifest_path(prefix), "w") as file:
        file.write(text)
    with pytest.raises(OpError, match=r"^\[open_checkpoint\] expected "):
        open_checkpoint(prefix)


def test_dense_files_with_other_content_are_refused(prefix):
    content = manifest_of(prefix)
    replace_file(prefix, content["dense"][0], b"not safe")
    write_manifest(prefix, content)
    with pytest.raises(DataLossError, match=r"expected a safetensors file, got"):
        open_checkpoint(prefix).read_dense()


def test_tensors_that_the_manifest_does_not_name_are_refused(prefix):
    content = manifest_of(prefix)
    content["dense"][0]["tensors"].pop("steps")
    write_manifest(prefix, content)
    with pytest.raises(DataLossError, match=r"expected the tensors that the manifest names, got"):
        open_checkpoint(prefix).read_dense()


def test_documents_that_are_no_json_are_refused(prefix):
    content = manifest_of(prefix)
    replace_file(prefix, content["documents"]["trainer"], b"{")
    write_manifest(prefix, content)
    with pytest.raises(DataLossError, match=r"^\[Checkpoint.read_trainer\] expected JSON, got"):
        open_checkpoint(prefix).read_trainer()


def test_a_restore_that_fails_changes_no_tensor(prefix):
    tensors, table = {name: t + 1 for name, t in dense_tensors().items()}, filled(num_rows=9)
    os.unlink(prefix + FILES[0])
    with pytest.raises(NotFoundError):
        open_checkpoint(prefix).restore(tables=table, dense=tensors)
    assert tensors["steps"] == 8
    assert_same_table(table, filled(num_rows=9))


def three(path):
    """Checkpoints 1, 2 and 3, of which 3 is current."""
    prefixes = [saved(path / f"c-{step}", step=step) for step in (1, 2, 3)]
    write_checkpoint_state(path, CheckpointState(prefixes[2], prefixes))
    return prefixes


def test_without_a_checkpoint_there_is_nothing_to_find(tmp_path):
    assert find(tmp_path) is None
    assert find(tmp_path, fallback=True) is None
    with pytest.raises(NotFoundError, match=r"\[checkpoint.load\] expected a checkpoint, got none"):
        load(tmp_path)


def test_the_current_checkpoint_is_found(tmp_path):
    three(tmp_path)
    assert find(tmp_path).step == 3
    assert find(tmp_path, fallback=True).step == 3


def test_a_fallback_takes_the_newest_that_is_whole(tmp_path, caplog):
    prefixes = three(tmp_path)
    with open(prefixes[2] + FILES[0], "ab") as file:
        file.write(b"x")
    os.unlink(manifest_path(prefixes[1]))
    assert find(tmp_path, fallback=True).step == 1
    assert f"the checkpoint {prefixes[2]} is left out: [Checkpoint.verify]" in caplog.text
    with pytest.raises(DataLossError, match="it is damaged or foreign"):
        make_restore(find(tmp_path))


def make_restore(checkpoint):
    checkpoint.restore_tables(make())


def test_a_fallback_needs_no_state_file(tmp_path):
    three(tmp_path)
    os.unlink(tmp_path / "checkpoint")
    assert find(tmp_path, fallback=True).step == 3


def test_the_newest_checkpoint_is_current_without_a_state_file(tmp_path):
    prefixes = three(tmp_path)
    os.unlink(tmp_path / "checkpoint")
    assert load(tmp_path).prefix == prefixes[2]


def test_where_nothing_is_whole_the_first_error_is_raised(tmp_path):
    prefix = saved(tmp_path / "c-1")
    write_checkpoint_state(tmp_path, CheckpointState(prefix, [prefix]))
    for name in listing(tmp_path):
        if name.startswith("c-1."):
            (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataLossError, match=r"c-1\.manifest\.json"):
        find(tmp_path, fallback=True)


def test_no_memory_is_taken_for_rows_that_the_files_cannot_hold(prefix):
    content = manifest_of(prefix)
    table = content["tables"][0]
    (file,) = [file for file in table["files"] if file["kind"] == "rows"]
    file["num_rows"] = table["num_rows"] = 10**15
    write_manifest(prefix, content)
    with pytest.raises(DataLossError, match=r"expected 1000000000000000 rows, got \d+ "):
        open_checkpoint(prefix).load_tables()


def test_a_fallback_is_no_way_around_a_store_that_does_not_answer(tmp_path, monkeypatch):
    folder = f"memory://fallback-{tmp_path.name}"
    for step in (1, 2):
        saved(f"{folder}/c-{step}", step=step)

    def fail(store, path, mode="rb"):
        raise OSError(errno.EIO, "no answer")

    monkeypatch.setattr(Store, "open", fail)
    with pytest.raises(OpError, match=r"expected to read .*/c-2, got no answer"):
        find(folder, fallback=True)
