"""One Arrow file: its bytes are counted, checked and held to a rate while they are written."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from monolith.embedding.disk.new_file import NewFile
from monolith.embedding.disk.throttle import Throttle

__all__ = ["ArrowFile", "write_arrow"]

_SLICE = 1 << 20  # bytes that are let through at once


class ArrowFile:
    """What pyarrow writes into; also the size so far.

    Args:
        file: takes the bytes.
        throttle: holds them to a rate.
    """

    def __init__(self, file: NewFile, throttle: Throttle) -> None:
        self._file, self._throttle = file, throttle
        self.num_bytes = 0
        self.closed = False

    @property
    def crc32c(self) -> int:
        """Checksum so far."""
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
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing is left to do."""
        self.closed = True


@contextmanager
def write_arrow(sink: ArrowFile, schema: pa.Schema) -> Iterator["pa.ipc.RecordBatchFileWriter"]:
    """A writer of record batches of the schema; the file is complete when the block ends well."""
    with pa.PythonFile(sink, mode="w") as file:
        writer = pa.ipc.new_file(file, schema)
        yield writer
        writer.close()
