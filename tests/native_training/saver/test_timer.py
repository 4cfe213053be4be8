import pytest

from monolith.native_training.saver import SecondOrStepTimer, TideWindow


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class At:
    """A window at a fixed time of day."""

    def __init__(self, window, hour):
        self.window, self.hour = window, hour

    def is_open(self):
        return self.window.contains(self.hour, 0)


def answers(hour, *seconds):
    """Whether a timer of 10 s, of 5 s outside of 01:00 to 03:00, triggers after some seconds."""
    clock = Clock()
    window = None if hour is None else At(TideWindow(1, 0, 3, 0), hour)
    timer = SecondOrStepTimer(10, tide=window, tide_every_secs=5, clock=clock)
    assert timer.should_trigger_for_step(1)
    timer.update_last_triggered_step(1)
    found = []
    for second in seconds:
        clock.now = 1000.0 + second
        found.append(timer.should_trigger_for_step(2))
    return found


@pytest.mark.req("TS-SAVE-T30")
def test_seconds_without_a_tide():
    assert answers(None, 5, 15) == [False, True]


@pytest.mark.req("TS-SAVE-T31")
def test_seconds_inside_of_the_tide():
    assert answers(2, 5, 15) == [False, True]


@pytest.mark.req("TS-SAVE-T32")
def test_seconds_outside_of_the_tide():
    assert answers(4, 2, 9) == [False, True]


def test_steps_do_not_count_outside_of_the_tide():
    clock = Clock()
    closed = At(TideWindow(1, 0, 3, 0), 4)
    timer = SecondOrStepTimer(every_steps=1, tide=closed, tide_every_secs=5, clock=clock)
    timer.update_last_triggered_step(1)
    assert not timer.should_trigger_for_step(50)
    clock.now += 5
    assert timer.should_trigger_for_step(50)


def test_a_window_without_a_pace_of_its_own_changes_nothing():
    timer = SecondOrStepTimer(every_steps=1, tide=At(TideWindow(1, 0, 3, 0), 4))
    timer.update_last_triggered_step(1)
    assert timer.should_trigger_for_step(2)


def test_never_twice_for_one_step_unless_reset():
    timer = SecondOrStepTimer(every_secs=0)
    timer.update_last_triggered_step(3)
    assert timer.last_triggered_step() == 3
    assert not timer.should_trigger_for_step(3)
    timer.reset()
    assert timer.last_triggered_step() is None
    assert timer.should_trigger_for_step(3)


def test_a_disabled_timer_never_triggers():
    timer = SecondOrStepTimer(every_steps=1)
    timer.disable()
    assert not timer.should_trigger_for_step(1)
    timer.enable()
    assert timer.should_trigger_for_step(1)


@pytest.mark.parametrize("paces", [(None, None), (1, 1)])
def test_one_pace_is_given(paces):
    with pytest.raises(ValueError, match=r"expected one of every_secs and every_steps, got"):
        SecondOrStepTimer(*paces)
