import pytest
import torch

from monolith.checkpoint import Contents, existing_checkpoints, read_checkpoint_state, save
from monolith.checkpoint.retention import Retention
from monolith.checkpoint.state import (
    CheckpointState,
    MonolithCheckpointState,
    write_checkpoint_state,
    write_monolith_checkpoint_state,
)


def save_steps(path, *steps, keep=2):
    for step in steps:
        save(Contents(dense={"w": torch.ones(1)}, step=step), path, keep=keep)
    return names(existing_checkpoints(path))


def names(prefixes):
    return sorted(int(prefix.rpartition("-")[2]) for prefix in prefixes)


def listed(path):
    return names(read_checkpoint_state(path).all_model_checkpoint_paths)


def test_the_newest_stay_over_several_calls(tmp_path):
    assert save_steps(tmp_path, 1, 2, 3) == [2, 3]
    assert listed(tmp_path) == [2, 3]


def test_the_order_is_that_of_the_saves_and_not_of_the_steps(tmp_path):
    save_steps(tmp_path, 9, 3, keep=0)
    prefixes = [f"{tmp_path}/model.ckpt-{step}" for step in (9, 3)]
    assert existing_checkpoints(tmp_path) == prefixes


def test_one_goes_with_each_save(tmp_path):
    save_steps(tmp_path, 1, 2, 3, 4, keep=9)
    assert save_steps(tmp_path, 5) == [2, 3, 4, 5]


@pytest.mark.parametrize("keep", [0, None])
def test_without_a_number_all_stay(tmp_path, keep):
    assert save_steps(tmp_path, 1, 2, 3, keep=keep) == [1, 2, 3]


def test_a_negative_number_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"\[Retention\] expected keep >= 0, got -1; 0 keeps all"):
        save_steps(tmp_path, 1, keep=-1)
    assert existing_checkpoints(tmp_path) == []


def test_exempt_checkpoints_stay_and_do_not_count(tmp_path):
    write_monolith_checkpoint_state(tmp_path, MonolithCheckpointState(["model.ckpt-1"]))
    assert save_steps(tmp_path, 1, 2, 3, 4) == [1, 3, 4]


def test_nothing_goes_while_the_exempt_names_cannot_be_read(tmp_path, caplog):
    (tmp_path / "monolith_checkpoint").write_text("}")
    assert save_steps(tmp_path, 1, 2, 3) == [1, 2, 3]
    assert "no checkpoint is deleted" in caplog.text


def test_checkpoints_of_another_directory_are_never_removed(tmp_path):
    save_steps(tmp_path / "other", 1)
    paths = [f"{tmp_path}/other/model.ckpt-1"]
    (tmp_path / "m").mkdir()
    write_checkpoint_state(tmp_path / "m", CheckpointState(paths[0], paths))
    assert Retention.of_directory(tmp_path / "m", 1).kept == []
    save_steps(tmp_path / "m", 2, 3, keep=1)
    assert names(existing_checkpoints(tmp_path / "other")) == [1]


def test_a_retention_goes_on_over_several_saves(tmp_path):
    retention = Retention.of_directory(tmp_path, 1, clock=lambda: 5.0)
    save_steps(tmp_path, 1, 2, keep=retention)
    assert retention.kept == [(f"{tmp_path}/model.ckpt-2", 5.0)]
