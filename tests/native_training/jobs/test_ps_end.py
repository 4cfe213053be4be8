"""Servers end when the chief asks them, the first one last."""

import pytest

from monolith.cluster.job.shared_state import LocalSharedState
from monolith.native_training.jobs.ps_end import join_ps, shutdown_ps
from monolith.native_training.saver.tide import TimeSource


class FakeTime:
    """A clock that sleeping moves on, with what happens at each sleep."""

    def __init__(self, *events):
        self.now, self.sleeps, self._events = 0.0, [], list(events)
        self.source = TimeSource(monotonic=lambda: self.now, sleep=self._sleep)

    def _sleep(self, seconds):
        self.sleeps.append(seconds)
        self.now += seconds
        if self._events:
            self._events.pop(0)()


def test_a_server_stays_until_it_is_asked():
    shared = LocalSharedState()
    time = FakeTime(lambda: None, lambda: shutdown_ps(shared, 2))
    join_ps(shared, 2, 1, source=time.source)
    assert time.sleeps == [1.0, 1.0]


def test_the_first_server_goes_last():
    shared = LocalSharedState()
    shutdown_ps(shared, 2)
    time = FakeTime(lambda: None, lambda: join_ps(shared, 2, 1, source=FakeTime().source))
    join_ps(shared, 2, 0, source=time.source)
    assert time.sleeps == [1.0, 1.0]


def test_the_first_server_does_not_wait_for_a_dead_one_for_ever(caplog):
    shared, time = LocalSharedState(), FakeTime()
    shutdown_ps(shared, 3)
    join_ps(shared, 3, 1, source=time.source)
    join_ps(shared, 3, 0, source=time.source)
    assert time.sleeps == [1.0] * 10
    assert caplog.records[-1].getMessage() == "servers [2] have not left within 10 s"


def test_a_limit_is_checked():
    with pytest.raises(ValueError, match="expected a limit of at least 0 seconds, got -1"):
        join_ps(LocalSharedState(), 1, 0, leave_seconds=-1)
