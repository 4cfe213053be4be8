"""`ControlRequests`: what other threads ask of a thread."""

import threading

import pytest

from monolith.control import ControlRequests
from monolith.errors import DeadlineExceededError, FailedPreconditionError
from tests.train.roles.job_tasks import wait_for


class Caller(threading.Thread):
    """Asks on a thread of its own."""

    def __init__(self, requests, call, timeout_seconds=60.0):
        super().__init__()
        self.arguments, self.result, self.error = (requests, call, timeout_seconds), None, None
        self.start()

    def run(self):
        requests, call, timeout_seconds = self.arguments
        try:
            self.result = requests.call("a save", call, timeout_seconds)
        except BaseException as error:
            self.error = error

    def end(self):
        self.join(60)
        assert not self.is_alive()
        return self


def asked(requests, call):
    """A caller whose request waits."""
    caller = Caller(requests, call)
    wait_for(lambda: requests._waiting)
    return caller


def test_the_serving_thread_calls_the_function():
    requests = ControlRequests()
    caller = asked(requests, threading.get_ident)
    requests.serve()
    assert caller.end().result == threading.get_ident()


def test_requests_are_served_in_their_order():
    requests, served = ControlRequests(), []
    callers = []
    for number in range(3):
        callers.append(Caller(requests, lambda number=number: served.append(number)))
        wait_for(lambda number=number: len(requests._waiting) == number + 1)
    requests.serve()
    assert served == [0, 1, 2]
    for caller in callers:
        caller.end()


def test_an_error_is_that_of_the_caller_alone():
    requests = ControlRequests()
    caller = asked(requests, lambda: [].pop())
    requests.serve()
    assert type(caller.end().error) is IndexError


def test_an_interrupt_is_that_of_both():
    def interrupt():
        raise KeyboardInterrupt

    requests = ControlRequests()
    caller = asked(requests, interrupt)
    with pytest.raises(KeyboardInterrupt):
        requests.serve()
    assert type(caller.end().error) is KeyboardInterrupt


def test_a_request_that_is_not_served_in_time_is_withdrawn():
    requests, served = ControlRequests(), []
    with pytest.raises(DeadlineExceededError, match=r"boundary for a save within 0\.01 seconds"):
        requests.call("a save", lambda: served.append(1), 0.01)
    requests.serve()
    assert served == []


def test_a_request_that_has_begun_is_waited_for():
    requests, go = ControlRequests(), threading.Event()
    caller = Caller(requests, lambda: go.wait(60), timeout_seconds=1.0)
    wait_for(lambda: requests._waiting)
    server = threading.Thread(target=requests.serve)
    server.start()
    caller.join(1.5)
    assert caller.is_alive()
    go.set()
    assert caller.end().result is True
    server.join(60)


def test_a_wait_ends_with_a_request_and_with_a_wake():
    requests, ended = ControlRequests(), []
    waiter = threading.Thread(target=lambda: ended.append(requests.wait(60)))
    waiter.start()
    while not ended:
        requests.wake()
    waiter.join(60)
    caller = asked(requests, lambda: None)
    requests.wait(60)
    requests.serve()
    caller.end()


def test_requests_after_the_end_are_refused_and_those_that_wait_too():
    requests = ControlRequests()
    caller = asked(requests, lambda: None)
    requests.close("the run has ended")
    text = "expected a run that goes on for a save, got none: the run has ended"
    with pytest.raises(FailedPreconditionError, match=text):
        requests.call("a save", lambda: None)
    assert text in str(caller.end().error)
