"""Saves of a trainer to disks that are full, gone or in use by another run."""

import errno
import fcntl
import os
import shutil
import threading

import pytest

from monolith.checkpoint import open_checkpoint
from monolith.checkpoint.run_lock import only_run
from monolith.errors import FailedPreconditionError, OpError
from monolith.observe import MemorySink
from monolith.table.disk.new_file import LocalFile
from monolith.train import CheckpointHook, Hook, Trainer, TrainSettings
from tests.train.tasks import Counting
from tests.train.test_background_saves import At, settings_of
from tests.train.test_checkpoints import names


@pytest.fixture
def full_disk(monkeypatch):
    """Return a function that lets every later write fail."""

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    return lambda: monkeypatch.setattr(LocalFile, "write", fail)


class Fill(Hook):
    def __init__(self, fill, step):
        self._fill, self._step = fill, step

    def after_run(self, ctx, results):
        if ctx.run.global_step == self._step:
            self._fill()


SEQUENTIAL = {"save_every": 2, "background_saves": False}


def test_a_save_on_the_training_thread_that_fails_ends_the_run(tmp_path, full_disk):
    with Trainer(Counting(6), TrainSettings(checkpoint_dir=str(tmp_path), **SEQUENTIAL)) as trainer:
        with pytest.raises(OpError, match="No space left on device"):
            trainer.fit(hooks=[Fill(full_disk, 4)])
        assert trainer.run.global_step == 4
    assert open_checkpoint(f"{tmp_path}/model.ckpt-2").verify() > 0


def test_a_run_goes_on_after_a_save_that_failed_if_asked(tmp_path, full_disk, caplog):
    settings = TrainSettings(checkpoint_dir=str(tmp_path), ignore_save_errors=True, **SEQUENTIAL)
    with Trainer(Counting(6), settings) as trainer:
        assert trainer.fit(hooks=[Fill(full_disk, 4)]).num_steps == 6
    assert names(tmp_path) == ["2"]
    assert open_checkpoint(f"{tmp_path}/model.ckpt-2").verify() > 0
    assert "the checkpoint of step 6 is not saved; the run goes on" in caplog.text


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_fails_for_some_steps_does_not_end_the_run(
    tmp_path, monkeypatch, caplog, number
):
    def fail(*arguments):
        raise OSError(number, os.strerror(number))

    sink, write = MemorySink(), LocalFile.write
    hooks = [
        At(2, lambda: monkeypatch.setattr(LocalFile, "write", fail)),
        At(4, lambda: trainer._saves.finish()),
        At(4, lambda: monkeypatch.setattr(LocalFile, "write", write)),
    ]
    with Trainer(Counting(5), settings_of(tmp_path, save_rate=0), metrics=sink) as trainer:
        saves = trainer.fit(hooks=hooks).saves
    assert names(tmp_path) == ["4", "5"]
    assert (saves.num_saved, saves.num_failed) == (2, 1)
    assert sink.total("run/checkpoints_failed", {}) == 1
    ((_, fields),) = [event for event in sink.events if event[0] == "checkpoint_failed"]
    assert (fields["step"], fields["error"]) == (2, "OpError")
    text = "the checkpoint of step 2 is not saved; the run goes on: [checkpoint.write] expected to"
    assert "saving step 2 failed, it is tried again" in caplog.text
    assert text in caplog.text
    assert os.strerror(number) in caplog.text


def test_training_goes_on_while_a_slow_disk_writes(tmp_path, monkeypatch):
    write, goes_on = LocalFile.write, threading.Event()

    def write_slowly(file, data):
        assert goes_on.wait(20), "training waits for the disk"
        return write(file, data)

    slow = At(1, lambda: monkeypatch.setattr(LocalFile, "write", write_slowly))
    with Trainer(Counting(5), settings_of(tmp_path, save_rate=0)) as trainer:
        saves = trainer.fit(hooks=[slow, At(5, goes_on.set)]).saves
    assert names(tmp_path) == ["2", "5"]
    assert (saves.num_saved, saves.num_skipped, saves.num_failed) == (2, 1, 0)


