"""Hooks that work while a step waits for its samples."""

import threading
import time

import pytest

from monolith.checkpoint import find
from monolith.train import CheckpointHook, Coordinator, Hook, Run, Trainer, TrainSettings
from monolith.train.online.idle_calls import IdleCalls
from tests.train.tasks import Counting, counted


class Idle(Hook):
    """Counts its calls, and calls a function."""

    def __init__(self, call=lambda ctx: None):
        self.number, self._call = 0, call

    def idle(self, ctx):
        self.number += 1
        self._call(ctx)


def begun(*hooks, stop=lambda: None):
    calls = IdleCalls(hooks, stop)
    coordinator = Coordinator()
    calls.after_create_session(Run(global_step=0), coordinator)
    return calls, coordinator


def test_hooks_are_called_in_their_order():
    order = []
    calls, _ = begun(Idle(lambda ctx: order.append(1)), Hook(), Idle(lambda ctx: order.append(2)))
    calls()
    assert order == [1, 2]


def test_nothing_happens_before_the_run_and_on_other_threads():
    hook = Idle()
    IdleCalls([hook], lambda: None)()
    calls, _ = begun(hook)
    thread = threading.Thread(target=calls)
    thread.start()
    thread.join()
    assert hook.number == 0


def test_a_stop_that_a_hook_requests_ends_the_wait():
    stops = []
    calls, _ = begun(Idle(lambda ctx: ctx.request_stop()), stop=lambda: stops.append(1))
    calls()
    assert stops == [1]


def waiting_for(is_over, seconds=60):
    """Yield a batch, wait, and yield another one."""
    first, second = counted(2)
    yield first
    limit = time.monotonic() + seconds
    while not is_over():
        assert time.monotonic() < limit, "nothing happens while the source is idle"
        time.sleep(0.01)
    yield second


@pytest.mark.parametrize("background", [True, False])
def test_a_run_saves_by_time_while_its_source_is_idle(tmp_path, background):
    def is_saved():
        checkpoint = find(tmp_path)
        return checkpoint is not None and checkpoint.step == 1

    settings = TrainSettings(
        prefetch=1,
        checkpoint_dir=str(tmp_path),
        save_seconds=0.05,
        background_saves=background,
    )
    with Trainer(Counting(), settings) as trainer:
        assert trainer.fit(waiting_for(is_saved)).num_steps == 2


def test_a_save_that_was_skipped_is_made_up_while_the_source_is_idle(tmp_path):
    """The save of step 2 is due while that of step 1 is written, which lasts until it is let go."""

    class Lift(Hook):
        def idle(self, ctx):
            if ctx.run.global_step == 2:
                for writing in trainer._saves.thread.running():
                    writing.control.lift_rate()

    def batches():
        first, second, third = counted(3)
        yield from (first, second)
        limit = time.monotonic() + 60
        while (checkpoint := find(tmp_path)) is None or checkpoint.step < 2:
            assert time.monotonic() < limit, "step 2 is not saved"
            time.sleep(0.01)
        yield third

    hook = CheckpointHook(tmp_path, every_seconds=1e-9, rate=1e-6)
    with Trainer(Counting(), TrainSettings(prefetch=1)) as trainer:
        result = trainer.fit(batches(), hooks=[hook, Lift()])
    assert result.num_steps == 3
    assert result.saves.num_skipped >= 1


def test_a_hook_is_called_while_a_step_waits():
    hook = Idle()
    with Trainer(Counting(), TrainSettings(prefetch=1), hooks=[hook]) as trainer:
        trainer.fit(waiting_for(lambda: hook.number > 2))


def test_a_hook_may_end_a_run_that_waits():
    hook = Idle(lambda ctx: ctx.request_stop())
    with Trainer(Counting(), TrainSettings(prefetch=1), hooks=[hook]) as trainer:
        result = trainer.fit(waiting_for(lambda: hook.number > 0))
    assert (result.ended, result.num_steps) == ("stopped", 1)
