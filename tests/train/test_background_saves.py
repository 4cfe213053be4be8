"""Checkpoints that are written while training goes on, and what becomes of them at the end."""

import contextlib
import fcntl
import os
import shutil
import signal
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from monolith.checkpoint import Chain, existing_checkpoints, find, open_checkpoint
from monolith.checkpoint.run_lock import only_run
from monolith.errors import FailedPreconditionError, OpError, UnavailableError
from monolith.observe import MemorySink
from monolith.table import Table
from monolith.table.disk.new_file import LocalFile
from monolith.table.disk.workers import WriteControl
from monolith.table.reference import ReferenceTable
from monolith.table.replay import Record
from monolith.table.snapshot import MAX_CUTS
from monolith.train import CheckpointHook, Hook, Trainer, TrainSettings
from monolith.train.saves.save_thread import SaveThread
from tests.suites.table_base import assert_same_rows
from tests.table.disk.cases import assert_same_table
from tests.table.disk.test_faults import file_size_limit
from tests.time_limits import AT_ONCE, at_once
from tests.train.tasks import Clicks, Counting, Raise, clicks
from tests.train.test_checkpoints import Numbers, names
from tests.train.test_ctrl_c import Press
from tests.train.test_recovery import Fault

SLOW = 1e-6  # MB/s: a save lasts for hours, until its rate is lifted


class At(Hook):
    """Calls a function after a step, before the checkpoint hooks."""

    def __init__(self, step, call):
        self._step, self._call = step, call

    def after_run(self, ctx, results):
        if ctx.run.global_step == self._step:
            self._call()


class Writing(Hook):
    """Waits after a step until a checkpoint is being written."""

    def __init__(self, step, path):
        self._step, self._path = step, path

    def before_run(self, ctx):
        if ctx.run.global_step == self._step:
            limit = time.monotonic() + 60
            while not list(self._path.glob("*.tmp-*")):
                assert time.monotonic() < limit, "no checkpoint is written"
                time.sleep(0.001)


def settings_of(path, every=2, **options):
    return TrainSettings(
        **{"checkpoint_dir": str(path), "save_every": every, "save_rate": SLOW, **options}
    )


def assert_nothing_left(trainer, path):
    """Check that no thread, file, lock, cut or copy of a row is left of the saves."""
    threads = [thread.name for thread in threading.enumerate()]
    assert not [name for name in threads if name.startswith(("save", "monolith"))]
    files = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            files.append(os.readlink(f"/proc/self/fd/{number}"))
    assert not [file for file in files if file.startswith(str(path))]
    assert not [
        file.name for file in path.rglob("*") if "tmp-" in file.name or ".saving" in str(file)
    ]
    with only_run(str(path)), open(path / ".lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for table in trainer.features.tables.values():
        assert table.memory_report()["cut_bytes"] == 0
        with contextlib.ExitStack() as stack:
            for _ in range(MAX_CUTS):
                stack.enter_context(table.cut())


def no_space(*arguments):
    raise OSError(28, "No space left on device")


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path):
    seen = []
    with Trainer(Counting(6), settings_of(tmp_path)) as trainer:
        result = trainer.fit(hooks=[At(6, lambda: seen.append(names(tmp_path)))])
        assert_nothing_left(trainer, tmp_path)
    assert (seen, names(tmp_path)) == ([[]], ["2", "6"])
    assert (result.saves.num_saved, result.saves.num_skipped, result.saves.num_failed) == (2, 2, 0)


def test_a_run_may_wait_for_the_save_before(tmp_path):
    with Trainer(Counting(6), settings_of(tmp_path, busy_save="wait", keep=0)) as trainer:
        saves = trainer.fit().saves
    assert names(tmp_path) == ["2", "4", "6"]
    assert (saves.num_saved, saves.num_waits, saves.num_skipped) == (3, 2, 0)


