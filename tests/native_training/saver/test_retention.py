import os

import pytest
import torch

from monolith.checkpoint import checkpoint_exists, read_checkpoint_state, retention
from monolith.checkpoint.state import MonolithCheckpointState, write_monolith_checkpoint_state
from monolith.errors import OpError
from monolith.native_training.saver import PartialRecoverySaver, SaveHelper
from monolith.train.driver import Run

RUN = Run()


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def make(**options):
    return PartialRecoverySaver({"v": torch.ones(1)}, **options)


def saved_steps(saver, path, *steps):
    for step in steps:
        saver.save(RUN, path / "ckpt", global_step=step)
    return SaveHelper(path / "ckpt").get_existing_checkpoint_steps()


def on_disk(path):
    names = [name for name in os.listdir(path) if name.endswith(".manifest.json")]
    return sorted(int(name.split("-")[1].split(".")[0]) for name in names)


@pytest.mark.req("TS-SAVE-T2")
@pytest.mark.req("TS-SAVE-T7")
def test_exempt_checkpoints_do_not_count_and_stay(tmp_path):
    saver = make(max_to_keep=3, exempt_checkpoint_paths={"ckpt-10", f"{tmp_path}/ckpt-20"})
    assert saved_steps(saver, tmp_path, 10, 20, 30, 40, 50) == {10, 20, 30, 40, 50}
    assert saved_steps(saver, tmp_path, 60) == {10, 20, 40, 50, 60}
    assert on_disk(tmp_path) == [10, 20, 40, 50, 60]


@pytest.mark.req("TS-SAVE-T7")
def test_rotation_with_an_exempt_path(tmp_path):
    saver = make(max_to_keep=2, exempt_checkpoint_paths={"ckpt-2"})
    assert saved_steps(saver, tmp_path, 1, 2, 3, 4) == {2, 3, 4}


@pytest.mark.req("NT-SAVE-T8")
def test_the_exempt_set_on_disk_counts_at_the_next_save(tmp_path):
    saver = make(max_to_keep=1, model_dir=tmp_path)
    saved_steps(saver, tmp_path, 1)
    write_monolith_checkpoint_state(tmp_path, MonolithCheckpointState(["ckpt-1"]))
    assert saved_steps(saver, tmp_path, 2, 3) == {1, 3}
    write_monolith_checkpoint_state(tmp_path, MonolithCheckpointState([]))
    assert saved_steps(saver, tmp_path, 4) == {3, 4}  # one goes with each save
    assert on_disk(tmp_path) == [3, 4]


def test_the_exempt_set_on_disk_counts_in_place_of_the_one_that_is_given(tmp_path):
    saver = make(max_to_keep=1, model_dir=tmp_path, exempt_checkpoint_paths={"ckpt-1"})
    write_monolith_checkpoint_state(tmp_path, MonolithCheckpointState(["ckpt-2"]))
    assert saver.exempt_checkpoint_paths == {"ckpt-2"}
    assert saved_steps(saver, tmp_path, 1, 2, 3) == {2, 3}


def test_nothing_is_deleted_while_the_exempt_set_cannot_be_read(tmp_path, caplog):
    write_monolith_checkpoint_state(tmp_path, MonolithCheckpointState(["ckpt-1"]))
    saver = make(max_to_keep=1, model_dir=tmp_path)
    saved_steps(saver, tmp_path, 1, 2)
    text = (tmp_path / "monolith_checkpoint").read_text()
    (tmp_path / "monolith_checkpoint").write_text(text[:-5])  # somebody is editing it
    assert saved_steps(saver, tmp_path, 3) == {1, 2, 3}
    assert "no checkpoint is deleted: nobody knows which ones are exempt" in caplog.text
    (tmp_path / "monolith_checkpoint").write_text(text)
    assert saved_steps(saver, tmp_path, 4) == {1, 3, 4}


@pytest.mark.req("TS-SAVE-T26")
@pytest.mark.parametrize("sharded", [False, True])
def test_the_oldest_goes_with_all_its_files(tmp_path, sharded):
    saver = make(max_to_keep=2, sharded=sharded)
    assert saved_steps(saver, tmp_path, 1, 2) == {1, 2}
    assert saver.last_checkpoints == [f"{tmp_path}/ckpt-1", f"{tmp_path}/ckpt-2"]
    assert saved_steps(saver, tmp_path, 3) == {2, 3}
    assert not [name for name in os.listdir(tmp_path) if name.startswith("ckpt-1.")]


@pytest.mark.req("TS-SAVE-T26")
def test_a_path_that_is_saved_again_is_the_newest(tmp_path):
    saver = make(max_to_keep=2)
    saved_steps(saver, tmp_path, 1, 2, 1)
    assert saver.last_checkpoints == [f"{tmp_path}/ckpt-2", f"{tmp_path}/ckpt-1"]
    assert saved_steps(saver, tmp_path, 3) == {1, 3}


@pytest.mark.req("TS-SAVE-T26")
@pytest.mark.parametrize("max_to_keep", [0, None])
def test_without_a_number_all_are_kept_and_none_is_listed(tmp_path, max_to_keep):
    saver = make(max_to_keep=max_to_keep)
    assert saved_steps(saver, tmp_path, 1, 2) == {2}
    assert saver.last_checkpoints == []
    assert on_disk(tmp_path) == [1, 2]


