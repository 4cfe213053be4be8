"""Waits of calls for other calls: how long at most, and since when in messages."""

import threading
import time

__all__ = ["WAIT_SECONDS", "check_wait", "time_text"]

WAIT_SECONDS = 600.0
"""How long a call waits for others, unless told; longer than all tries of a call to a shard."""


def check_wait(owner: str, timeout_seconds: float, name: str) -> float:
    """The limit of a wait in seconds, refused if it is none."""
    if not 0 <= timeout_seconds <= threading.TIMEOUT_MAX:
        raise ValueError(
            f"[{owner}] expected timeout_seconds in [0, {threading.TIMEOUT_MAX:g}], got "
            f"{timeout_seconds} (table {name!r})"
        )
    return float(timeout_seconds)


def time_text(seconds: float) -> str:
    """A moment since 1970, for messages.

    Example:
        >>> time_text(0.0)
        '1970-01-01 00:00:00 UTC'
    """
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
