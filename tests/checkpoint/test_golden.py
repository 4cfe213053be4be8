"""Committed checkpoints of each version of the format stay readable."""

import subprocess
import sys

import pytest
import torch

from monolith.checkpoint import manifest, open_checkpoint, read_checkpoint_state
from monolith.errors import InvalidArgumentError
from tests.checkpoint.cases import assert_same_tensors, filled, listing, make
from tests.checkpoint.golden import NUM_ROWS, TABLES, golden_tensors, write
from tests.meta.tree import ROOT
from tests.table.disk.cases import assert_same_table

GOLDEN = ROOT / "tests" / "golden" / "checkpoint-v1"


def check(path):
    state = read_checkpoint_state(path)
    assert state.model_checkpoint_path == f"{path}/model.ckpt-7"
    checkpoint = open_checkpoint(state.model_checkpoint_path)
    assert checkpoint.step == 7
    assert checkpoint.read_trainer() == {"epoch": 1, "position": [3, 4]}
    assert checkpoint.read_meta() == {"model": "Linear"}
    assert_same_tensors(checkpoint.read_dense(), golden_tensors())
    assert checkpoint.table_names == ["item", "user"]
    for config in TABLES:
        table = make(config)
        checkpoint.restore_tables(table)
        assert_same_table(table, filled(config, NUM_ROWS))


@pytest.mark.req("NT-SAVE-T9")
def test_the_committed_checkpoint_of_version_1_restores():
    check(GOLDEN)
    assert open_checkpoint(GOLDEN / "model.ckpt-7").verify() > 10_000


@pytest.mark.dist
@pytest.mark.req("NT-SAVE-T9")
def test_a_checkpoint_of_another_process_restores(tmp_path):
    script = [sys.executable, "-m", "tests.checkpoint.golden", str(tmp_path)]
    subprocess.run(script, check=True, cwd=ROOT, timeout=120)
    check(tmp_path)


@pytest.mark.parametrize(("version", "is_read"), [(1, True), (2, True), (3, False)])
def test_a_reader_takes_its_version_and_the_one_before(monkeypatch, version, is_read):
    monkeypatch.setattr(manifest, "VERSION", version)
    if is_read:
        check(GOLDEN)
    else:
        with pytest.raises(InvalidArgumentError, match=r"version 3 or the one before, got 1"):
            open_checkpoint(GOLDEN / "model.ckpt-7")


def test_this_version_writes_the_committed_bytes(tmp_path):
    write(tmp_path)
    assert listing(tmp_path) == listing(GOLDEN)


def test_users_open_the_files_with_pyarrow_and_safetensors():
    from pyarrow import ipc
    from safetensors.torch import load_file

    rows = ipc.open_file(str(GOLDEN / "model.ckpt-7.assets/item-00000-of-00001.arrow")).read_all()
    assert rows.column_names == ["key", "time", "weight/0"]
    assert sorted(rows["key"].to_pylist()) == list(range(NUM_ROWS))
    tensors = load_file(GOLDEN / "model.ckpt-7.dense-00000-of-00001.safetensors")
    assert torch.equal(tensors["tensor.torch.int64"], torch.tensor([[0, 1], [2, 3]]))
