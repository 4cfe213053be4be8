"""Read the bytes of a dump file, uncompressed, through a window that moves over them."""

from collections import deque
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from monolith.checkpoint.reference_dump.dump_files import DumpFolder
from monolith.errors import DataLossError

MAX_BYTES = 1 << 24
"""Largest record, and largest block of Snappy before and after decompression."""

_WINDOW = 1 << 22
_CHUNK = 1 << 20
_HEAD = 4  # bytes of a block's size
_SIZE, _RECORD_HEAD = 8, 12  # bytes of a record's size, and of its size with checksum
_MAX_VARINT = 5  # bytes of 32 bits


class DumpStream:
    """The uncompressed bytes of a dump file from a position on.

    The window has at most `_WINDOW` bytes, or one record, and one block.

    Args:
        folder: folder of the file.
        file: name of the file.
        is_compressed: whether the file consists of blocks of Snappy.
    """

    def __init__(self, folder: DumpFolder, file: str, *, is_compressed: bool) -> None:
        self.where = folder.where(file)
        self.num_bytes = 0  # of the file, read so far
        chunks = folder.chunks(file, _CHUNK)
        self._is_compressed = is_compressed
        self._blocks = self._uncompressed(chunks) if is_compressed else self._plain(chunks)
        self._memory = np.empty(2 * _WINDOW, np.uint8)
        self._begin = self._end = 0  # of the window in the memory
        self._position = 0  # of the window's begin in the uncompressed stream
        # Position in the stream and in the file of each block that the window has.
        self._places: deque[tuple[int, int]] = deque()

    @property
    def address(self) -> int:
        """Address of the window's first byte."""
        return int(self._memory.ctypes.data) + self._begin

    @property
    def size(self) -> int:
        """Number of bytes in the window."""
        return self._end - self._begin

    def skip(self, num_bytes: int) -> None:
        """Move the begin of the window."""
        self._begin += num_bytes
        self._position += num_bytes

    def fill(self, num_bytes: int = 1) -> bool:
        """Read until the window has at least `num_bytes` bytes, and usually more.

        Returns:
            Whether the window has `num_bytes`; False at the end of the file.

        Raises:
            DataLossError: a block cannot be uncompressed.
        """
        if self.size >= num_bytes:
            return True
        wanted = max(num_bytes, _WINDOW)
        while self.size < wanted:
            block = next(self._blocks, None)
            if block is None:
                break
            data = np.frombuffer(block, np.uint8)
            if self._end + len(data) > len(self._memory):
                self._move_to_front(wanted + len(data))
            self._memory[self._end : self._end + len(data)] = data
            self._end += len(data)
        return self.size >= num_bytes

    def _move_to_front(self, num_bytes: int) -> None:
        """Make room for `num_bytes` bytes from the begin of the window on."""
        window = self._memory[self._begin : self._end]
        if num_bytes > len(self._memory):
            self._memory = np.empty(num_bytes, np.uint8)
        self._memory[: len(window)] = window
        self._begin, self._end = 0, len(window)

    def peek(self) -> bytes:
        """Return the next record, unchecked; empty if it is too large or not whole."""
        if not self.fill(_RECORD_HEAD):
            return b""
        size = int.from_bytes(self._memory[self._begin :][:_SIZE].tobytes(), "little")
        if size > MAX_BYTES or not self.fill(_RECORD_HEAD + size):
            return b""
        begin = self._begin + _RECORD_HEAD  # the window may have moved
        return self._memory[begin : begin + size].tobytes()

    def check_end(self) -> None:
        """Refuse further records.

        Raises:
            DataLossError: the window is not at the end of the file.
        """
        if self.fill():
            raise self.damage("the end of the file, as the metadata says", "more")

    def damage(self, expected: str, got: str, at: int = 0) -> DataLossError:
        """Return the error of a record that begins `at` bytes after the begin of the window."""
        return DataLossError(
            f"[reference dump] expected {expected}, got {got} ({self.place(at)}); the file is "
            "damaged or foreign"
        )

    def place(self, at: int = 0) -> str:
        """Return file and offset of a record that begins `at` bytes after the window's begin."""
        position = self._position + at
        if not self._is_compressed:
            return f"{self.where}, record at byte {position}"
        block = max((block for start, block in self._places if start <= position), default=0)
        return (
            f"{self.where}, record at byte {position} of the uncompressed stream, in the block at "
            f"byte {block}"
        )

    def _plain(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self.num_bytes += len(chunk)
            yield chunk

    def _uncompressed(self, chunks: Iterator[bytes]) -> Iterator["pa.Buffer"]:
        """Yield the content of blocks: u32 big-endian size, then raw Snappy of that size."""
        codec, source = pa.Codec("snappy"), _Bytes(chunks)
        start = 0
        while head := source.take(_HEAD):
            begin = self.num_bytes
            size = int.from_bytes(head, "big")
            if len(head) < _HEAD:
                raise self._bad_block(begin, f"{_HEAD} bytes of its size", f"{len(head)}")
            if size > MAX_BYTES:
                raise self._bad_block(begin, f"at most {MAX_BYTES} compressed bytes", f"{size}")
            data = source.take(size)
            if len(data) < size:
                raise self._bad_block(begin, f"{size} compressed bytes", f"{len(data)}")
            num_bytes = _size_of(data)
            if num_bytes is None:
                raise self._bad_block(begin, "an uncompressed size", "none")
            if num_bytes > MAX_BYTES:
                raise self._bad_block(begin, f"at most {MAX_BYTES} bytes", f"{num_bytes}")
            try:
                block = codec.decompress(pa.py_buffer(data), num_bytes)
            except OSError as error:
                raise self._bad_block(begin, "raw Snappy", f"other bytes: {error}") from error
            while len(self._places) > 1 and self._places[1][0] <= self._position:
                self._places.popleft()
            self._places.append((start, begin))
            start += num_bytes
            self.num_bytes += _HEAD + size
            yield block

    def _bad_block(self, begin: int, expected: str, got: str) -> DataLossError:
        return DataLossError(
            f"[reference dump] expected a block of {expected}, got {got} ({self.where}, block at "
            f"byte {begin}); the file is damaged or foreign"
        )


class _Bytes:
    """Returns bytes in pieces of any size."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def take(self, num_bytes: int) -> memoryview:
        """Return `num_bytes` bytes, or those that are left."""
        if len(self._rest) < num_bytes:
            parts, missing = [self._rest], num_bytes - len(self._rest)
            while missing > 0 and (chunk := next(self._chunks, b"")):
                parts.append(memoryview(chunk))
                missing -= len(chunk)
            self._rest = memoryview(b"".join(parts))
        data, self._rest = self._rest[:num_bytes], self._rest[num_bytes:]
        return data


def _size_of(block: memoryview) -> int | None:
    """Return the uncompressed size at the begin of raw Snappy; None if there is none."""
    size = 0
    for i, byte in enumerate(block[:_MAX_VARINT]):
        size |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return size
    return None
