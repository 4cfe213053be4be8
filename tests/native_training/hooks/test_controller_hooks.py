"""`ControllerHook`, `StopHelper` and `QueryActionHook`."""

import threading

import pytest

from monolith.cluster.job.shared_state import LocalSharedState
from monolith.errors import InvalidArgumentError
from monolith.native_training.barrier_ops import BarrierHook, BarrierOp
from monolith.native_training.hooks.controller_hooks import (
    ControllerHook,
    QueryActionHook,
    StopHelper,
)
from monolith.train.driver import Hook, Run, drive
from tests.train.roles.job_tasks import wait_for


class At(Hook):
    """Calls a function after a step of a number."""

    def __init__(self, step, call):
        self.step, self.call = step, call

    def after_run(self, ctx, results):
        if results.value == self.step:
            self.call()


def steps(number=20):
    numbers = iter(range(number))
    done = []

    def step():
        done.append(next(numbers))
        return done[-1]

    return step, done


def controller(barrier=None, trigger_save=None, **options):
    options = {"block_seconds": 5.0, "poll_seconds": 0.005, **options}
    return ControllerHook(0, barrier, trigger_save, shared=LocalSharedState(), **options)


def test_a_save_is_triggered_once_with_the_run():
    runs = []
    hook, (step, _) = controller(trigger_save=runs.append), steps()
    run = drive(step, [At(3, hook.request_save), hook])
    assert runs == [run]


def test_a_stop_ends_the_chief_and_a_worker_at_one_step_each():
    shared, helpers = LocalSharedState(), [StopHelper(), StopHelper()]
    ops = [
        BarrierOp(2, wait_seconds=0.005, shared=shared, barrier_callbacks=[h.barrier_callback])
        for h in helpers
    ]
    hook = controller(ops[0])
    (worker_step, worker_done), (chief_step, chief_done) = steps(1 << 30), steps(1 << 30)
    worker = threading.Thread(
        target=lambda: drive(worker_step, [BarrierHook(1, ops[1]), helpers[1].create_stop_hook()])
    )
    worker.start()
    wait_for(lambda: worker_done)
    hooks = [At(3, hook.request_stop), hook, BarrierHook(0, ops[0]), helpers[0].create_stop_hook()]
    drive(chief_step, hooks)
    worker.join(60)
    assert not worker.is_alive()
    assert len(chief_done) <= 6  # the request is seen with the next step
    assert ops[0].is_none_blocked()


def test_a_worker_that_does_not_come_is_named_and_the_barrier_is_removed(caplog):
    op = BarrierOp(2, shared=LocalSharedState())
    hook, (step, done) = controller(op, block_seconds=0.05), steps()
    drive(step, [At(3, hook.request_stop), hook])
    assert "workers [1] are not at the barrier after 0.05 s" in caplog.text
    assert (op.is_barrier_removed(), len(done)) == (True, 20)


def test_a_barrier_of_another_one_stays(caplog):
    op = BarrierOp(1, shared=LocalSharedState())
    op.place_barrier()
    hook, (step, _) = controller(op), steps()
    drive(step, [At(3, hook.request_stop), hook])
    assert "another one has placed the barrier" in caplog.text
    assert op.is_barrier_placed()


def test_what_the_hook_cannot_do_is_refused():
    with pytest.raises(InvalidArgumentError, match="expected a barrier_op for a stop, got None"):
        controller().request_stop()
    with pytest.raises(InvalidArgumentError, match="expected trigger_save for a save, got None"):
        controller().request_save()


def test_another_action_stops_nothing():
    helper = StopHelper()
    helper.barrier_callback("Save", None)
    step, done = steps()
    drive(step, [helper.create_stop_hook()])
    assert len(done) == 20


def answer(folder, text, hook):
    (folder / "monolith_action").write_text(text)
    QueryActionHook(folder, hook).query()
    assert not (folder / "monolith_action").exists()
    return (folder / "monolith_action_response").read_text()


@pytest.mark.parametrize("text", ["action: TRIGGER_SAVE", "action: 1\n"])
def test_a_file_asks_for_a_save(tmp_path, text):
    runs = []
    hook, (step, _) = controller(trigger_save=runs.append), steps()
    assert answer(tmp_path, text, hook) == "OK"
    drive(step, [hook])
    assert len(runs) == 1


def test_a_request_that_comes_while_one_is_answered_is_kept(tmp_path, monkeypatch):
    (tmp_path / "monolith_action").write_text("action: TRIGGER_SAVE")
    hook, asked = controller(trigger_save=lambda run: None), []

    def request_save():
        asked.append("save")
        if len(asked) == 1:
            (tmp_path / "monolith_action").write_text("action: TRIGGER_SAVE")

    monkeypatch.setattr(hook, "request_save", request_save)
    query = QueryActionHook(tmp_path, hook)
    for _ in range(3):
        query.query()
    assert asked == ["save", "save"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("action: STOP", "expected a barrier_op for a stop"),
        ("", "expected action TRIGGER_SAVE or STOP, got none"),
        ("action: UNKNOWN", "expected action TRIGGER_SAVE or STOP, got none"),
        ("action: FLY", "expected a text message, got"),
        ("action: 9", "9 is not a valid Action"),
        ("\xff{", "expected a text message, got"),
    ],
)
def test_a_wrong_file_is_answered_with_the_error(tmp_path, text, expected):
    assert expected in answer(tmp_path, text, controller())


def test_the_file_is_looked_for_again_and_again_while_the_run_goes_on(tmp_path):
    saved = threading.Event()
    hook = controller(trigger_save=lambda run: saved.set())
    query = QueryActionHook(tmp_path, hook, interval_seconds=0.01)
    (tmp_path / "monolith_action").write_text("action: TRIGGER_SAVE")

    def step():
        if saved.wait(0.01):
            raise StopIteration

    drive(step, [query, hook], run=Run(global_step=0))
    assert (tmp_path / "monolith_action_response").read_text() == "OK"


def test_a_folder_that_cannot_be_written_is_logged_and_tried_again(tmp_path, caplog):
    (tmp_path / "monolith_action").mkdir()
    query = QueryActionHook(tmp_path, controller(), interval_seconds=0.001)

    def step():
        if "is not served" in caplog.text:
            raise StopIteration

    drive(step, [query])
