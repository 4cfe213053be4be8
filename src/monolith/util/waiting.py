"""Waits that have a limit and say what they wait for."""

import logging
import math
import threading
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_SECONDS = 600.0
"""Limit of a wait for which no other is given."""

_FIRST_WORD_SECONDS, _NEXT_WORD_SECONDS = 10.0, 60.0


def check_timeout(where: str, timeout_seconds: float) -> float:
    """Return a limit as it is given; `math.inf` stands for none.

    Raises:
        ValueError: it is negative or no number.
    """
    if not timeout_seconds >= 0:  # NaN is refused too
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
) -> bool:
    """Wait on a condition that the caller holds. Ctrl-C ends it in the main thread.

    A wait of 10 seconds is logged, and then every minute.

    Args:
        condition: notified when `is_ready` may have changed.
        is_ready: whether the wait is over.
        timeout_seconds: the limit, checked by `check_timeout`.
        what: what is waited for, and how to end it; for the log.

    Returns:
        Whether it was ready before the limit.
    """
    if is_ready():
        return True
    start, next_word = time.monotonic(), _FIRST_WORD_SECONDS
    while (waited := time.monotonic() - start) < timeout_seconds:
        if waited >= next_word:
            limit = "without a limit" if math.isinf(timeout_seconds) else f"of {timeout_seconds} s"
            _log.info("waiting for %s, since %.0f s %s", what(), waited, limit)
            next_word += _NEXT_WORD_SECONDS
        condition.wait(min(timeout_seconds, next_word) - waited)
        if is_ready():
            return True
    return False
