"""Uncompressed bytes of a file; positions count uncompressed bytes."""

import zlib
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from monolith.data.files.listing import DataFile
from monolith.errors import DataLossError

_ENDS = MappingProxyType(
    {".gz": "gzip", ".zlib": "zlib", ".zst": "zstd", ".zstd": "zstd", ".snappy": "snappy"}
)
_NAMES = ("none", "gzip", "zlib", "zstd", "snappy")
_CHUNK = 1 << 20
_MAX_BLOCK = 1 << 28  # largest block of snappy in bytes


def compression_of(path: str, compression: str = "auto") -> str:
    """Return the compression of an option, or that of the end of the file name for "auto".

    Raises:
        ValueError: the compression is unknown.
    """
    if compression == "auto":
        return next((name for end, name in _ENDS.items() if path.endswith(end)), "none")
    if compression not in _NAMES:
        raise ValueError(
            f"[data] expected compression 'auto' or one of {_NAMES}, got {compression!r}"
        )
    return compression


class ByteStream:
    """Reads a file from a position of its uncompressed bytes. Not thread-safe."""

    def __init__(self, file: DataFile, position: int, compression: str) -> None:
        self._file = file
        self._raw = file.open()
        self._stream: Any = self._raw
        # Arrow decompresses a whole block of records in one call without the GIL; "gzip" also reads
        # zlib, and several members in a row.
        if compression == "zstd":
            self._stream = pa.CompressedInputStream(self._raw, "zstd")
        elif compression in ("gzip", "zlib"):
            self._stream = pa.CompressedInputStream(self._raw, "gzip")
        elif compression == "snappy":
            self._stream = _Chunks(_snappy_chunks(self._raw, file.path))
        if compression == "none":
            self._raw.seek(position)
        else:
            self._skip(position)

    def _skip(self, count: int) -> None:
        ignored = np.empty(min(count, _CHUNK), np.uint8)
        while count > 0:
            got = self.read_into(ignored[:count])
            if got == 0:
                raise DataLossError(f"[data] {self._file.path!r} is shorter than it was")
            count -= got

    @property
    def num_bytes(self) -> int:
        """Bytes of the file itself that were read so far."""
        return min(self._file.size, int(self._raw.tell()))

    def read_into(self, out: npt.NDArray[np.uint8]) -> int:
        """Fill the array, or its begin at the end of the file; return the number of bytes.

        Raises:
            FailedPreconditionError: the size of the file has changed since it was found.
        """
        filled = 0
        while filled < len(out):
            got = self._read(out[filled:])
            if got == 0 or int(self._raw.tell()) > self._file.size:
                self._file.check_size(self._file.size_now())
            if got == 0:
                break
            filled += got
        return filled

    def _read(self, out: npt.NDArray[np.uint8]) -> int:
        try:
            return int(self._stream.readinto(out))
        except OSError as error:
            if not isinstance(self._stream, pa.CompressedInputStream):
                raise
            path = self._file.path
            if "Truncated" in str(error):
                raise DataLossError(f"[data] {path!r} ends inside its compressed bytes") from error
            raise DataLossError(f"[data] {path!r} cannot be uncompressed: {error}") from error

    def close(self) -> None:
        """Close the file."""
        if self._stream is not self._raw:
            self._stream.close()
        self._raw.close()


class _Chunks:
    """Returns chunks of bytes in pieces of any size."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readinto(self, out: npt.NDArray[np.uint8]) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        count = min(len(out), len(self._rest))
        out[:count] = np.frombuffer(self._rest[:count], np.uint8)
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        """Do nothing: no file is open."""


def _snappy_chunks(raw: pa.NativeFile, path: str) -> Iterator[bytes]:
    """Yield the blocks of Hadoop: u32 size of a block, then u32 sizes and raw snappy."""
    codec = pa.Codec("snappy")
    while True:
        head = raw.read(4)
        if not head:
            return
        left = _size(head, path, _MAX_BLOCK)
        while left > 0:
            size = _size(raw.read(4), path, _MAX_BLOCK)
            data = raw.read(size)
            if len(data) != size:
                raise DataLossError(f"[data] {path!r} ends inside its compressed bytes")
            whole = _snappy_size(data)
            if not 0 < whole <= left:
                raise DataLossError(
                    f"[data] {path!r}: expected 1 to {left} bytes of a block of snappy, got {whole}"
                )
            try:
                yield codec.decompress(data, whole, asbytes=True)
            except OSError as error:
                raise DataLossError(f"[data] {path!r} cannot be uncompressed: {error}") from error
            left -= whole


def _size(data: bytes, path: str, most: int) -> int:
    size = int.from_bytes(data, "big")
    if len(data) != 4:
        raise DataLossError(f"[data] {path!r} ends inside its compressed bytes")
    if size > most:
        raise DataLossError(
            f"[data] {path!r}: expected a block of at most {most} bytes, got {size}"
        )
    return size


def _snappy_size(data: bytes) -> int:
    """Return the varint at the begin of raw snappy."""
    size = 0
    for i, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return size
    return 0


def compress(data: bytes, compression: str) -> bytes:
    """Return the bytes as a file with this compression stores them.

    Example:
        >>> zlib.decompress(compress(b"abc", "zlib"))
        b'abc'
    """
    if compression == "none":
        return data
    if compression == "zlib":
        return zlib.compress(data)
    if compression == "snappy":
        blocks = [data[i : i + _CHUNK] for i in range(0, len(data), _CHUNK)]
        return b"".join(_snappy_block(block) for block in blocks)
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, compression) as stream:
        stream.write(data)
    return bytes(out.getvalue())


def _snappy_block(block: bytes) -> bytes:
    packed: bytes = pa.Codec("snappy").compress(block, asbytes=True)
    return len(block).to_bytes(4, "big") + len(packed).to_bytes(4, "big") + packed
