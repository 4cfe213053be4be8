"""Repeat calls over a network."""

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

RETRY_MAX_BACKOFF_SECONDS = 5.0
"""Longest pause between two tries."""

_NUM_TRIES = 5


def retry_with_socket_error(
    call: Callable[[], _T], max_backoff_seconds: float = RETRY_MAX_BACKOFF_SECONDS
) -> _T:
    """Return the result of a call, which is tried up to 5 times after an error of the network.

    Args:
        call: Function to call.
        max_backoff_seconds: Limit of the pause between two tries, whose length is random.

    Raises:
        OSError: All tries failed; this is the last error.

    Example:
        >>> retry_with_socket_error(lambda: 3)
        3
    """
    for _ in range(_NUM_TRIES - 1):
        try:
            return call()
        except OSError as error:
            pause = random.uniform(0, max_backoff_seconds)
            _log.warning("trying again in %.1f s after: %s", pause, error)
            time.sleep(pause)
    return call()
