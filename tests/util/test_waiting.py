import logging
import math
import threading
import types

import pytest

from monolith.util import waiting
from monolith.util.waiting import check_timeout, wait_until


@pytest.mark.parametrize("seconds", [0, 1.5, math.inf])
def test_a_limit_is_returned_as_it_is(seconds):
    assert check_timeout("[x]", seconds) == seconds


@pytest.mark.parametrize("seconds", [-1, math.nan, -math.inf])
def test_a_limit_below_zero_is_refused(seconds):
    with pytest.raises(ValueError, match=rf"\[x\] expected .* at least 0 seconds, got {seconds}"):
        check_timeout("[x]", seconds)


class FakeCondition:
    """Moves the clock by what it is asked to wait."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(waiting, "time", types.SimpleNamespace(monotonic=lambda: self.now))

    def wait(self, seconds):
        self.now += seconds


@pytest.mark.parametrize(("ready_at", "is_ready"), [(0.0, True), (9.0, True), (math.inf, False)])
def test_it_tells_whether_it_was_ready_in_time(monkeypatch, ready_at, is_ready):
    condition = FakeCondition(monkeypatch)
    assert wait_until(condition, lambda: condition.now >= ready_at, 9.0, str) == is_ready
    assert condition.now <= 9.0


def test_a_long_wait_says_what_it_waits_for(monkeypatch, caplog):
    condition = FakeCondition(monkeypatch)
    with caplog.at_level(logging.INFO):
        wait_until(condition, lambda: False, 100.0, lambda: "room in q")
    assert caplog.messages == [
        "waiting for room in q, since 10 s of 100.0 s",
        "waiting for room in q, since 70 s of 100.0 s",
    ]


def test_a_wait_without_a_limit_says_so(monkeypatch, caplog):
    condition = FakeCondition(monkeypatch)
    with caplog.at_level(logging.INFO):
        wait_until(condition, lambda: condition.now > 10, math.inf, lambda: "room in q")
    assert caplog.messages == ["waiting for room in q, since 10 s without a limit"]


def test_the_time_of_an_idle_function_does_not_count():
    condition, calls = threading.Condition(), []

    def idle():
        assert condition.acquire(blocking=False)  # it is free meanwhile
        condition.release()
        calls.append(threading.Event().wait(0.3))

    with condition:
        assert wait_until(condition, lambda: len(calls) == 2, 0.5, str, idle=idle)


def test_a_notice_ends_a_wait():
    condition, is_ready = threading.Condition(), threading.Event()

    def make_ready():
        with condition:
            is_ready.set()
            condition.notify_all()

    with condition:
        threading.Thread(target=make_ready).start()
        assert wait_until(condition, is_ready.is_set, math.inf, str)
