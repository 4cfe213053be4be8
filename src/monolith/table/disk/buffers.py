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
    """Return the address of a contiguous buffer, which is not empty and belongs to the caller."""
    address: int = np.frombuffer(buffer, np.uint8).ctypes.data
    return address


def new_memory(num_bytes: int) -> mmap.mmap:
    """Allocate memory for a file, in large pages if possible, because small pages are slow.

    The memory begins at a page, as direct reads need it.
    """
    memory = mmap.mmap(-1, max(1, num_bytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):  # large pages are optional
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class Buffers:
    """Reusable memory for whole files, because the first touch of new memory is slow."""

    def __init__(self) -> None:
        self._free: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()

    @contextlib.contextmanager
    def lend(self, num_bytes: int) -> Iterator[torch.Tensor]:
        """Lend memory of `num_bytes` bytes for the duration of a block."""
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
    """Return the CRC-32C of the bytes of a buffer; releases the GIL.

    Args:
        data: object with a contiguous buffer.
        before: checksum of the preceding bytes.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    number: int = load_native().crc32c(address_of(data), memoryview(data).nbytes, before)
    return number
