"""A log in a store: files that a thread uploads as they grow, so that no step waits for the store.

Files of a store cannot grow. The newest file of the log is kept in memory and uploaded as a whole,
at most every ten seconds; a file of 1 MiB is complete, and the next one begins.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from monolith.util.stores import open_store

_log = logging.getLogger(__name__)

_PACE_SECONDS = 10.0  # between two uploads
_FILE_BYTES = 1 << 20
_KEPT_BYTES = 1 << 26  # that wait for a store that does not answer
_CLOSE_SECONDS = 30.0
_FIRST_WORD_SECONDS = 5.0


class StoreLog:
    """Writes a log to numbered files of a store. Thread-safe.

    `write` and `flush` do not wait for the store. An upload that fails is logged and counted, and
    tried again with the next one. While the store does not answer, the log keeps its newest 64 MiB.

    Args:
        path_of: Function that returns the path of the file of a number.
        first: Number of the first file, which must not exist.
        header: Bytes at the beginning of each file.

    Attributes:
        num_failed: Number of uploads that failed.
        num_lost: Number of bytes that the store has not got.

    Raises:
        FileExistsError: The first file exists.
        OSError: The store cannot be written.
    """

    def __init__(self, path_of: Callable[[int], str], first: int = 0, header: bytes = b"") -> None:
        self._path_of, self._number, self._header = path_of, first, header
        self.num_failed = self.num_lost = 0
        self.closed = False
        self._state = threading.Condition()
        self._parts = deque([_Part(path_of(first), header)])
        self._is_due = self._is_done = False
        store, inner = open_store(self.path)
        store.create_file(inner, header)
        self._next_time = time.monotonic() + _PACE_SECONDS
        self._thread = threading.Thread(target=self._run, name="monolith-store-log", daemon=True)
        self._thread.start()

    @property
    def path(self) -> str:
        """Path of the newest file."""
        return self._parts[-1].path

    def write(self, data: bytes) -> int:
        """Add bytes to the log; the next `flush` lets the store have them."""
        with self._state:
            self._parts[-1].data += data
        return len(data)

    def flush(self) -> None:
        """Upload what was written, soon; a file ends here if it is large."""
        with self._state:
            self._is_due = True
            if len(self._parts[-1].data) >= _FILE_BYTES:
                self._number += 1
                self._parts.append(_Part(self._path_of(self._number), self._header))
                self._drop()
            self._state.notify_all()

    def close(self) -> None:
        """Upload the rest; waits for the store for at most 30 seconds. Safe to call again."""
        with self._state:
            if self.closed:
                return
            self.closed = self._is_due = True
            self._state.notify_all()
            if not self._state.wait_for(lambda: self._is_done, _FIRST_WORD_SECONDS):
                _log.warning("waiting up to %g s to upload %s", _CLOSE_SECONDS, self.path)
                self._state.wait_for(lambda: self._is_done, _CLOSE_SECONDS - _FIRST_WORD_SECONDS)
            self.num_lost += sum(part.num_waiting for part in self._parts)
        if self.num_lost or self.num_failed:
            _log.warning(
                "the store has not got %d bytes of the log %s; %d uploads failed",
                self.num_lost,
                self.path,
                self.num_failed,
            )

    def _drop(self) -> None:
        """Give up the oldest files if too much waits for the store."""
        while len(self._parts) > 1 and sum(len(part.data) for part in self._parts) > _KEPT_BYTES:
            self.num_lost += self._parts.popleft().num_waiting

    def _run(self) -> None:
        num_last = 0  # rounds since `close`; an error of the first one may pass
        while not self._is_done:
            with self._state:
                self._state.wait_for(lambda: self._is_due)
                self._state.wait_for(lambda: self.closed, self._next_time - time.monotonic())
                self._is_due = False
                num_last += self.closed
                waiting = [part for part in self._parts if part.num_waiting]
            for part in waiting:
                if not self._upload(part):
                    break  # readers expect a file to be complete when there is a later one
            with self._state:
                self._next_time = time.monotonic() + _PACE_SECONDS
                while len(self._parts) > 1 and not self._parts[0].num_waiting:
                    self._parts.popleft()
                self._is_due = self._is_due or any(part.num_waiting for part in self._parts)
                self._is_done = num_last > 1 or (num_last == 1 and not self._is_due)
                self._state.notify_all()

    def _upload(self, part: "_Part") -> bool:
        """Write a part to the store; return whether the store has it."""
        with self._state:
            data = bytes(part.data)
        try:
            store, inner = open_store(part.path)
            store.pipe_file(inner, data)
        except OSError as error:
            self.num_failed += 1
            if self.num_failed == 1:
                _log.warning("%s is not uploaded, it is tried again: %s", part.path, error)
            return False
        with self._state:
            part.num_uploaded = len(data)
        return True


class _Part:
    def __init__(self, path: str, header: bytes) -> None:
        self.path, self.data = path, bytearray(header)
        self.num_uploaded = len(header)

    @property
    def num_waiting(self) -> int:
        """Number of bytes that the store has not got."""
        return len(self.data) - self.num_uploaded