@pytest.mark.parametrize("servers", [None, 2])
@pytest.mark.parametrize(("prefetch", "push"), [(0, 0), (2, 1)])
def test_a_checkpoint_holds_the_state_of_its_cut(tmp_path, servers, prefetch, push):
    folders = tmp_path / "slow", tmp_path / "waiting"
    for folder, options in zip(folders, ({}, {"background_saves": False}), strict=True):
        settings = settings_of(folder, every=3, prefetch=prefetch, push=push, **options)
        with Trainer(Clicks(clicks(9)), settings, servers, clock=lambda: 100) as trainer:
            trainer.fit()
    ours, theirs = (open_checkpoint(f"{folder}/model.ckpt-3") for folder in folders)
    if not prefetch:
        for name, table in ours.load_tables().items():
            assert_same_table(table, theirs.load_tables()[name])
        dense, expected = ours.read_dense(), theirs.read_dense()
        assert [name for name in expected if not torch.equal(dense[name], expected[name])] == []
    assert ours.read_trainer()["saveables"]["run"]["step"] == 3
    assert ours.read_meta() == theirs.read_meta()


def test_hooks_of_one_run_share_the_thread(tmp_path):
    hooks = [
        CheckpointHook(tmp_path / "other", every_steps=2, rate=SLOW),
        CheckpointHook(tmp_path / "same", every_steps=3, rate=SLOW, is_dense_only=True),
        CheckpointHook(tmp_path / "same", every_steps=5, background=False),
    ]
    with Trainer(Clicks(clicks(6)), settings_of(tmp_path / "same")) as trainer:
        saves = trainer.fit(hooks=hooks).saves
        assert_nothing_left(trainer, tmp_path / "same")
    assert names(tmp_path / "other") == ["2", "6"]
    assert sorted(map(int, names(tmp_path / "same"))) == [2, 3, 5, 6]
    assert find(f"{tmp_path}/same/model.ckpt-3").table_names == []
    assert saves.num_failed == 0


def test_a_step_that_is_being_saved_is_not_saved_without_tables(tmp_path):
    hook = CheckpointHook(tmp_path / "dense", every_steps=2, is_dense_only=True, rate=SLOW)
    with Trainer(Clicks(clicks(5)), settings_of(tmp_path / "whole")) as trainer:
        trainer.fit(hooks=[hook])
    assert names(tmp_path / "whole") == ["2", "5"]
    assert names(tmp_path / "dense") == ["4"]


def test_a_file_that_cannot_grow_leaves_nothing_of_the_save(tmp_path):
    copies = []

    def check():
        trainer._saves.finish()
        assert not [copy for copy in copies if copy() is not None]
        assert not [path for path in tmp_path.iterdir() if path.name.startswith("model")]
        assert trainer.features.tables["user"].memory_report()["cut_bytes"] == 0

    class Noting(CheckpointHook):
        def _cut(self, **options):
            snapshot = super()._cut(**options)
            copies.extend(map(weakref.ref, snapshot.dense[-1].values()))
            return snapshot

    hook = Noting(tmp_path, every_steps=2, ignore_save_errors=True)
    with Trainer(Clicks(clicks(3))) as trainer, contextlib.ExitStack() as stack:
        limit = At(1, lambda: stack.enter_context(file_size_limit(100)))
        assert trainer.fit(hooks=[limit, At(3, check), hook]).saves.num_failed == 2
    assert len(copies) > 10


def test_a_save_that_fails_once_is_tried_again_by_the_thread(tmp_path, monkeypatch, caplog):
    write, calls = LocalFile.write, []

    def fail_once(file, data):
        calls.append(threading.current_thread().name)
        if len(calls) == 4:
            no_space()
        return write(file, data)

    patch = At(1, lambda: monkeypatch.setattr(LocalFile, "write", fail_once))
    with Trainer(Clicks(clicks(3)), settings_of(tmp_path, save_rate=0)) as trainer:
        saves = trainer.fit(hooks=[patch]).saves
    assert names(tmp_path) == ["2", "3"]
    assert open_checkpoint(f"{tmp_path}/model.ckpt-2").verify() > 0
    assert (saves.num_saved, saves.num_failed) == (2, 0)
    assert set(calls[:4]) == {"save_0"}
    assert "it is tried again" in caplog.text


