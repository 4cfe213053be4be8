"""Lines of a text file, block by block, and the position of a bad line."""

import re

import pyarrow as pa

from monolith.data.files.listing import DataFile
from monolith.errors import DataLossError

_BLOCK = 1 << 22  # size of a block of text in bytes
_MAX_LINE = 1 << 28
_COMPRESSIONS = (
    (".gz", "gzip"),
    (".bz2", "bz2"),
    (".zst", "zstd"),
    (".lz4", "lz4"),
    (".br", "brotli"),
)


def compression_of(path: str) -> str | None:
    """Return the compression of a file by the end of its name."""
    return next((name for end, name in _COMPRESSIONS if path.lower().endswith(end)), None)


class Text:
    """Bytes of a file, divided at line ends that are outside of quoted values."""

    def __init__(self, file: DataFile, position: int, quoted: "re.Pattern[bytes] | None") -> None:
        self._file, self._quoted = file, quoted
        self._raw = file.open()
        compression = compression_of(file.path)
        self._stream = self._raw
        if compression is not None:
            self._stream = pa.CompressedInputStream(self._raw, compression)
            self._skip(position)
        else:
            self._raw.seek(position)
        self.position = position
        self._rest = b""

    def _skip(self, count: int) -> None:
        while count > 0:
            got = len(self._stream.read(min(count, _BLOCK)))
            if got == 0:
                raise DataLossError(f"[data] {self._file.path!r} is shorter than it was")
            count -= got

    @property
    def num_bytes(self) -> int:
        """Bytes of the file that were read so far."""
        return min(self._file.size, int(self._raw.tell()))

    def read(self) -> bytes:
        """Return some lines, or no bytes at the end. Their end depends only on their begin.

        So blocks are equal after a restart, and files that are read in turns keep their order.

        Raises:
            FailedPreconditionError: the size of the file has changed.
            DataLossError: a line is too long.
        """
        data, size = self._rest, _BLOCK
        while True:
            more: bytes = self._stream.read(size - len(data))
            self._check_size(is_end=not more)
            data += more
            if more and len(data) < size:
                continue
            end = self._last_end(data) if more else len(data)
            if end or not more:
                break
            size += _BLOCK
            if len(data) > _MAX_LINE:
                raise DataLossError(
                    f"[data] {self._file.path!r}: the line at byte {self.position} is longer than "
                    f"{_MAX_LINE} bytes"
                )
        self._rest = data[end:]
        self.position += end
        return data[:end]

    def _check_size(self, is_end: bool) -> None:
        """Refuse a file whose end has moved since it was found."""
        num_read = int(self._raw.tell())
        if num_read > self._file.size:
            self._file.check_size(max(num_read, self._file.size_now()))
        if is_end:
            is_plain = self._stream is self._raw
            self._file.check_size(num_read if is_plain else self._file.size_now())

    def _last_end(self, data: bytes) -> int:
        """Return the end of the last whole line, or 0."""
        end = data.rfind(b"\n") + 1
        if self._quoted is None or data.count(b'"', 0, end) % 2 == 0:
            return end
        for begin, quote_end in reversed([match.span() for match in self._quoted.finditer(data)]):
            if begin < end - 1 < quote_end:
                end = data.rfind(b"\n", 0, begin + 1) + 1
        return end

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        self._raw.close()


def bad_text(file: DataFile, begin: int, lines: bytes, error: Exception) -> DataLossError:
    """Return an error that names the line if each row is one line, and the block otherwise."""
    text, place = str(error), f"in the block at byte {begin}"
    row = re.search(r"Row #(\d+): ", text)
    if row is not None and b'"' not in lines:
        is_row = [
            line.strip(b"\r") != b"" for line in lines.split(b"\n")
        ]  # Arrow skips empty lines
        rows = [number for number, is_one in enumerate(is_row, 1) if is_one]
        number = _lines_before(file, begin) + rows[int(row[1]) - 1]
        text, place = text.replace(row[0], ""), f"line {number}"
    return DataLossError(f"[data] {file.path!r}, {place}: {text}")


def _lines_before(file: DataFile, position: int) -> int:
    text, count = Text(file, 0, None), 0
    try:
        while text.position < position:
            begin = text.position
            count += text.read()[: position - begin].count(b"\n")
    finally:
        text.close()
    return count
