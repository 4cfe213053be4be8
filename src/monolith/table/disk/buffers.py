"""Buffers of files: sizes, alignment, checksums."""

import contextlib
import mmap
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from monolith.ops.compiled import load_native


def address_of(buffer: Any) -> int:
    """Where the bytes of a contiguous buffer are, which is not empty and stays the caller's."""
    address: int = np.frombuffer(buffer, np.uint8).ctypes.data
    return address


def new_memory(num_bytes: int) -> mmap.mmap:
    """Memory for a file, of large pages where the system has them: small ones are slow to get.

    It begins at a page, as reads past the page cache want it.
    """
    memory = mmap.mmap(-1, max(1, num_bytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):  # a wish
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class Buffers:
    """Memory for whole files, used again: fresh memory is slow at its first touch."""

    def __init__(self) -> None:
        self._free: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()

    @contextlib.contextmanager
    def lend(self, num_bytes: int) -> Iterator[torch.Tensor]:
        """Memory of so many bytes for the length of a block."""
        try:
            memory = self._free.get_nowait()
        except queue.Empty:
            memory = torch.empty(0, dtype=torch.uint8, device="cpu")
        if len(memory) < num_bytes:
            memory = torch.frombuffer(new_memory(num_bytes * 5 // 4), dtype=torch.uint8)
        try:
            yield memory[:num_bytes]
        finally:
            self._free.put(memory)


def crc32c(data: Any, before: int = 0) -> int:
    """CRC-32C of the bytes of a buffer; the GIL is released.

    Args:
        data: whatever has a contiguous buffer.
        before: checksum of the bytes before.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    number: int = load_native().crc32c(address_of(data), memoryview(data).nbytes, before)
    return number