@pytest.mark.parametrize("is_file", [False, True])
def test_a_folder_that_vanishes_does_not_end_the_run(tmp_path, is_file):
    folder = tmp_path / "run"

    def vanish():
        trainer._saves.finish()
        shutil.rmtree(folder)
        if is_file:
            folder.write_text("")

    settings = settings_of(folder, save_rate=0, ignore_save_errors=True)
    with Trainer(Counting(6), settings) as trainer:
        assert trainer.fit(hooks=[At(4, vanish), At(5, lambda: trainer._saves.finish())]).num_steps
    assert folder.is_file() if is_file else names(folder) == ["4", "6"]


@pytest.mark.parametrize("ignores", [False, True])
def test_a_last_save_that_fails_ends_the_run_unless_errors_are_ignored(
    tmp_path, monkeypatch, ignores
):
    fill = At(3, lambda: monkeypatch.setattr(LocalFile, "write", no_space))
    settings = settings_of(tmp_path, every=0, ignore_save_errors=ignores)
    with Trainer(Counting(3), settings) as trainer:
        expected = contextlib.nullcontext() if ignores else pytest.raises(OpError, match="No space")
        with expected:
            trainer.fit(hooks=[fill])
        monkeypatch.undo()
        assert_nothing_left(trainer, tmp_path)
    assert names(tmp_path) == []


def test_the_save_of_the_last_step_that_failed_is_done_again(tmp_path, monkeypatch):
    write = LocalFile.write

    class Refill(Hook):
        def end(self, run):
            trainer._saves.finish()
            monkeypatch.setattr(LocalFile, "write", write)

    fill = At(1, lambda: monkeypatch.setattr(LocalFile, "write", no_space))
    with Trainer(Counting(2), settings_of(tmp_path, save_rate=0)) as trainer:
        saves = trainer.fit(hooks=[fill, Refill()]).saves
    assert (saves.num_saved, saves.num_failed) == (1, 1)
    assert names(tmp_path) == ["2"]


def test_an_error_in_the_code_of_a_save_ends_the_run_at_the_next_step(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise KeyError("wrong")

    monkeypatch.setattr(Chain, "save", fail)
    with Trainer(Counting(9), settings_of(tmp_path)) as trainer:
        wait = At(5, lambda: trainer._saves.thread.finish())
        with pytest.raises(KeyError, match="wrong"):
            trainer.fit(hooks=[wait])
        assert 2 < trainer.run.global_step <= 5


def test_an_error_in_the_code_of_a_save_does_not_replace_that_of_the_run(
    tmp_path, monkeypatch, caplog
):
    def fail(*arguments, **options):
        go.wait(30)
        raise KeyError("wrong")

    go = threading.Event()
    monkeypatch.setattr(Chain, "save", fail)
    with Trainer(Counting(9), settings_of(tmp_path)) as trainer:
        later = At(3, threading.Timer(0.1, go.set).start)  # no step follows that could see it
        with pytest.raises(ZeroDivisionError):
            trainer.fit(hooks=[later, Raise(3, ZeroDivisionError())])
    assert "a save has failed while a run that failed ends" in caplog.text


def test_a_fifth_cut_is_a_failed_save(tmp_path):
    with Trainer(Counting(4), settings_of(tmp_path)) as trainer, contextlib.ExitStack() as stack:

        def cut():
            for _ in range(MAX_CUTS):
                stack.enter_context(trainer.features.tables["id"].cut())

        saves = trainer.fit(hooks=[At(2, cut), At(3, stack.close)]).saves
    assert (names(tmp_path), saves.num_failed) == (["4"], 1)


def test_an_error_of_the_run_comes_after_the_checkpoint_that_is_being_written(tmp_path):
    with Trainer(Counting(9), settings_of(tmp_path)) as trainer:
        with pytest.raises(ZeroDivisionError):
            trainer.fit(hooks=[Raise(5, ZeroDivisionError())])
        assert trainer.state.checkpoint == f"{tmp_path}/model.ckpt-2"
        assert_nothing_left(trainer, tmp_path)
    assert names(tmp_path) == ["2"]
    assert open_checkpoint(f"{tmp_path}/model.ckpt-2").verify() > 0


def test_the_first_ctrl_c_finishes_the_save_and_makes_the_last_one(tmp_path):
    with Trainer(Counting(9), settings_of(tmp_path)) as trainer:
        result = trainer.fit(hooks=[Press(5)])
        assert_nothing_left(trainer, tmp_path)
    assert result.ended == "interrupted"
    assert names(tmp_path) == ["2", str(result.num_steps)]


def test_a_second_ctrl_c_abandons_the_save_at_once(tmp_path, capfd):
    with Trainer(Clicks(clicks(9)), settings_of(tmp_path)) as trainer:
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(hooks=[Writing(4, tmp_path), Press(4, times=2)])
        assert time.monotonic() - start < AT_ONCE
        assert_nothing_left(trainer, tmp_path)
    assert names(tmp_path) == []
    assert "Traceback" not in capfd.readouterr().err


def test_a_second_ctrl_c_after_the_last_step_abandons_the_save(tmp_path):
    class Blocked(Hook):
        def end(self, run):
            threading.Timer(0.1, press).start()
            time.sleep(60)

    with Trainer(Clicks(clicks(9)), settings_of(tmp_path)) as trainer:
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(hooks=[Writing(4, tmp_path), Press(4), Blocked()])
        assert_nothing_left(trainer, tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("can't start new thread")])
