"""Writing of table files at a bounded rate."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from monolith.table.disk.new_file import NewFile


class Throttle:
    """Delays writers so that together they do not exceed a rate.

    Args:
        max_bytes_per_second: largest rate; None means no bound.
        clock: function that returns monotonic seconds.
        wait: function that waits for some seconds, possibly 0; may raise to end the writing.

    Attributes:
        rate: largest rate.

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
        self.rate = max_bytes_per_second
        self._clock, self._wait = clock, wait
        self._lock = threading.Lock()
        self._next = 0.0  # time at which the next bytes may be written

    def take(self, num_bytes: int) -> None:
        """Wait until these bytes may be written."""
        if self.rate is None:
            self._wait(0.0)
            return
        with self._lock:
            now = self._clock()
            start = max(self._next, now)
            self._next = start + num_bytes / self.rate
        self._wait(start - now)


_SLICE = 1 << 20  # bytes that are written at once


class ArrowFile:
    """Sink of pyarrow that counts the bytes.

    Args:
        file: file that receives the bytes.
        throttle: limit of the write rate.
    """

    def __init__(self, file: NewFile, throttle: Throttle) -> None:
        self._file, self._throttle = file, throttle
        self.num_bytes = 0
        self.closed = False

    @property
    def crc32c(self) -> int:
        """CRC-32C of the bytes so far."""
        return self._file.crc32c

    def write(self, data: Any) -> int:
        """Write a buffer."""
        view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
        for start in range(0, len(view), _SLICE):
            part = view[start : start + _SLICE]
            self._throttle.take(len(part))
            self._file.write(part)
        self.num_bytes += len(view)
        return len(view)

    def flush(self) -> None:
        """Do nothing: no bytes are buffered."""

    def close(self) -> None:
        """Do nothing: the file is closed elsewhere."""
        self.closed = True


@contextmanager
def write_arrow(sink: ArrowFile, schema: pa.Schema) -> Iterator["pa.ipc.RecordBatchFileWriter"]:
    """Return a writer of record batches; the file is complete when the block ends without error."""
    with pa.PythonFile(sink, mode="w") as file:
        writer = pa.ipc.new_file(file, schema)
        yield writer
        writer.close()
