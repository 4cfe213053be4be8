import errno
import json
import logging
import os
import threading

import pytest
import torch

from monolith.checkpoint import checkpoint_exists
from monolith.checkpoint.state import MonolithCheckpointState, write_monolith_checkpoint_state
from monolith.errors import AbortedError, DeadlineExceededError, OpError, UnavailableError
from monolith.native_training.saver import (
    MODEL_DUMP,
    VARIABLES,
    CheckpointRestorerHook,
    NamedTensor,
    NoFirstSaveCheckpointSaverHook,
    PartialRecoverySaver,
    RestorerListener,
    SaverListener,
    get_monolith_checkpoint_state,
)
from monolith.observe.metrics import MemorySink
from monolith.table.disk.new_file import LocalFile
from monolith.train import Hook
from monolith.train.driver import Run, drive

FULL = {"mode": "full"}


class Listener(SaverListener):
    """Notes its calls; its first saves fail."""

    def __init__(self, num_failures=0, error=UnavailableError, is_end=False):
        self.calls, self.num_failures, self.error, self.is_end = [], num_failures, error, is_end

    def begin(self):
        self.calls.append("begin")

    def before_save(self, run, global_step):
        self.calls.append(("before", global_step))
        if self.num_failures:
            self.num_failures -= 1
            raise self.error("no disk")

    def after_save(self, run, global_step):
        self.calls.append(("after", global_step))
        return self.is_end

    def end(self, run, global_step):
        self.calls.append(("end", global_step))


def make(path, *, weight=None, **options):
    tensor = torch.zeros(1) if weight is None else weight
    options = {"save_steps": 100, **options}
    return NoFirstSaveCheckpointSaverHook(
        path, saver=PartialRecoverySaver({"w": tensor}), **options
    )


def run_steps(num_steps, *hooks, run=None, then=None):
    """Drive some steps; `then` is called in the last one, after it was counted."""
    run = run or Run(global_step=0)

    def step():
        if run.global_step >= num_steps:
            raise StopIteration
        run.global_step += 1
        if run.global_step == num_steps and then is not None:
            then(run)

    return drive(step, hooks, run=run)


def steps_of(path):
    names = [name for name in os.listdir(path) if name.endswith(".manifest.json")]
    return sorted(int(name.split("-")[1].split(".")[0]) for name in names)


@pytest.mark.req("TS-SAVE-T3")
def test_nothing_is_saved_first_and_the_last_step_at_the_end(tmp_path):
    seen = []
    run_steps(1, make(tmp_path), then=lambda run: seen.extend(steps_of(tmp_path)))
    assert seen == []
    assert steps_of(tmp_path) == [1]


def test_the_last_step_is_saved_also_if_the_run_recovers_after_it(tmp_path):
    errors = [AbortedError("gone")]

    class Failing(Hook):
        def after_run(self, ctx, results):
            if ctx.run.global_step == 2 and errors:
                raise errors.pop()

    assert run_steps(2, Failing(), make(tmp_path)).num_recoveries == 1
    assert steps_of(tmp_path) == [2]


def test_a_first_save_where_it_is_asked_for(tmp_path):
    run_steps(1, make(tmp_path, no_first_save=False))
    assert steps_of(tmp_path) == [0, 1]


def test_saves_at_a_pace_of_steps(tmp_path):
    listener = Listener()
    run_steps(7, make(tmp_path, save_steps=3, listeners=[listener]))
    assert steps_of(tmp_path) == [3, 6, 7]
    assert listener.calls[:3] == ["begin", ("before", 3), ("after", 3)]
    assert listener.calls[-1] == ("end", 7)


def test_a_listener_may_end_the_run(tmp_path):
    run = run_steps(9, make(tmp_path, save_steps=3, listeners=[Listener(is_end=True)]))
    assert run.global_step == 3


@pytest.mark.req("TS-SAVE-T4")
def test_a_guard_is_called_after_a_failed_save(tmp_path):
    guard = Listener()
    options = {"ignore_save_errors": True, "no_first_save": False}
    hook = make(
        tmp_path, listeners=[Listener(99, OpError)], guard_saver_listeners=[guard], **options
    )
    run_steps(1, hook)
    assert guard.calls == [("before", 0), ("after", 0), ("before", 1), ("after", 1)]
    assert steps_of(tmp_path) == []


@pytest.mark.req("TS-SAVE-T5")
def test_a_trigger_inside_the_run_saves_at_once(tmp_path):
    hook, seen = make(tmp_path), []

    def trigger(run):
        hook.trigger_save(run)
        seen.extend(steps_of(tmp_path))

    run_steps(1, hook, then=trigger)
    assert seen == [1]


class Asks(Hook):
    """Has another thread ask for a save, and goes on when it has asked."""

    def __init__(self, hook):
        self.hook, self.errors = hook, []

    def before_run(self, ctx):
        def ask():
            try:
                self.hook.trigger_save(ctx.run)
            except Exception as error:
                self.errors.append(error)

        self.thread = threading.Thread(target=ask)
        self.thread.start()
        while self.thread.is_alive() and not self.hook._requests:
            self.thread.join(0.001)

    def after_run(self, ctx, results):
        self.thread.join()