def test_an_error_between_cut_and_thread_leaves_nothing(tmp_path, monkeypatch, error):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(ThreadPoolExecutor, "submit", fail)
    with at_once(), Trainer(Counting(4), settings_of(tmp_path)) as trainer:
        with pytest.raises(type(error)) as raised:
            trainer.fit()
        assert raised.value is error
        assert_nothing_left(trainer, tmp_path)


def press():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


@pytest.fixture
def is_stopped(monkeypatch):
    """The event that a save is told to stop."""
    event, stop = threading.Event(), WriteControl.stop
    monkeypatch.setattr(WriteControl, "stop", lambda control: (stop(control), event.set()))
    return event


def test_ctrl_c_during_the_last_save_abandons_it(tmp_path, monkeypatch, is_stopped):
    write = LocalFile.write

    def write_slowly(file, data):
        if threading.current_thread().name == "save_0" and not pressed:
            pressed.append(time.monotonic())
            press()
            is_stopped.wait(2 * AT_ONCE)
        return write(file, data)

    pressed = []
    monkeypatch.setattr(LocalFile, "write", write_slowly)
    with Trainer(Clicks(clicks(9)), settings_of(tmp_path, every=0, threads=1)) as trainer:
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(hooks=[Press(9)])
        assert time.monotonic() - pressed[0] < AT_ONCE
        monkeypatch.undo()
        assert_nothing_left(trainer, tmp_path)
    assert names(tmp_path) == []


def test_ctrl_c_while_a_run_that_failed_finishes_its_save_abandons_it(
    tmp_path, monkeypatch, is_stopped
):
    def write_slowly(file, data):
        if threading.current_thread().name == "save_0":
            is_stopped.wait(2 * AT_ONCE)
        return write(file, data)

    def finish_and_press(saves, **options):
        threading.Timer(0.2, press).start()
        return finish(saves, **options)

    write, finish = LocalFile.write, SaveThread.finish
    monkeypatch.setattr(SaveThread, "finish", finish_and_press)
    with Trainer(Clicks(clicks(9)), settings_of(tmp_path)) as trainer:
        slow = At(5, lambda: monkeypatch.setattr(LocalFile, "write", write_slowly))
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(hooks=[slow, Raise(5, ZeroDivisionError())])
        monkeypatch.undo()
        assert_nothing_left(trainer, tmp_path)


@pytest.mark.parametrize("push", [0, 1])
def test_a_recovery_finishes_the_save_and_goes_back_to_it(tmp_path, push):
    fault = Fault("table", step=5)
    with Trainer(task := Numbers(8), settings_of(tmp_path, every=4, push=push)) as trainer:
        fault.attach(trainer)
        result = trainer.fit(hooks=[fault.hook()])
        assert trainer.features.tables["id"].lookup(torch.tensor([7])).item() == -8
    assert (result.num_recoveries, result.num_samples) == (1, 8)
    assert (task.labels[:5], task.labels[-4:]) == ([0, 1, 2, 3, 4], [4, 5, 6, 7])
    assert len(task.labels) > 8