@pytest.mark.req("TS-SAVE-T26")
def test_no_description_and_no_state_when_not_asked_for(tmp_path):
    make().save(RUN, tmp_path / "a", write_meta_graph=False, write_state=False)
    assert not (tmp_path / "a.meta.json").exists()
    assert not (tmp_path / "checkpoint").exists()
    make().save(RUN, tmp_path / "b")
    assert (tmp_path / "b.meta.json").exists()


@pytest.mark.req("TS-SAVE-T27")
def test_a_new_saver_goes_on_with_existing_checkpoints(tmp_path):
    first = make()
    saved_steps(first, tmp_path, 1, 2, 3)
    second = make(max_to_keep=3)
    second.recover_last_checkpoints(first.last_checkpoints)
    assert second.last_checkpoints == [f"{tmp_path}/ckpt-{i}" for i in (1, 2, 3)]
    for name in os.listdir(tmp_path):
        if name.startswith("ckpt-1."):
            os.unlink(tmp_path / name)
    second.recover_last_checkpoints(first.last_checkpoints)
    assert second.last_checkpoints == [f"{tmp_path}/ckpt-{i}" for i in (2, 3)]
    assert saved_steps(second, tmp_path, 4) == {2, 3, 4}
    assert read_checkpoint_state(tmp_path).model_checkpoint_path == f"{tmp_path}/ckpt-4"


@pytest.mark.req("TS-SAVE-T28")
def test_one_is_kept_every_n_hours(tmp_path):
    clock = Clock()
    saver = make(max_to_keep=2, keep_checkpoint_every_n_hours=0.7 / 3600, clock=clock)
    clock.now += 1.0
    for name in ("s1", "s2", "s3", "s4"):
        saver.save(RUN, tmp_path / name)
    found = [checkpoint_exists(f"{tmp_path}/s{i}") for i in (1, 2, 3, 4)]
    assert found == [True, False, True, True]


def test_the_time_until_the_next_that_is_kept_counts_from_the_last_such_time(tmp_path):
    clock = Clock()
    saver = make(max_to_keep=1, keep_checkpoint_every_n_hours=1, clock=clock)
    for hours in (1.5, 2.5, 2.75, 4):
        clock.now = 1000.0 + 3600 * hours
        saver.save(RUN, tmp_path / "s", global_step=int(hours * 100))
    assert on_disk(tmp_path) == [150, 250, 400]


def test_times_of_checkpoints_may_be_set_as_a_list(tmp_path):
    saver = make()
    saver.set_last_checkpoints_with_time([("a", 1.0)])
    assert saver.last_checkpoints == ["a"]
    with pytest.raises(AssertionError):
        saver.set_last_checkpoints_with_time((("a", 1.0),))


def test_an_old_checkpoint_that_resists_is_no_failure_of_the_save(tmp_path, monkeypatch, caplog):
    saver = make(max_to_keep=1)
    saved_steps(saver, tmp_path, 1)

    def refuse(path):
        raise OpError("no rights")

    with monkeypatch.context() as patch:
        patch.setattr(retention, "remove", refuse)
        assert saved_steps(saver, tmp_path, 2) == {2}
    assert f"the old checkpoint {tmp_path}/ckpt-1 is not removed: no rights" in caplog.text
    assert on_disk(tmp_path) == [1, 2]


def test_a_state_that_cannot_be_written_leaves_no_checkpoint_behind(tmp_path, monkeypatch):
    saver = make(max_to_keep=1)
    saved_steps(saver, tmp_path, 1)

    def full(*arguments, **options):
        raise OpError("No space left")

    with monkeypatch.context() as patch:
        patch.setattr(retention, "write_checkpoint_state", full)
        with pytest.raises(OpError, match="No space left"):
            saved_steps(saver, tmp_path, 2)
    assert on_disk(tmp_path) == [1, 2]
    assert saved_steps(saver, tmp_path, 3, 4) == {3, 4}  # one goes with each save
    assert on_disk(tmp_path) == [3, 4]


def test_a_class_may_keep_the_files_of_dropped_checkpoints(tmp_path):
    class Archive(PartialRecoverySaver):
        def _MaybeDeleteOldCheckpoints(self):  # noqa: N802
            """Keep everything."""

    saver = Archive({"v": torch.ones(1)}, max_to_keep=1)
    assert saved_steps(saver, tmp_path, 1, 2, 3) == {3}
    assert on_disk(tmp_path) == [1, 2, 3]
    PartialRecoverySaver._MaybeDeleteOldCheckpoints(saver)
    assert on_disk(tmp_path) == [3]


def test_a_class_may_record_checkpoints_elsewhere(tmp_path):
    recorded = []

    class Recorder(PartialRecoverySaver):
        def _RecordLastCheckpoint(self, prefix, filename):  # noqa: N802
            recorded.append((os.path.basename(prefix), filename))

    saver = Recorder({"v": torch.ones(1)}, max_to_keep=1)
    assert saved_steps(saver, tmp_path, 1, 2) == set()
    assert recorded == [("ckpt-1", "checkpoint"), ("ckpt-2", "checkpoint")]
