"""Files during a write: on a disk of this machine, or by fsspec."""

import contextlib
import os
from typing import Any, Protocol

from monolith.ops.compiled import load_native
from monolith.table.disk.buffers import address_of, crc32c
from monolith.util.stores import StoreFile


class NewFile(Protocol):
    """A file during its write."""

    @property
    def crc32c(self) -> int:
        """CRC-32C of all written bytes."""

    def write(self, data: Any) -> None:
        """Write all bytes of a buffer."""

    def close(self) -> None:
        """Sync the bytes and close the file."""

    def discard(self) -> None:
        """Close a file whose bytes are not needed."""


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

    def discard(self) -> None:
        """Close the file; its name stays."""
        self.close()


class RemoteFile:
    """A new file of a store, which has the file only after `close`.

    Args:
        file: open file of the store.
    """

    def __init__(self, file: StoreFile) -> None:
        self._file = file
        self.crc32c = 0

    def write(self, data: Any) -> None:
        """Write all bytes of a buffer."""
        if memoryview(data).nbytes:
            self.crc32c = crc32c(data, self.crc32c)
            self._file.write(data)

    def close(self) -> None:
        """Upload the rest of the bytes and complete the file."""
        self._file.close()

    def discard(self) -> None:
        """Close the file without completing it, where the driver can."""
        with contextlib.suppress(OSError):  # the store may be the reason; the next save cleans up
            self._file.discard()