def test_a_recovery_abandons_a_save_that_is_failing(tmp_path, monkeypatch):
    write = LocalFile.write

    def fail_first(file, data):
        if not failed:
            failed.append(1)
            no_space()
        return write(file, data)

    def fail():
        monkeypatch.setattr(LocalFile, "write", fail_first)

    def wait():
        while fault.num_left and not [
            save for save in trainer._saves.thread.running() if save.is_failing
        ]:
            time.sleep(0.001)

    failed, fault = [], Fault("table", step=5)
    settings = settings_of(tmp_path, save_rate=0.001, keep=0)
    with Trainer(task := Numbers(8), settings) as trainer:
        fault.attach(trainer)
        hooks = [At(4, lambda: trainer._saves.finish()), At(4, fail), At(5, wait), fault.hook()]
        saves = trainer.fit(hooks=hooks).saves
    assert task.labels[:8] == [0, 1, 2, 3, 4, 5, 2, 3]
    assert saves.num_failed == 1


def test_a_step_that_is_only_repeated_leaves_the_save_alone(tmp_path):
    fault, pending = Fault("forward", step=5), []
    with Trainer(Numbers(8), settings_of(tmp_path, every=4)) as trainer:
        fault.attach(trainer)
        look = At(6, lambda: pending.append(trainer._saves.thread.running()))
        assert trainer.fit(hooks=[fault.hook(), look]).num_recoveries == 1
    assert len(pending[0]) == 1


def test_the_noted_checkpoint_is_the_newest_complete_one(tmp_path):
    def look():
        seen.append((trainer.state.checkpoint, trainer.state._checkpoint))

    def finish():
        trainer._saves.finish()
        look()

    seen = []
    with Trainer(Numbers(9), settings_of(tmp_path)) as trainer:
        trainer.fit(hooks=[At(3, look), At(5, finish)])
    prefix = f"{tmp_path}/model.ckpt-2"
    assert seen == [(None, None), (prefix, (prefix, 2))]


def test_a_save_by_hand_and_a_close_finish_the_save_that_is_being_written(tmp_path):
    class ByHand(Hook):
        def after_run(self, ctx, results):
            if ctx.run.global_step == 3:
                trainer.save(tmp_path)
                found.append(names(tmp_path))
            if ctx.run.global_step == 5:
                trainer.close()
                found.append(names(tmp_path))
                raise ZeroDivisionError

    found = []
    trainer = Trainer(Counting(9), settings_of(tmp_path))
    with pytest.raises(ZeroDivisionError):
        trainer.fit(hooks=[ByHand()])
    assert found == [["2", "3"], ["2", "3", "4"]]


def test_a_save_by_hand_is_newer_than_the_save_before_it(tmp_path):
    class ByHand(Hook):
        def after_run(self, ctx, results):
            if ctx.run.global_step == 3:
                noted.append(trainer.save(tmp_path / "own"))
                noted.append(trainer.state.checkpoint)

    noted = []
    with Trainer(Counting(3), settings_of(tmp_path)) as trainer:
        trainer.fit(hooks=[ByHand()])
    assert noted == [f"{tmp_path}/own/model.ckpt-3"] * 2


def test_a_server_that_is_gone_fails_the_save_alone(tmp_path, monkeypatch):
    def fail(self, **options):
        raise UnavailableError("gone")

    settings = settings_of(tmp_path)
    with Trainer(Counting(3), settings) as trainer, monkeypatch.context() as patch:
        hooks = [At(2, lambda: patch.setattr(CheckpointHook, "_cut", fail)), At(3, patch.undo)]
        assert trainer.fit(hooks=hooks).saves.num_failed == 1
    assert names(tmp_path) == ["3"]


def test_a_torn_state_is_not_saved_in_the_background(tmp_path):
    def tear():
        trainer.state.is_torn = True

    text = r"^\[CheckpointHook\] expected a state"
    with (
        Trainer(Counting(4), settings_of(tmp_path)) as trainer,
        pytest.raises(FailedPreconditionError, match=text),
    ):
        trainer.fit(hooks=[At(2, tear)])


