"""Parquet and Arrow IPC files; positions are numbers of samples in the file.

Both formats divide a file into parts, each of which can be read alone: the row groups of a Parquet
file, and the record batches of an Arrow file. A stream of Arrow has no list of its parts.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.parquet as pq

from monolith.data.columns import Columns
from monolith.data.convert import BadSamples, Origin
from monolith.data.files.file_source import FileFormat, Raw
from monolith.data.files.listing import DataFile
from monolith.data.prefetch import PartsAhead

_BLOCK = 65_536  # samples
_PREVIEW_BUFFER = 1 << 16  # bytes of a column that are read at once, if few samples are needed
_Part = tuple[pa.RecordBatch, int]  # rows, and the file position after them


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows of whole parts of a file.

    Args:
        first: number of the first row.
        end: number of the row after the last one.
        part: number of the part that begins with the first row.
    """

    first: int
    end: int
    part: int


@runtime_checkable
class PartsFormat(Protocol):
    """Format of files that are read in parts."""

    def rows_of_parts(self, file: DataFile) -> list[int]:
        """Return the number of rows of each part of a file; no numbers for a file without parts."""

    def of_rows(self, rows: RowRange) -> "FileFormat":
        """Return the format whose readers read, and decode, only these rows of a file."""


class ParquetFormat:
    """Reads one row group after another.

    Args:
        preview: number of samples that the caller needs of the begin of a file. A reader then reads
            and decodes little more than these; None reads column chunks as a whole, which is faster
            for all samples.
        rows: rows to read; None reads all rows.
    """

    name = "parquet"
    has_schema = True

    def __init__(self, preview: int | None = None, rows: RowRange | None = None) -> None:
        self._buffer_size = 0 if preview is None else _PREVIEW_BUFFER
        self._preview, self._rows = preview, rows

    def rows_of_parts(self, file: DataFile) -> list[int]:
        """See `PartsFormat`."""
        with file.open() as source:
            meta = pq.read_metadata(source)
        return [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]

    def of_rows(self, rows: RowRange) -> "ParquetFormat":
        """See `PartsFormat`."""
        return ParquetFormat(self._preview, rows)

    def schema(self, file: DataFile) -> pa.Schema:
        """See `FileFormat`."""
        with file.open() as source:
            return pq.read_schema(source)

    def open(
        self, file: DataFile, position: int, columns: Columns, bad: BadSamples, *, ahead: bool
    ) -> "_PartReader":
        """See `FileFormat`."""
        raw = file.open()  # `ParquetFile` does not close it
        source = pq.ParquetFile(raw, buffer_size=self._buffer_size)
        columns.check(f"[data] {file.path!r}", source.schema_arrow)
        names = [column for _, column in columns.sources()]
        meta = source.metadata
        size = _BLOCK if self._preview is None else min(_BLOCK, self._preview)
        begins = [0, *accumulate(meta.row_group(i).num_rows for i in range(meta.num_row_groups))]
        wanted = self._rows or RowRange(0, int(begins[-1]), 0)
        position = max(position, wanted.first)

        def num_bytes(sample: int) -> int:
            return _share_of(file.size, sample, wanted)

        def parts(first: int) -> Iterator[_Part]:
            for group in range(bisect_right(begins, first) - 1, len(begins) - 1):
                at = begins[group]
                if at >= wanted.end:
                    return
                for rows in source.iter_batches(
                    size, row_groups=[group], columns=names, use_threads=ahead
                ):
                    skip, at = max(0, first - at), at + rows.num_rows
                    if skip < rows.num_rows:
                        yield rows.slice(skip), num_bytes(at)

        batches = PartsAhead(parts(position)) if ahead else parts(position)
        return _PartReader(file, raw, batches, position, num_bytes(position))


