"""Parquet and Arrow IPC files; positions are numbers of samples in the file."""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq

from monolith.data.columns import Columns
from monolith.data.convert import BadSamples, Origin
from monolith.data.files.file_source import Raw
from monolith.data.files.listing import DataFile
from monolith.data.prefetch import PartsAhead

_BLOCK = 65_536  # samples
_PREVIEW_BUFFER = 1 << 16  # bytes of a column that are read at once, if few samples are needed
_Part = tuple[pa.RecordBatch, int]  # rows, and the file position after them


class ParquetFormat:
    """Reads one row group after another.

    Args:
        preview: number of samples that the caller needs of the begin of a file. A reader then reads
            and decodes little more than these; None reads column chunks as a whole, which is faster
            for all samples.
    """

    name = "parquet"
    has_schema = True

    def __init__(self, preview: int | None = None) -> None:
        self._buffer_size = 0 if preview is None else _PREVIEW_BUFFER
        self._preview = preview

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

        def num_bytes(sample: int) -> int:
            return file.size * sample // max(1, int(begins[-1]))

        def parts(first: int) -> Iterator[_Part]:
            for group in range(bisect_right(begins, first) - 1, len(begins) - 1):
                at = begins[group]
                for rows in source.iter_batches(
                    size, row_groups=[group], columns=names, use_threads=ahead
                ):
                    skip, at = max(0, first - at), at + rows.num_rows
                    if skip < rows.num_rows:
                        yield rows.slice(skip), num_bytes(at)

        batches = PartsAhead(parts(position)) if ahead else parts(position)
        return _PartReader(file, raw, batches, position, num_bytes(position))


class ArrowFormat:
    """Reads the record batches of a file, or of a file with a stream."""

    name = "arrow"
    has_schema = True

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

        def num_bytes() -> int:
            return min(file.size, int(source.tell()))

        read_by_now = num_bytes()

        def parts(skip: int) -> Iterator[_Part]:
            for rows in _ipc_batches(reader):
                if skip < rows.num_rows:
                    rows.validate(full=True)  # the file is not trusted
                    for first in range(skip, rows.num_rows, _BLOCK):
                        yield rows.slice(first, _BLOCK), num_bytes()
                skip = max(0, skip - rows.num_rows)

        batches = PartsAhead(parts(position)) if ahead else parts(position)
        return _PartReader(file, source, batches, position, read_by_now)


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


def _ipc_batches(reader: "pa.ipc.RecordBatchFileReader") -> Iterator[pa.RecordBatch]:
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
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