@pytest.mark.parametrize("num_failures", [0, 2])
def test_a_trigger_of_another_thread_saves_at_the_next_boundary(tmp_path, num_failures):
    hook = make(tmp_path, listeners=[Listener(num_failures)])
    asks = Asks(hook)
    run = Run(global_step=0)

    def step():
        if run.global_step == 1:
            raise StopIteration
        run.global_step += 1
        assert steps_of(tmp_path) == []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asks, "before_run", once(asks.before_run))
        drive(step, [hook, asks], run=run)
    assert steps_of(tmp_path) == [1]
    assert [type(error) for error in asks.errors] == [UnavailableError] * (num_failures // 2)


def once(call):
    calls = []

    def first(ctx):
        if not calls:
            calls.append(None)
            call(ctx)

    return first


def test_a_request_waits_for_its_own_hook(tmp_path):
    asked, other = make(tmp_path / "a"), make(tmp_path / "b")
    run = Run(global_step=1)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    thread = threading.Thread(target=asked.trigger_save, args=(run,))
    thread.start()
    while thread.is_alive() and not asked._requests:
        thread.join(0.001)
    other.serve_requests(run)
    asked.serve_requests(run)
    thread.join()
    assert (steps_of(tmp_path / "a"), steps_of(tmp_path / "b")) == ([1], [])


def test_a_trigger_without_a_boundary_ends_with_its_limit(tmp_path):
    hook = make(tmp_path, trigger_seconds=0)
    with pytest.raises(
        DeadlineExceededError, match=r"expected a step boundary of the run within 0 s"
    ):
        hook.trigger_save(Run(global_step=1))
    hook.serve_requests(Run(global_step=1))
    assert steps_of(tmp_path) == []


@pytest.mark.req("NT-SAVE-T4")
@pytest.mark.parametrize(
    ("num_failures", "ignore", "counts"),
    [(0, False, (1, 0)), (1, False, (1, 1)), (2, True, (0, 2))],
)
def test_a_save_is_tried_twice(tmp_path, num_failures, ignore, counts):
    sink, guard = MemorySink(), Listener()
    hook = make(
        tmp_path,
        listeners=[Listener(num_failures)],
        guard_saver_listeners=[guard],
        ignore_save_errors=ignore,
        sink=sink,
    )
    run_steps(1, hook)
    prefix = "monolith.training.save_checkpoint"
    assert (sink.total(prefix, FULL), sink.total(f"{prefix}_failed", FULL)) == counts
    assert sink.summary(f"{prefix}_time", FULL).num_times == counts[0]
    assert guard.calls == [("before", 1), ("after", 1)]


@pytest.mark.req("NT-SAVE-T4")
def test_a_save_that_fails_twice_is_raised_after_the_guards(tmp_path):
    guard = Listener()
    hook = make(tmp_path, listeners=[Listener(2)], guard_saver_listeners=[guard])
    with pytest.raises(UnavailableError, match="no disk"):
        run_steps(1, hook)
    assert guard.calls[-1] == ("after", 1)


def test_other_errors_are_not_tried_again(tmp_path):
    listener = Listener(1, ValueError)
    with pytest.raises(ValueError, match="no disk"):
        run_steps(1, make(tmp_path, listeners=[listener], ignore_save_errors=True))
    assert listener.calls == ["begin", ("before", 1)]


def test_errors_of_guards_are_logged_and_their_order_is_turned(tmp_path, caplog):
    order = []

    class Bad(Listener):
        def after_save(self, run, global_step):
            order.append(self)
            raise ValueError("bad guard")

    guards = [Bad(), Bad()]
    run_steps(1, make(tmp_path, guard_saver_listeners=guards))
    assert order == guards[::-1]
    assert "a guard of the save of step 1 failed" in caplog.text
    assert steps_of(tmp_path) == [1]


@pytest.mark.req("NT-SAVE-T5")
@pytest.mark.parametrize("already", [False, True])
@pytest.mark.parametrize(
    ("case", "num_saves"),
    [("normal", (1, 0)), ("dense_only", (0, 0)), ("has_dense_only", (1, 1)), ("dump", (1, 1))],
)
def test_saves_at_the_end(tmp_path, case, num_saves, already):
    listener, other = Listener(), []
    hook = make(tmp_path / "a", listeners=[listener], is_dense_only=case == "dense_only")
    if case == "has_dense_only":
        other = [make(tmp_path / "b", is_dense_only=True)]
    run = Run(global_step=0)
    run.metadata[MODEL_DUMP] = case == "dump"

    def last(run):
        if already:
            hook.trigger_save(run)
        listener.calls.clear()

    run_steps(1, hook, *other, run=run, then=last)
    assert listener.calls.count(("before", 1)) == num_saves[already]


def test_a_dense_only_hook_leaves_out_a_step_that_was_saved(tmp_path):
    full, dense = (
        make(tmp_path / "a", save_steps=2),
        make(tmp_path / "b", save_steps=1, is_dense_only=True),
    )
    run_steps(3, full, dense)
    assert steps_of(tmp_path / "b") == [1, 3]


def test_the_monolith_state_is_made_once_and_updated_by_saves(tmp_path):
    write_monolith_checkpoint_state(tmp_path, MonolithCheckpointState(["kept"], 5, 1))
    hook = make(tmp_path, use_native_multi_hash_table=True, clock=lambda: 42.5)
    seen = []
    run_steps(1, hook, then=lambda run: seen.append(get_monolith_checkpoint_state(tmp_path)))
    assert seen == [MonolithCheckpointState(["kept"], 5, 1)]
    assert get_monolith_checkpoint_state(tmp_path) == MonolithCheckpointState(["kept"], 42, 2)


def test_a_monolith_state_that_cannot_be_read_stays(tmp_path):
    text = 'exempt_model_checkpoint_paths: "model.ck'
    (tmp_path / "monolith_checkpoint").write_text(text)
    run_steps(1, make(tmp_path))
    assert steps_of(tmp_path) == [1]
    assert (tmp_path / "monolith_checkpoint").read_text() == text


def test_a_directory_and_a_description_are_made(tmp_path):
    run_steps(0, make(tmp_path / "a" / "b"))
    described = json.loads((tmp_path / "a/b/meta_graph_for_debugging.pb").read_text())
    assert described == {"cpu": {"w": {"dtype": "torch.float32", "shape": [1]}}}
    run_steps(0, make(tmp_path / "c", save_graph_def=False))
    assert os.listdir(tmp_path / "c") == ["monolith_checkpoint"]


def test_without_a_saver_the_variables_of_the_run_are_saved(tmp_path):
    run = Run(global_step=0)
    run.add(VARIABLES, NamedTensor("v", torch.ones(1)))
    run_steps(1, NoFirstSaveCheckpointSaverHook(tmp_path, save_steps=1), run=run)
    assert steps_of(tmp_path) == [1]


def test_a_run_that_does_not_count_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match=r"^Global step should be created to use Checkpoint"):
        drive(lambda: None, [make(tmp_path)])