class ArrowFormat:
    """Reads the record batches of a file, or of a file with a stream.

    Args:
        rows: rows of a file to read; None reads all rows.
    """

    name = "arrow"
    has_schema = True

    def __init__(self, rows: RowRange | None = None) -> None:
        self._rows = rows

    def rows_of_parts(self, file: DataFile) -> list[int]:
        """See `PartsFormat`. Reads one column, because a file does not list its numbers of rows."""
        with file.open() as source:
            reader = _open_ipc(source)
            if isinstance(reader, pa.ipc.RecordBatchStreamReader) or not reader.schema.names:
                return []
            widths = [_num_bits(field.type) for field in reader.schema]
            reader = _open_ipc(source, [widths.index(min(widths))])
            return [rows.num_rows for rows in _ipc_batches(reader, 0)]

    def of_rows(self, rows: RowRange) -> "ArrowFormat":
        """See `PartsFormat`."""
        return ArrowFormat(rows)

    def schema(self, file: DataFile) -> pa.Schema:
        """See `FileFormat`."""
        with file.open() as source:
            return _open_ipc(source).schema

    def open(
        self, file: DataFile, position: int, columns: Columns, bad: BadSamples, *, ahead: bool
    ) -> "_PartReader":
        """See `FileFormat`."""
        source = file.open()
        schema = _open_ipc(source).schema
        columns.check(f"[data] {file.path!r}", schema)
        names = {column for _, column in columns.sources()}
        reader = _open_ipc(source, [i for i, name in enumerate(schema.names) if name in names])

        wanted = self._rows
        begin, part = (0, 0) if wanted is None else (wanted.first, wanted.part)
        position = max(position, begin)

        def num_bytes(sample: int) -> int:
            if wanted is None:
                return min(file.size, int(source.tell()))
            return _share_of(file.size, sample, wanted)

        read_by_now = num_bytes(position)

        def parts(first: int) -> Iterator[_Part]:
            at = begin
            for rows in _ipc_batches(reader, part):
                if first < at + rows.num_rows:
                    rows.validate(full=True)  # the file is not trusted
                    for skip in range(max(0, first - at), rows.num_rows, _BLOCK):
                        block = rows.slice(skip, _BLOCK)
                        yield block, num_bytes(at + skip + block.num_rows)
                at += rows.num_rows
                if wanted is not None and at >= wanted.end:
                    return

        batches = PartsAhead(parts(position)) if ahead else parts(position)
        return _PartReader(file, source, batches, position, read_by_now)


def _share_of(size: int, sample: int, rows: RowRange) -> int:
    """Return the bytes of a file that are read before a sample, if the rows are all of the file."""
    return size * (sample - rows.first) // max(1, rows.end - rows.first)


def _num_bits(kind: pa.DataType) -> int:
    """Return the size of a value in bits; lists and strings count as very large."""
    try:
        return int(kind.bit_width)
    except ValueError:
        return 1 << 20


def _open_ipc(
    source: pa.NativeFile, fields: list[int] | None = None
) -> "pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader":
    """Open a file or a stream from its begin; `fields` are the numbers of the columns to decode."""
    source.seek(0)
    is_file = source.read(6) == b"ARROW1"
    source.seek(0)
    options = pa.ipc.IpcReadOptions(included_fields=fields)
    opened = pa.ipc.open_file if is_file else pa.ipc.open_stream
    return opened(source, options=options)


def _ipc_batches(reader: "pa.ipc.RecordBatchFileReader", part: int) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a file from a number on, or those of a stream."""
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        yield from (reader.get_batch(i) for i in range(part, reader.num_record_batches))
    else:
        yield from reader


class _PartReader:
    """Reads parts of a file in order."""

    def __init__(
        self,
        file: DataFile,
        source: pa.NativeFile,
        parts: Iterator[_Part],
        position: int,
        num_bytes: int,
    ) -> None:
        self._file, self._opened, self._parts = file, source, parts
        self.position, self.num_bytes = position, num_bytes

    def read(self) -> Raw | None:
        """See `FileReader`."""
        part = next(self._parts, None)
        if part is None:
            return None
        rows, self.num_bytes = part
        origin = Origin(self._file.path, self.position)
        self.position += rows.num_rows
        return Raw(rows, origin)

    def close(self) -> None:
        """See `FileReader`."""
        if isinstance(self._parts, PartsAhead):
            self._parts.close()
        self._opened.close()
