"""`ParkHook` with a park of this process, on the thread of the test."""

import contextlib
import threading

import pytest

from monolith.control import ControlRequests
from monolith.errors import AbortedError, UnavailableError
from monolith.train.controlled import park_hook
from monolith.train.controlled.park_hook import Boundary, LocalPark, ParkHook, at_boundary
from monolith.train.driver import Coordinator, Run


class Standing:
    """A hook that stands; what happens is in `events`, and `steps` are done in the waits, in turn.

    Attributes:
        park: Its park.
        run: Its run.
    """

    def __init__(self, *steps):
        self.events, self.steps, self.is_stopping = [], list(steps), False
        self.park, self.requests, self.run = LocalPark(), ControlRequests(), Run()
        self.requests.wait = self._wait
        boundary = Boundary(
            settle=lambda: self.events.append("settle"),
            paused=self._paused,
            is_stopping=lambda: self.is_stopping,
            check=self.check,
            leave=lambda: self.events.append("leave"),
        )
        self.hook = ParkHook(self.park, self.requests, boundary)
        self.coordinator = Coordinator()

    def check(self):
        pass

    def _wait(self, seconds):
        self.steps.pop(0)(self)

    @contextlib.contextmanager
    def _paused(self):
        self.events.append("pause")
        yield
        self.events.append("go on")

    def begin(self):
        self.hook.after_create_session(self.run, self.coordinator)
        return self

    def stand(self):
        self.park.place()
        self.hook.after_run(None, None)
        return self.events


def stop(standing):
    standing.is_stopping = True


def resume(standing):
    standing.park.remove()


def test_a_hook_settles_first_and_stands_until_the_resume():
    seen = []
    standing = Standing(lambda s: seen.append(s.park.workers()[0].state), resume).begin()
    assert standing.stand() == ["pause", "settle", "go on"]
    assert seen == ["parked"]


def test_a_hook_stands_before_the_first_step():
    standing = Standing(resume)
    standing.park.place()
    assert standing.begin().events == ["pause", "settle", "go on"]


def test_a_hook_leaves_when_the_run_is_to_end():
    assert Standing(stop).begin().stand() == ["pause", "settle", "go on", "leave"]


def test_a_hook_leaves_when_a_thread_of_the_run_has_failed():
    standing = Standing(lambda s: s.coordinator.request_stop(OSError("failed"))).begin()
    assert standing.stand() == ["pause", "settle", "go on"]


def test_requests_are_served_while_the_run_stands():
    def ask(standing):
        call = lambda: standing.requests.call("a save", lambda: standing.events.append("save"))  # noqa: E731
        caller = threading.Thread(target=call)
        caller.start()
        while not standing.requests._waiting:
            pass

    assert Standing(ask, resume).begin().stand() == ["pause", "settle", "save", "go on"]


def test_another_thread_does_not_stand():
    standing = Standing().begin()
    standing.park.place()
    other = threading.Thread(target=lambda: at_boundary(standing.run))
    other.start()
    other.join(60)
    assert not other.is_alive()
    assert standing.events == []


def test_a_run_without_the_hook_has_no_boundary():
    at_boundary(Run())


def test_a_worker_that_was_given_up_raises_its_error():
    standing = Standing().begin()

    def check():
        raise AbortedError("given up")

    standing.check = check
    standing.hook._boundary = Boundary(**{**vars(standing.hook._boundary), "check": check})
    with pytest.raises(AbortedError, match="given up"):
        standing.stand()


def test_a_server_that_is_away_is_told_again(monkeypatch, caplog):
    told = []

    def tell(number):
        told.append(number)
        raise [UnavailableError, AbortedError][len(told) > 1]("away")

    monkeypatch.setattr(park_hook, "_TELL_SECONDS", 0.0)
    standing = Standing(lambda s: None, lambda s: None).begin()
    standing.park.note_parked = tell
    with pytest.raises(AbortedError, match="away"):
        standing.stand()
    assert told == [1, 1]
    assert "server 0 does not hear that this worker stands: away" in caplog.text


def test_a_worker_tells_again_that_it_stands(monkeypatch):
    told = []
    monkeypatch.setattr(park_hook, "_TELL_SECONDS", 0.0)
    standing = Standing(lambda s: None, lambda s: None, resume).begin()
    standing.park.note_parked = told.append
    standing.stand()
    assert told == [1, 1, 1]
