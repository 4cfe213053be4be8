"""Limits of the time that something takes, on a machine that may have much else to do."""

import contextlib
import signal

AT_ONCE = 30.0
"""Seconds for what takes an idle machine milliseconds, in place of hours: an end of a wait."""


@contextlib.contextmanager
def at_once():
    """Fail, in the main thread, what would wait for ever."""

    def fail(number, frame):
        raise AssertionError(f"it has not ended after {AT_ONCE:g} seconds")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, AT_ONCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
