"""Readers of files that grow, or that appear as a whole, in the folder of a stream."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from monolith.data.columns import Columns
from monolith.data.convert import BadSamples, Origin, to_block
from monolith.data.files.file_source import FileFormat, FileReader
from monolith.data.files.listing import DataFile, naming
from monolith.data.files.text_lines import compression_of
from monolith.data.records.decoder import RecordFormat
from monolith.data.records.record_columns import RecordColumns
from monolith.data.stages import concat
from monolith.data.stream.json_rows import JsonRows
from monolith.errors import DataLossError, NotFoundError

_BLOCK = 1 << 22  # bytes of a block
_MAX_LINE = 1 << 28


class Chunk(NamedTuple):
    """Samples of a part of a file, and the position after them; None as the end of the file."""

    block: pa.RecordBatch | None  # None without a sample
    end: int | None


class GrowingReader(ABC):
    """Reads parts of files. Not thread-safe.

    Attributes:
        is_appended: whether a file may grow; its positions are bytes. Otherwise a file appears as a
            whole, and its positions are samples.
    """

    is_appended = True

    @abstractmethod
    def read(self, path: str, begin: int, end: int) -> Chunk | None:
        """Return samples from a position on, at most up to `end`; None if there is no whole one.

        Args:
            path: path of the file.
            begin: position of the first sample.
            end: position at which the read ends; the size of a file that may grow.

        Raises:
            DataLossError: a sample is bad, and bad samples are not skipped; or the next sample
                cannot be located.
            NotFoundError: the file is gone.
        """

    def close(self) -> None:  # noqa: B027
        """Close the file that is open, if any."""


def read_bytes(path: str, begin: int, count: int) -> bytes:
    """Return the bytes of a file from a position on, fewer at its end.

    Raises:
        NotFoundError: the file is gone.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            return os.pread(file.fileno(), count, begin)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"[data.stream.tail] expected file {path!r}, of which samples are not yet read, got "
            "none; remove files after their samples are in a checkpoint"
        ) from error


class LineReader(GrowingReader):
    """Reads JSON lines; a line counts as soon as its line end is there."""

    def __init__(
        self, columns: Columns, types: Mapping[str, pa.DataType | str], bad: BadSamples
    ) -> None:
        self._rows, self._bad = JsonRows(columns, types), bad

    def read(self, path: str, begin: int, end: int) -> Chunk | None:
        """See `GrowingReader`."""
        if compression_of(path) is not None:
            raise DataLossError(
                f"[data.stream.tail] expected plain text in {path!r}, got a name of compressed "
                "text, whose end cannot be told while it grows; use data.jsonl for whole files"
            )
        size = _BLOCK
        while True:
            lines = read_bytes(path, begin, min(size, end - begin))
            lines = lines[: lines.rfind(b"\n") + 1]
            if lines or size >= end - begin:
                break
            size *= 4
            if size > _MAX_LINE:
                raise DataLossError(
                    f"[data.stream.tail] {path!r}: the line at byte {begin} is longer than "
                    f"{_MAX_LINE} bytes"
                )
        if not lines:
            return None
        if not lines.strip():
            return Chunk(None, begin + len(lines))
        blocks = self._rows.blocks(lines, Origin(path, 0, begin), self._bad)
        return Chunk(concat(blocks) if blocks else None, begin + len(lines))


class RecordReader(GrowingReader):
    """Reads records; a record counts as soon as its last byte is there."""

    def __init__(self, columns: Columns, file_format: RecordFormat, bad: BadSamples) -> None:
        self._columns, self._bad = columns, bad
        self._wanted = RecordColumns(columns)
        self._decoder = self._wanted.decoder(
            file_format.kind,
            file_format.flags,
            max_bytes=file_format.max_record_bytes,
            keeps_fid_v1=file_format.keep_fid_v1,
            skips=bad.skips,
        )

    def read(self, path: str, begin: int, end: int) -> Chunk | None:
        """See `GrowingReader`."""
        size = min(_BLOCK, end - begin)
        while True:
            data = np.frombuffer(read_bytes(path, begin, size), np.uint8)
            block = self._decoder.decode(data.ctypes.data, len(data))
            if block.consumed or block.broken:
                break
            if block.needed > end - begin:
                return None
            size = block.needed
        if not block.consumed:
            at = begin + block.broken_at
            raise DataLossError(f"[data.stream.tail] {path!r}, byte {at}: {block.broken}")
        for _, at, _, text, reason in block.bad:
            if not self._bad.skips:
                raise DataLossError(
                    f"[data.stream.tail] {path!r}, byte {begin + at}: {text}; fix the data, or "
                    'skip such records with on_error="skip"'
                )
            self._bad.counts[reason] = self._bad.counts.get(reason, 0) + 1
        origin = Origin(path, 0, begin)
        rows = to_block(self._wanted.rows(block), self._columns, origin, self._bad)
        return Chunk(rows if rows.num_rows else None, begin + block.consumed)


class WholeFileReader(GrowingReader):
    """Reads files that appear as a whole, by the reader of their format."""

    is_appended = False

    def __init__(self, columns: Columns, file_format: FileFormat, bad: BadSamples) -> None:
        self._columns, self._format, self._bad = columns, file_format, bad
        self._open: tuple[str, FileReader] | None = None

    def read(self, path: str, begin: int, end: int) -> Chunk | None:
        """See `GrowingReader`; `end` is not used, because parts of such files do not change."""
        if self._open is None or (self._open[0], self._open[1].position) != (path, begin):
            self._reopen(path, begin)
        assert self._open is not None
        reader = self._open[1]
        with naming(DataFile(None, path, 0)):
            raw = reader.read()
        if raw is None:
            self.close()
            return Chunk(None, None)
        block = to_block(raw.columns, self._columns, raw.origin, self._bad)
        return Chunk(block if block.num_rows else None, reader.position)

    def _reopen(self, path: str, begin: int) -> None:
        self.close()
        system = LocalFileSystem()
        file = DataFile(system, path, DataFile(system, path, 0).size_now())
        with naming(file):
            self._open = (
                path,
                self._format.open(file, begin, self._columns, self._bad, ahead=False),
            )

    def close(self) -> None:
        """See `GrowingReader`."""
        if self._open is not None:
            self._open[1].close()
            self._open = None