def test_a_save_that_fails_once_is_tried_again(tmp_path, monkeypatch, caplog):
    write, calls = LocalFile.write, []

    def fail_once(file, data):
        calls.append(file)
        if len(calls) == 1:
            raise OSError(28, "No space left on device")
        return write(file, data)

    fill = Fill(lambda: monkeypatch.setattr(LocalFile, "write", fail_once), 2)
    with Trainer(Counting(2), TrainSettings(checkpoint_dir=str(tmp_path))) as trainer:
        trainer.fit(hooks=[fill])
    assert names(tmp_path) == ["2"]
    assert "saving step 2 failed, it is tried again" in caplog.text


@pytest.mark.parametrize("is_file", [False, True])
def test_a_folder_that_vanishes_does_not_end_the_run_if_asked(tmp_path, is_file):
    folder = tmp_path / "run"
    settings = TrainSettings(checkpoint_dir=str(folder), ignore_save_errors=True, **SEQUENTIAL)

    def vanish():
        shutil.rmtree(folder)
        folder.write_text("") if is_file else None

    with Trainer(Counting(6), settings) as trainer:
        assert trainer.fit(hooks=[Fill(vanish, 4)]).num_steps == 6
    assert folder.is_file() if is_file else names(folder) == ["4", "6"]


def test_the_lock_of_a_folder_names_the_last_run_only(tmp_path):
    for _ in range(2):
        with only_run(str(tmp_path)):
            assert (tmp_path / ".run.lock").read_text() == str(os.getpid())


def test_a_run_saves_where_the_disk_has_no_locks(tmp_path, monkeypatch):
    def fail(file, kind):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", fail)
    settings = TrainSettings(checkpoint_dir=str(tmp_path))
    with (
        Trainer(Counting(2), settings) as trainer,
        pytest.warns(RuntimeWarning, match="nothing keeps a second save out"),
    ):
        trainer.fit()
    assert names(tmp_path) == ["2"]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_second_run_that_saves_into_a_folder_is_refused(tmp_path, scheme):
    folder = f"{scheme}{tmp_path}"

    class Second(Hook):
        def after_run(self, ctx, results):
            text = rf"into {folder}, got a second beside that of process {os.getpid()}; choose"
            with (
                Trainer(Counting(), TrainSettings(checkpoint_dir=folder)) as other,
                pytest.raises(FailedPreconditionError, match=text),
            ):
                other.fit()
            assert other.run.global_step == 0

    with Trainer(Counting(2), TrainSettings(checkpoint_dir=folder)) as trainer:
        trainer.fit(hooks=[Second()])
        trainer.fit()  # the first one has ended
    assert names(tmp_path) == ["2", "4"]


def test_two_hooks_of_one_run_may_save_into_a_folder(tmp_path):
    settings = TrainSettings(checkpoint_dir=str(tmp_path), save_every=2, busy_save="wait")
    with Trainer(Counting(4), settings) as trainer:
        trainer.fit(hooks=[CheckpointHook(tmp_path, every_steps=3)])
    assert names(tmp_path) == ["2", "3", "4"]


def test_a_run_that_failed_lets_others_save(tmp_path):
    with Trainer(Counting(2), TrainSettings(checkpoint_dir=str(tmp_path))) as trainer:
        with pytest.raises(TypeError, match="not iterable"):
            trainer.fit(3)
        with pytest.raises(ZeroDivisionError):
            trainer.fit(1 // i for i in (0,))
        trainer.fit()
    assert names(tmp_path) == ["2"]


def test_a_folder_that_cannot_be_written_is_refused_before_the_run():
    with Trainer(Counting(), TrainSettings(checkpoint_dir="/proc/self/x")) as trainer:
        with pytest.raises(OpError, match=r"expected to make /proc/self/x, got"):
            trainer.fit()
        assert trainer.run.global_step == 0
