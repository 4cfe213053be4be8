import logging
import random
from datetime import datetime, timezone

import pytest

from monolith.native_training.saver.tide import (
    CustomGlobalStepWaiterHook,
    TideStoppingHook,
    TideWindow,
    TimeSource,
    before,
    tide_available_now,
)
from monolith.train import Coordinator, Run, StepContext

NIGHT = (1, 0, 5, 0)


class FakeTime:
    """A clock that moves when somebody sleeps."""

    def __init__(self, hour=10, minute=0, on_sleep=lambda count: None):
        self.now = datetime(2024, 2, 29, hour, minute, tzinfo=timezone.utc)
        self.seconds, self.sleeps, self.on_sleep = 0.0, [], on_sleep

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.seconds += seconds
        self.on_sleep(len(self.sleeps))

    @property
    def source(self):
        return TimeSource(lambda: self.now, lambda: self.seconds, self.sleep)


class FixedRandom(random.Random):
    def __init__(self, value):
        super().__init__()
        self.value, self.asked = value, []

    def randint(self, a, b):
        self.asked.append((a, b))
        return self.value


def context(global_step=0):
    return StepContext(Run(global_step=global_step), Coordinator())


def waiter(step, fake, *window, minutes=10, extra=0):
    times = window or (None,) * 4
    source = {"source": fake.source, "random_source": FixedRandom(extra)}
    return CustomGlobalStepWaiterHook(step, *times, minutes, **source)


@pytest.mark.parametrize(
    ("times", "is_before"),
    [
        ((1, 0, 2, 0), True),
        ((1, 59, 2, 0), True),
        ((2, 0, 2, 1), True),
        ((2, 0, 2, 0), False),
        ((2, 1, 2, 0), False),
        ((3, 0, 2, 59), False),
    ],
)
def test_times_of_day_are_compared_by_hour_then_minute(times, is_before):
    assert before(*times) == is_before


@pytest.mark.req("NT-SRH-T1")
@pytest.mark.parametrize(
    ("window", "now", "is_available"),
    [
        (NIGHT, (0, 59), False),
        (NIGHT, (1, 0), True),
        (NIGHT, (4, 59), True),
        (NIGHT, (5, 0), False),
        ((22, 0, 6, 0), (21, 59), False),
        ((22, 0, 6, 0), (22, 0), True),
        ((22, 0, 6, 0), (2, 0), True),
        ((22, 0, 6, 0), (6, 0), False),
        ((22, 0, 6, 0), (12, 0), False),
        ((7, 30, 7, 30), (7, 29), True),
        ((7, 30, 7, 30), (7, 30), True),
    ],
)
def test_a_window_has_its_start_and_not_its_end(window, now, is_available):
    assert tide_available_now(*window, source=FakeTime(*now).source) == is_available


def test_the_clock_of_the_system_is_asked_unless_there_is_another():
    assert tide_available_now(0, 0, 0, 0)
    assert TimeSource().utc_now().tzinfo is timezone.utc


@pytest.mark.parametrize(
    ("window", "text"),
    [
        ((24, 0, 5, 0), "hours in 0..23, got 24; midnight is 0"),
        ((1, 0, -1, 0), "hours in 0..23, got -1"),
        ((1, 60, 5, 0), "minutes in 0..59, got 60"),
        ((1, 0, 5, -1), "minutes in 0..59, got -1"),
    ],
)
def test_times_that_do_not_exist_are_refused(window, text):
    with pytest.raises(ValueError, match=text):
        TideWindow(*window)


def test_a_window_that_is_given_in_part_is_refused():
    with pytest.raises(ValueError, match=r"got \(1, None, 5, 0\); give all four or none"):
        TideStoppingHook(1, None, 5, 0)


@pytest.mark.req("TS-SRH-T1")
@pytest.mark.parametrize("step", [0, -1])
def test_step_zero_is_not_waited_for(step):
    fake, ctx = FakeTime(), context()
    waiter(step, fake).before_run(ctx)
    assert not fake.sleeps
    assert not ctx.stop_requested