def test_measurements_of_saves_tell_pause_bytes_and_skips(tmp_path):
    sink = MemorySink()
    with Trainer(Clicks(clicks(6)), settings_of(tmp_path), metrics=sink) as trainer:
        saves = trainer.fit().saves
    events = {}
    for name, fields in sink.events:
        events.setdefault(name, []).append(fields)
    first, last = events["checkpoint_saved"]
    assert (first["step"], last["step"], saves.num_saved) == (2, 6, 2)
    files = [path.stat().st_size for path in tmp_path.rglob("model.ckpt-2.*") if path.is_file()]
    files += [path.stat().st_size for path in (tmp_path / "model.ckpt-2.assets").iterdir()]
    manifest = (tmp_path / "model.ckpt-2.manifest.json").stat().st_size
    assert 0.8 * (sum(files) - manifest) <= first["num_bytes"] <= sum(files) - manifest
    assert 0 < first["pause_seconds"] < first["seconds"]
    assert events["checkpoint_skipped"] == [
        {"step": 4, "running_step": 2},
        {"step": 6, "running_step": 2},
    ]
    assert sink.total("run/checkpoints_skipped", {}) == saves.num_skipped == 2
    assert sink.total("run/checkpoints_failed", {}) == 0
    assert sink.summary("run/checkpoint_pause", {}).num_times == 2
    assert sink.total("run/checkpoint_bytes", {}) == first["num_bytes"] + last["num_bytes"]


def test_waits_are_timed(tmp_path):
    sink = MemorySink()
    settings = settings_of(tmp_path, busy_save="wait")
    with Trainer(Counting(4), settings, metrics=sink) as trainer:
        saves = trainer.fit().saves
    assert saves.num_waits == sink.summary("run/checkpoint_wait", {}).num_times == 1
    assert saves.pause_seconds > 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rate": -1}, "expected rate >= 0 and finite, got -1"),
        ({"rate": True}, "expected rate >= 0 and finite, got True"),
        ({"busy": "queue"}, "expected busy 'skip' or 'wait', got 'queue'"),
    ],
)
def test_wrong_options_of_a_hook_are_refused(tmp_path, options, text):
    with pytest.raises(ValueError, match=rf"^\[CheckpointHook\] {text}$"):
        CheckpointHook(tmp_path, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("servers", [None, 2])
@pytest.mark.parametrize(("prefetch", "push"), [(0, 0), (2, 1)])
def test_every_checkpoint_equals_the_replay_of_the_record_up_to_its_cut(
    tmp_path, monkeypatch, servers, prefetch, push
):
    records, cuts = {}, []

    def recorded(config, **options):
        record = Record()
        records.setdefault(config.name, []).append(record)
        return Table(config, record=record, **options)

    class Noting(CheckpointHook):
        def _cut(self, **options):
            snapshot = super()._cut(**options)
            cuts.append((self._trainer.state.step, snapshot.tables))
            return snapshot

    place = "monolith.table.Table" if servers else "monolith.train.hosting.Table"
    monkeypatch.setattr(place, recorded)
    hooks = [Noting(tmp_path, every_steps=3, rate=0.05, keep=0, busy="wait")]
    hooks += [Noting(tmp_path / "skips", every_steps=1, rate=0.1, keep=0)]
    settings = TrainSettings(prefetch=prefetch, push=push)
    with Trainer(Clicks(clicks(30)), settings, servers, clock=lambda: 100) as trainer:
        num_saved = trainer.fit(hooks=hooks).saves.num_saved
    facts = {step: [(t.config, recorded_of(t)) for t in tables] for step, tables in cuts}
    prefixes = [*existing_checkpoints(tmp_path), *existing_checkpoints(tmp_path / "skips")]
    assert len(prefixes) == num_saved > 12
    for prefix in prefixes:
        checkpoint = open_checkpoint(prefix)
        for config, numbers in facts[checkpoint.step]:
            reference = ReferenceTable(config, clock=lambda: 100)
            for record, number in zip(records[config.name], numbers, strict=True):
                record.replay(reference, 0, number)
            assert_same_rows(checkpoint.load_tables()[config.name], reference)


def recorded_of(snapshot):
    """Return the number of events at the cut, of each shard."""
    return getattr(snapshot._storage, "shards_recorded", [snapshot.num_recorded])
