"""Waits with a time limit that log what they wait for."""

import logging
import math
import threading
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_SECONDS = 600.0
"""Default limit of a wait."""

_IDLE_SECONDS = 0.2
_FIRST_WORD_SECONDS, _NEXT_WORD_SECONDS = 10.0, 60.0


def check_timeout(where: str, timeout_seconds: float) -> float:
    """Return the limit unchanged if it is valid; `math.inf` means no limit.

    Raises:
        ValueError: the limit is negative or not a number.
    """
    if not timeout_seconds >= 0:  # also refuses NaN
        raise ValueError(
            f"{where} expected a limit of at least 0 seconds, got {timeout_seconds}; "
            "math.inf waits without one"
        )
    return timeout_seconds


def wait_until(
    condition: threading.Condition,
    is_ready: Callable[[], bool],
    timeout_seconds: float,
    what: Callable[[], str],
    *,
    idle: Callable[[], None] | None = None,
) -> bool:
    """Wait on a condition that the caller holds. Ctrl-C ends the wait in the main thread.

    The wait is logged after 10 seconds, and then every minute.

    Args:
        condition: notified when `is_ready` may have changed.
        is_ready: whether the wait is over.
        timeout_seconds: limit of the wait, checked by `check_timeout`.
        what: function that describes the event and how to end the wait, for the log.
        idle: function that is called again and again, without the condition, and whose time does
            not count; None for no such function.

    Returns:
        Whether `is_ready` was true before the limit.
    """
    if is_ready():
        return True
    start, next_word = time.monotonic(), _FIRST_WORD_SECONDS
    while (waited := time.monotonic() - start) < timeout_seconds:
        if waited >= next_word:
            limit = "without a limit" if math.isinf(timeout_seconds) else f"of {timeout_seconds} s"
            _log.info("waiting for %s, since %.0f s %s", what(), waited, limit)
            next_word += _NEXT_WORD_SECONDS
        seconds = min(timeout_seconds, next_word) - waited
        condition.wait(seconds if idle is None else min(seconds, _IDLE_SECONDS))
        if is_ready():
            return True
        if idle is not None:
            start += _seconds_without(condition, idle)
            if is_ready():
                return True
    return False


def _seconds_without(condition: threading.Condition, call: Callable[[], None]) -> float:
    """Call a function without the condition that the caller holds; return its seconds."""
    begin = time.monotonic()
    condition.release()
    try:
        call()
    finally:
        condition.acquire()
    return time.monotonic() - begin