def test_the_current_checkpoint_is_restored(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    weight, order = torch.zeros(1), []

    class Restores(RestorerListener):
        def before_restore(self, run, prefix):
            order.append(("before", prefix))

        def after_restore(self, run, prefix):
            order.append(("after", prefix))

    saver = PartialRecoverySaver({"w": weight})
    restorer = CheckpointRestorerHook(tmp_path, saver, listeners=[Restores(), RestorerListener()])
    run_steps(0, restorer)
    assert order == []
    run_steps(1, make(tmp_path, weight=torch.ones(1)))
    run_steps(0, restorer)
    prefix = f"{tmp_path}/model.ckpt-1"
    assert checkpoint_exists(prefix)
    assert weight.tolist() == [1.0]
    assert order == [("before", prefix), ("after", prefix)]
    assert "saving checkpoint took" in caplog.text


def test_a_recovery_keeps_the_state_that_a_run_has_trained_since_its_restore(tmp_path):
    run_steps(1, make(tmp_path, weight=torch.ones(1)))
    weight, run = torch.zeros(1), Run(global_step=0)

    def step():
        run.global_step += 1
        weight.add_(1)
        if run.num_recoveries == 0:
            raise AbortedError("a lost connection")
        raise StopIteration

    drive(step, [CheckpointRestorerHook(tmp_path, PartialRecoverySaver({"w": weight}))], run=run)
    assert (weight.item(), run.num_recoveries) == (3.0, 1)


def test_training_goes_on_while_the_disk_is_full(tmp_path, monkeypatch):
    hook = make(tmp_path, save_steps=1, ignore_save_errors=True)
    disk = {"is_full": False}
    write = LocalFile.write

    def write_or_fail(file, data):
        if disk["is_full"]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data)

    class Fills(Hook):
        def before_run(self, ctx):
            disk["is_full"] = ctx.run.global_step == 1

    monkeypatch.setattr(LocalFile, "write", write_or_fail)
    run = run_steps(3, Fills(), hook)
    assert run.global_step == 3
    assert steps_of(tmp_path) == [1, 3]


def test_a_restarted_run_goes_on_counting_and_deletes_checkpoints_of_the_run_before(tmp_path):
    def run_to(step):
        saver = PartialRecoverySaver({"w": torch.zeros(1)}, max_to_keep=2)
        saves = NoFirstSaveCheckpointSaverHook(tmp_path, save_steps=1, saver=saver)
        run_steps(step, CheckpointRestorerHook(tmp_path, saver), saves)
        return steps_of(tmp_path)

    assert run_to(2) == [1, 2]
    assert run_to(3) == [2, 3]


def test_a_run_in_a_store():
    path = "memory://runs/a"
    run_steps(1, make(path))
    weight = torch.ones(1)
    run_steps(0, CheckpointRestorerHook(path, PartialRecoverySaver({"w": weight})))
    assert checkpoint_exists(f"{path}/model.ckpt-1")
    assert weight.tolist() == [0.0]
