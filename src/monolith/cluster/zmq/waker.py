"""Wake a thread that polls sockets."""

import contextlib
import os
import threading


class Waker:
    """A pipe to poll beside sockets. Any thread may wake.

    Attributes:
        fd: the end to poll for reading.
    """

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)
        self._lock = threading.Lock()
        self._is_awake = False
        self._is_closed = False

    def wake(self) -> None:
        """End the poll of the thread, or its next one."""
        with self._lock:
            if self._is_awake or self._is_closed:
                return
            self._is_awake = True
            os.write(self._write_fd, b"\0")

    def clear(self) -> None:
        """Take the wakes so far; what the wakers wrote before is visible after it."""
        with self._lock:
            self._is_awake = False
            with contextlib.suppress(BlockingIOError):
                os.read(self.fd, 64)

    def close(self) -> None:
        """Close the pipe. Closing twice is fine."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self.fd)
                os.close(self._write_fd)
