"""A run that trains at some hours of the day only."""

from datetime import datetime, timedelta, timezone

import pytest

from monolith.checkpoint import find
from monolith.errors import InvalidArgumentError
from monolith.train import Hook, Trainer, TrainSettings
from monolith.train.controlled import tide_hook
from monolith.train.controlled.tide_hook import tide_hooks
from monolith.util.tide_window import TideWindow, TimeSource
from tests.train.tasks import Counting

NIGHT = "22:00-06:00"


class FakeTime:
    """A clock that moves an hour when somebody sleeps."""

    def __init__(self, hour, on_sleep=lambda: None):
        self.now, self.on_sleep = datetime(2024, 2, 29, hour, tzinfo=timezone.utc), on_sleep
        self.slept_from = []

    def sleep(self, seconds):
        self.slept_from.append(self.now.hour)
        self.now += timedelta(hours=1)
        self.on_sleep()

    @property
    def source(self):
        return TimeSource(lambda: self.now, lambda: self.now.timestamp(), self.sleep)


class SetHour(Hook):
    """Sets the clock after a step."""

    def __init__(self, time, step, hour):
        self._time, self._step, self._hour = time, step, hour

    def after_run(self, ctx, results):
        if ctx.run.global_step == self._step:
            self._time.now = self._time.now.replace(hour=self._hour)


@pytest.fixture
def clock(monkeypatch):
    time = FakeTime(23)
    monkeypatch.setattr(tide_hook, "SYSTEM_TIME", time.source)
    return time


def test_a_run_stands_outside_of_its_hours_and_goes_on(clock, caplog):
    with Trainer(Counting(6), TrainSettings(hours=NIGHT)) as trainer:
        result = trainer.fit(hooks=[SetHour(clock, 3, 19)])
    assert clock.slept_from == [19, 20, 21]
    assert (result.num_steps, result.ended) == (6, "end of data")
    assert "training stands outside of its hours, 22:00-06:00 UTC" in caplog.messages
    assert "training goes on in its hours, after 10800 s" in caplog.messages


def test_a_run_is_saved_before_it_stands(clock, tmp_path):
    saved = []
    clock.on_sleep = lambda: saved.append(find(tmp_path).step)
    settings = TrainSettings(hours=NIGHT, checkpoint_dir=str(tmp_path))
    with Trainer(Counting(6), settings) as trainer:
        trainer.fit(hooks=[SetHour(clock, 3, 21)])
    assert saved == [3]


def test_a_run_that_begins_outside_of_its_hours_waits_for_them(clock, tmp_path):
    clock.now = clock.now.replace(hour=20)
    saved = []
    clock.on_sleep = lambda: saved.append(find(tmp_path))
    settings = TrainSettings(hours=NIGHT, checkpoint_dir=str(tmp_path))
    with Trainer(task := Counting(2), settings) as trainer:
        trainer.fit()
    assert saved == [None, None]
    assert len(task.seen) == 2


def test_a_run_that_stands_may_be_ended(clock):
    with Trainer(Counting(6), TrainSettings(hours=NIGHT)) as trainer:
        clock.on_sleep = lambda: trainer._loop.stop()
        result = trainer.fit(hooks=[SetHour(clock, 3, 12)])
    assert (result.num_steps, result.ended) == (3, "stopped")
    assert clock.slept_from == [12]


def test_a_run_without_hours_has_no_such_hook():
    assert tide_hooks(None, None) == []


def test_hours_in_a_job_of_several_processes_are_refused():
    class Fit:
        class trainer:  # noqa: N801 -- an attribute
            job, sync = object(), None

    with pytest.raises(InvalidArgumentError, match=f"got '{NIGHT}'; stop and resume the job"):
        tide_hooks(Fit, NIGHT)


@pytest.mark.parametrize("hours", ["22:00", "22-6", "night", ""])
def test_hours_are_a_window_of_two_times(hours):
    with pytest.raises(ValueError, match="expected hours of the day in UTC as 22:00-06:00, got"):
        TrainSettings(hours=hours)


def test_a_window_is_written_as_it_is_read():
    assert str(TideWindow.of("9:05-17:30")) == "09:05-17:30"
