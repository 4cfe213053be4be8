"""Parquet and Arrow IPC files; positions are numbers of samples in the file."""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq

from monolith.data.columns import Columns
from monolith.data.convert import BadSamples, Origin
from monolith.data.file_source import Raw
from monolith.data.files import DataFile

__all__ = ["ArrowFormat", "ParquetFormat"]

_BLOCK = 65_536  # samples


class ParquetFormat:
    """Reads row group after row group."""

    name = "parquet"
    has_schema = True

    def schema(self, file: DataFile) -> pa.Schema:
        """See `FileFormat`."""
        with file.open() as opened:
            return pq.read_schema(opened)

    def open(
        self, file: DataFile, position: int, columns: Columns, bad: BadSamples
    ) -> "_PartReader":
        """See `FileFormat`."""
        opened = pq.ParquetFile(file.open())
        columns.check(f"[data] {file.path!r}", opened.schema_arrow)
        names = [column for _, column in columns.sources()]
        meta = opened.metadata
        begins = [0, *accumulate(meta.row_group(i).num_rows for i in range(meta.num_row_groups))]

        def parts(first: int) -> Iterator[pa.RecordBatch]:
            for group in range(bisect_right(begins, first) - 1, len(begins) - 1):
                skip = max(0, first - begins[group])
                for rows in opened.iter_batches(
                    _BLOCK, row_groups=[group], columns=names, use_threads=False
                ):
                    if skip < rows.num_rows:
                        yield rows.slice(skip)
                    skip = max(0, skip - rows.num_rows)

        return _PartReader(file, opened, parts(position), position, begins[-1])


class ArrowFormat:
    """Reads the record batches of a file, or of a stream that was written to one."""

    name = "arrow"
    has_schema = True

    def schema(self, file: DataFile) -> pa.Schema:
        """See `FileFormat`."""
        with file.open() as opened:
            return _open_ipc(opened).schema

    def open(
        self, file: DataFile, position: int, columns: Columns, bad: BadSamples
    ) -> "_PartReader":
        """See `FileFormat`."""
        opened = file.open()
        reader = _open_ipc(opened)
        columns.check(f"[data] {file.path!r}", reader.schema)
        names = [column for _, column in columns.sources()]

        def parts(skip: int) -> Iterator[pa.RecordBatch]:
            for batch in _ipc_batches(reader):
                rows = batch.select(list(dict.fromkeys(names)))
                if skip < rows.num_rows:
                    rows.validate(full=True)  # the file may be anybody's
                    for first in range(skip, rows.num_rows, _BLOCK):
                        yield rows.slice(first, _BLOCK)
                skip = max(0, skip - rows.num_rows)

        return _PartReader(file, opened, parts(position), position, 0)


def _open_ipc(
    opened: pa.NativeFile,
) -> "pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader":
    is_file = opened.read(6) == b"ARROW1"
    opened.seek(0)
    return pa.ipc.open_file(opened) if is_file else pa.ipc.open_stream(opened)


def _ipc_batches(reader: "pa.ipc.RecordBatchFileReader") -> Iterator[pa.RecordBatch]:
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
    else:
        yield from reader


class _PartReader:
    """Reads parts of a file that come one after another."""

    def __init__(
        self,
        file: DataFile,
        opened: "pa.NativeFile | pq.ParquetFile",
        parts: Iterator[pa.RecordBatch],
        position: int,
        num_rows: int,
    ) -> None:
        self._file, self._opened, self._parts = file, opened, parts
        self._num_rows = num_rows  # 0: not known
        self.position = position

    @property
    def num_bytes(self) -> int:
        """See `FileReader`."""
        if self._num_rows:
            return self._file.size * self.position // self._num_rows
        return min(self._file.size, int(self._opened.tell()))

    def read(self) -> Raw | None:
        """See `FileReader`."""
        rows = next(self._parts, None)
        if rows is None:
            return None
        origin = Origin(self._file.path, self.position)
        self.position += rows.num_rows
        return Raw(rows, origin)

    def close(self) -> None:
        """See `FileReader`."""
        self._opened.close()
