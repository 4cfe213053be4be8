"""Committed checkpoints of each version of the format stay readable."""

import subprocess
import sys

import pytest
import torch

from monolith.checkpoint import (
    Chain,
    Contents,
    RestoreMark,
    manifest,
    open_checkpoint,
    read_checkpoint_state,
)
from monolith.errors import InvalidArgumentError
from tests.checkpoint.cases import assert_same_tensors, filled, listing, make, manifest_of
from tests.checkpoint.golden import NUM_ROWS, TABLES, change, golden_tensors, write
from tests.meta.tree import ROOT
from tests.table.disk.cases import assert_same_table

GOLDEN = ROOT / "tests" / "golden"
V1, V2 = GOLDEN / "checkpoint-v1", GOLDEN / "checkpoint-v2"


def check(path, step):
    """A checkpoint has what `golden.write` has put there."""
    checkpoint = open_checkpoint(f"{path}/model.ckpt-{step}")
    assert checkpoint.step == step
    assert checkpoint.read_trainer() == {"epoch": 1, "position": [3, 4]}
    assert checkpoint.read_meta() == {"model": "Linear"}
    assert_same_tensors(checkpoint.read_dense(), golden_tensors())
    assert checkpoint.table_names == ["item", "user"]
    for config in TABLES:
        table, expected = make(config), filled(config, NUM_ROWS)
        if step == 8:
            change([expected])
        checkpoint.restore_tables(table)
        assert_same_table(table, expected)


@pytest.mark.req("NT-SAVE-T9")
@pytest.mark.parametrize(("path", "step"), [(V1, 7), (V2, 7), (V2, 8)])
def test_the_committed_checkpoint_of_each_version_restores(path, step):
    check(path, step)
    assert open_checkpoint(path / f"model.ckpt-{step}").verify() > 10_000


@pytest.mark.parametrize(("path", "step"), [(V1, 7), (V2, 8)])
def test_the_committed_state_file_names_the_newest(path, step):
    assert read_checkpoint_state(path).model_checkpoint_path == f"{path}/model.ckpt-{step}"


@pytest.mark.dist
@pytest.mark.req("NT-SAVE-T9")
def test_a_checkpoint_of_another_process_restores(tmp_path):
    script = [sys.executable, "-m", "tests.checkpoint.golden", str(tmp_path)]
    subprocess.run(script, check=True, cwd=ROOT, timeout=120)
    check(tmp_path, 8)


@pytest.mark.parametrize(("version", "is_read"), [(1, True), (2, True), (3, False)])
def test_a_reader_takes_its_version_and_the_one_before(monkeypatch, version, is_read):
    monkeypatch.setattr(manifest, "VERSION", version)
    if is_read:
        check(V1, 7)
    else:
        with pytest.raises(InvalidArgumentError, match=r"version 3 or the one before, got 1"):
            open_checkpoint(V1 / "model.ckpt-7")


def test_a_newer_version_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(manifest, "VERSION", 1)
    with pytest.raises(InvalidArgumentError, match=r"got 2 .*; a newer monolith-torch wrote it"):
        open_checkpoint(V2 / "model.ckpt-8")


def test_this_version_writes_the_committed_bytes(tmp_path):
    write(tmp_path)
    assert listing(tmp_path) == listing(V2)


def test_a_run_goes_on_from_version_1_and_saves_this_version(tmp_path):
    tables = [make(config) for config in TABLES]
    open_checkpoint(V1 / "model.ckpt-7").restore_tables(tables)
    chain = Chain(tmp_path)
    assert not chain.follow(RestoreMark.set(f"{V1}/model.ckpt-7", tables))
    for step in (8, 9):
        change(tables)
        with chain.cut(Contents(tables=tables, step=step, with_expired=True)) as snapshot:
            saved = chain.save(snapshot)
    assert (saved.is_full, manifest_of(saved.prefix)["version"]) == (False, 2)
    for table in tables:
        assert_same_table(open_checkpoint(saved.prefix).load_tables()[table.name], table)


def test_users_open_the_files_with_pyarrow_and_safetensors():
    from pyarrow import ipc
    from safetensors.torch import load_file

    rows = ipc.open_file(str(V1 / "model.ckpt-7.assets/item-00000-of-00001.arrow")).read_all()
    assert rows.column_names == ["key", "time", "weight/0"]
    assert sorted(rows["key"].to_pylist()) == list(range(NUM_ROWS))
    tensors = load_file(V1 / "model.ckpt-7.dense-00000-of-00001.safetensors")
    assert torch.equal(tensors["tensor.torch.int64"], torch.tensor([[0, 1], [2, 3]]))
