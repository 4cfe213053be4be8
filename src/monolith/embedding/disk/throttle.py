"""A bound on bytes per second, shared by threads."""

import threading
import time
from collections.abc import Callable

__all__ = ["Throttle"]


class Throttle:
    """Lets writers wait so that together they write no faster than a rate.

    Args:
        max_bytes_per_second: the rate; no bound if None.
        clock: seconds, never backwards.
        wait: waits for some seconds, also for none; may raise to end the writing.

    Example:
        >>> waits = []
        >>> throttle = Throttle(100, clock=lambda: 0.0, wait=waits.append)
        >>> for _ in range(3):
        ...     throttle.take(50)
        >>> waits
        [0.0, 0.5, 1.0]
    """

    def __init__(
        self,
        max_bytes_per_second: float | None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = max_bytes_per_second
        self._clock, self._wait = clock, wait
        self._lock = threading.Lock()
        self._next = 0.0  # when the next bytes may be written

    def take(self, num_bytes: int) -> None:
        """Wait until these bytes may be written."""
        if self._rate is None:
            self._wait(0.0)
            return
        with self._lock:
            now = self._clock()
            start = max(self._next, now)
            self._next = start + num_bytes / self._rate
        self._wait(start - now)