@pytest.mark.req("TS-SRH-T2")
def test_outside_of_the_window_nobody_waits_and_the_run_stops(caplog):
    fake, ctx = FakeTime(10, 0), context()
    with caplog.at_level(logging.INFO):
        waiter(1000, fake, *NIGHT).before_run(ctx)
    assert not fake.sleeps
    assert ctx.stop_requested
    assert "the run stops" in caplog.text


@pytest.mark.req("TS-SRH-T3")
def test_the_worker_waits_for_the_step_and_then_never_again():
    ctx = context()

    def others_work(count):
        ctx.run.global_step = {1: 500, 2: 1100}[count]

    fake = FakeTime(on_sleep=others_work)
    hook = waiter(1000, fake)
    hook.before_run(ctx)
    assert fake.sleeps == [0.5, 0.5]
    ctx.run.global_step = 0
    hook.before_run(ctx)
    assert len(fake.sleeps) == 2


def test_the_window_is_looked_at_while_waiting():
    ctx = context()
    fake = FakeTime(4, 59)

    def time_passes(count):
        fake.now = fake.now.replace(hour=5, minute=0)

    fake.on_sleep = time_passes
    waiter(1000, fake, *NIGHT).before_run(ctx)
    assert len(fake.sleeps) == 1
    assert ctx.stop_requested


@pytest.mark.req("NT-SRH-T2")
@pytest.mark.parametrize(("extra", "seconds"), [(0, 60.5), (7, 67.5)])
def test_a_worker_starts_anyway_when_the_timer_is_over(extra, seconds):
    fake, ctx = FakeTime(), context(global_step=5)
    waiter(1000, fake, minutes=1, extra=extra).before_run(ctx)
    assert fake.seconds == seconds
    assert not ctx.stop_requested


@pytest.mark.req("NT-SRH-T2")
@pytest.mark.parametrize("step", [0, 1])
def test_the_timer_does_not_start_before_the_second_step(step):
    ctx = context(global_step=step)

    def give_up(count):
        if count == 1000:
            ctx.request_stop()

    fake = FakeTime(on_sleep=give_up)
    waiter(1000, fake, minutes=1).before_run(ctx)
    assert fake.seconds == 500


def test_the_timer_starts_with_the_second_step():
    ctx = context()

    def others_work(count):
        ctx.run.global_step = 5 if count >= 200 else 0

    fake = FakeTime(on_sleep=others_work)
    waiter(1000, fake, minutes=1).before_run(ctx)
    assert fake.seconds == 100 + 60.5


def test_a_wait_is_logged_once_a_minute(caplog):
    fake, ctx = FakeTime(), context(global_step=5)
    with caplog.at_level(logging.INFO):
        waiter(1000, fake, minutes=2).before_run(ctx)
    assert caplog.messages == ["waiting for global step 1000, now 5"] * 3


def test_the_random_time_is_drawn_once_from_0_to_600():
    source = FixedRandom(0)
    hook = CustomGlobalStepWaiterHook(1, random_source=source)
    hook.before_run(context(global_step=1))
    assert source.asked == [(0, 600)]


@pytest.mark.req("NT-SRH-T3")
def test_a_run_without_a_global_step_is_refused():
    text = r"^Global step should be created to use _GlobalStepWaiterHook\.$"
    with pytest.raises(RuntimeError, match=text), Run().as_current():
        CustomGlobalStepWaiterHook(1).begin()


def test_a_run_with_a_global_step_is_accepted():
    with Run(global_step=0).as_current():
        CustomGlobalStepWaiterHook(1).begin()


@pytest.mark.req("TS-SRH-T4")
def test_the_run_stops_outside_of_the_window():
    ctx = context()
    TideStoppingHook(*NIGHT, source=FakeTime(10, 0).source).before_run(ctx)
    assert ctx.stop_requested


@pytest.mark.req("TS-SRH-T5")
@pytest.mark.parametrize("window", [(1, 0, 12, 0), (None,) * 4])
def test_the_run_goes_on_inside_the_window_or_without_one(window):
    ctx = context()
    TideStoppingHook(*window, source=FakeTime(10, 0).source).before_run(ctx)
    assert not ctx.stop_requested
