"""Files during a write: on a disk of this machine, or by fsspec."""

import os
from typing import Any, Protocol

from monolith.ops.compiled import load_native
from monolith.table.disk.buffers import address_of, crc32c


class NewFile(Protocol):
    """A file during its write."""

    @property
    def crc32c(self) -> int:
        """CRC-32C of all written bytes."""

    def write(self, data: Any) -> None:
        """Write all bytes of a buffer."""

    def close(self) -> None:
        """Sync the bytes and close the file."""


class LocalFile:
    """A file on a disk of this machine; bypasses the page cache if the file system allows it.

    Args:
        path: path of the file, which must not exist.
        blocks: memory that the file shares with other files.
    """

    def __init__(self, path: str, blocks: Any) -> None:
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - closed by close()
        self._writer = load_native().FileWriter(self._file.fileno(), blocks)
        self._crc32c = 0  # after close()

    @property
    def crc32c(self) -> int:
        """CRC-32C of all written bytes; thread-safe with `close`."""
        writer = self._writer
        return self._crc32c if writer is None else writer.crc32c

    def write(self, data: Any) -> None:
        """Write all bytes of a buffer."""
        if size := memoryview(data).nbytes:
            self._writer.write(address_of(data), size)

    def close(self) -> None:
        """Sync the bytes and close the file."""
        with self._file:
            try:
                self._writer.finish()
                os.fsync(self._file.fileno())
            finally:
                self._crc32c = self._writer.crc32c
                self._writer = None  # which has a descriptor of its own


class RemoteFile:
    """A file that fsspec has opened.

    Args:
        file: open file of fsspec.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self.crc32c = 0

    def write(self, data: Any) -> None:
        """Write all bytes of a buffer."""
        if memoryview(data).nbytes:
            self.crc32c = crc32c(data, self.crc32c)
            self._file.write(data)

    def close(self) -> None:
        """Sync the bytes and close the file."""
        self._file.close()
