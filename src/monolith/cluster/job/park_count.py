"""`ParkCount`: whether all workers of a job are to stand, as server 0 keeps it."""

import threading
from collections.abc import Callable


class ParkCount:
    """Counts stops and resumes: training is stopped while the number is odd; see `JobPark`.

    Any thread may call at any time.

    Args:
        lock: Held while the number changes, and entered again.
        publish: Called with a new number.

    Attributes:
        number: The number.
    """

    def __init__(self, lock: threading.RLock, publish: Callable[[int], None]) -> None:
        self._lock, self._publish, self.number = lock, publish, 0

    def take(self, number: int) -> None:
        """Take the number that a worker has heard, unless a larger one is known."""
        with self._lock:
            if number > self.number:
                self.number = number
                self._publish(number)

    def place(self, known: int) -> tuple[int, bool]:
        """Let all workers stand at their next step boundary.

        Args:
            known: Number that the caller has heard.

        Returns:
            The number, and whether training was not stopped before.
        """
        with self._lock:
            self.take(known)
            is_new = self.number % 2 == 0
            self.take(self.number + is_new)
            return self.number, is_new

    def remove(self, known: int) -> int:
        """Let all workers go on; return the number."""
        with self._lock:
            self.take(known)
            self.take(self.number + self.number % 2)
            return self.number
