import signal
import threading

import pytest
import torch

from monolith.train import Hook, Trainer, TrainSettings
from monolith.train.interrupt import Interrupt
from tests.native_training.queues.threads import Call, until_waiting
from tests.train.tasks import Counting, counted


class Press(Hook):
    """Sends Ctrl-C to the process before a step."""

    def __init__(self, at, times=1):
        self._at, self._times = at, times

    def before_run(self, ctx):
        if ctx.run.global_step == self._at:
            for _ in range(self._times):
                signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(("prefetch", "push"), [(0, 0), (2, 0), (2, 1)])
def test_ctrl_c_ends_a_run_cleanly_and_nothing_is_lost_or_doubled(prefetch, push):
    batches, ended = iter(counted(10)), []

    class End(Hook):
        def end(self, run):
            ended.append(run.global_step)

    with Trainer(task := Counting(), TrainSettings(prefetch=prefetch, push=push)) as trainer:
        result = trainer.fit(batches, hooks=[Press(3), End()])
        assert result.ended == "interrupted"
        assert result.num_steps == len(task.seen) == ended[0]
        assert result.num_steps in (3, 4)  # no further step begins
        assert trainer.features.tables["id"].lookup(torch.tensor([7])).item() == -ended[0]
        assert trainer.fit(batches).num_steps == 10 - ended[0]


def test_the_step_in_which_ctrl_c_comes_is_finished():
    class Pressed(Counting):
        def loss(self, model, inputs, batch):
            if len(self.seen) == 2:
                signal.raise_signal(signal.SIGINT)
            return super().loss(model, inputs, batch)

    with Trainer(Pressed()) as trainer:
        result = trainer.fit()
    assert (result.ended, result.num_steps) == ("interrupted", 3)


def test_sigterm_ends_a_run_after_its_step():
    class Terminated(Counting):
        def loss(self, model, inputs, batch):
            if len(self.seen) == 2:
                signal.raise_signal(signal.SIGTERM)
            return super().loss(model, inputs, batch)

    with Trainer(Terminated()) as trainer:
        result = trainer.fit()
    assert (result.ended, result.num_steps) == ("terminated", 3)


def test_a_second_ctrl_c_interrupts_at_once():
    with Trainer(task := Counting(), TrainSettings(prefetch=2, push=1)) as trainer:
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(hooks=[Press(3, times=2)])
        assert len(task.seen) == 3
    assert not [t for t in threading.enumerate() if "ahead" in t.name or "push" in t.name]


def test_ctrl_c_wakes_a_run_that_waits_for_its_data():
    with Trainer(Counting(), TrainSettings(prefetch=1)) as trainer:

        def stuck():
            yield from counted(2)
            until_waiting(trainer._loop.reader)  # the run waits for the third batch
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            until_stopped(trainer._loop.reader)

        result = trainer.fit(stuck())
    assert (result.ended, result.num_steps) == ("interrupted", 2)


def until_stopped(reader):
    with reader._changed:
        reader._changed.wait_for(lambda: reader._is_stopped, 60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_handler_is_there_for_the_run_alone(number):
    before, inside = signal.getsignal(number), []

    class Look(Hook):
        def after_run(self, ctx, results):
            inside.append(signal.getsignal(number))

    with Trainer(Counting(1)) as trainer:
        trainer.fit(hooks=[Look()])
    assert inside[0] != before
    assert signal.getsignal(number) == before


def test_after_the_first_signal_the_handlers_are_those_of_before():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupt(lambda: None) as interrupt:
        signal.raise_signal(signal.SIGTERM)
        inside = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert interrupt.received == signal.SIGTERM
    assert inside == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_other_threads_leave_signals_alone(number):
    before = signal.getsignal(number)

    def look():
        with Interrupt(lambda: None):
            return signal.getsignal(number)

    assert Call(look).result() == before


def test_a_process_that_ignores_ctrl_c_goes_on_to_do_so():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Trainer(Counting(), TrainSettings(steps=5)) as trainer:
            result = trainer.fit(hooks=[Press(3)])
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.ended == "steps"
