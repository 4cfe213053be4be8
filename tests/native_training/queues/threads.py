"""Threads of tests: what they return or raise, and waits for a state that others bring about."""

import threading
import time

LIMIT_SECONDS = 60  # reached only by a test that fails


class Call:
    """Runs a function on a thread."""

    def __init__(self, function, *args):
        self._outcome = None
        self._thread = threading.Thread(target=self._run, args=(function, *args), daemon=True)
        self._thread.start()

    def _run(self, function, *args):
        try:
            self._outcome = (function(*args), None)
        except BaseException as error:
            self._outcome = (None, error)

    def result(self):
        self._thread.join(LIMIT_SECONDS)
        assert self._outcome is not None, "the thread goes on"
        value, error = self._outcome
        if error is not None:
            raise error
        return value


def until(is_true):
    """Returns when the state is reached."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not is_true():
        assert time.monotonic() < deadline, "the state is never reached"
        time.sleep(0.0001)


def until_waiting(queue, number=1):
    """Returns when so many threads wait on a queue."""
    until(lambda: len(queue._changed._waiters) >= number)
