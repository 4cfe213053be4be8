"""Files as they are: every column, unchanged, for a look and for conversion to another format."""

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from monolith.data.columns import Columns
from monolith.data.convert import BadSamples
from monolith.data.file_source import FileFormat, FileReader, Raw
from monolith.data.files import DataFile, Paths, find_files, naming
from monolith.data.parquet_format import ArrowFormat, ParquetFormat
from monolith.data.record_format import RecordFormat
from monolith.data.record_writer import RecordWriter
from monolith.data.text_format import CsvFormat, JsonLinesFormat, compression_of_text

__all__ = ["FORMAT_NAMES", "RawFiles", "format_name_of", "make_format", "write_rows"]

_RECORD_KINDS = ("example", "example_batch", "instance", "tf_example")
FORMAT_NAMES = ("arrow", "csv", *_RECORD_KINDS[:3], "jsonl", "parquet", "tf_example")
_SUFFIXES = (
    (".parquet", "parquet"),
    (".pq", "parquet"),
    (".arrow", "arrow"),
    (".arrows", "arrow"),
    (".feather", "arrow"),
    (".csv", "csv"),
    (".tsv", "csv"),
    (".jsonl", "jsonl"),
    (".ndjson", "jsonl"),
    (".tfrecord", "tf_example"),
    (".tfrecords", "tf_example"),
)
_PACKED = (".gz", ".bz2", ".zst", ".lz4", ".br")
_LIST_SEPARATOR = "|"


def format_name_of(path: str) -> str:
    """The format of a file by the end of its name, also before `.gz` and its like.

    Raises:
        ValueError: the name does not tell.

    Example:
        >>> format_name_of("logs/part-0.csv.gz")
        'csv'
    """
    name = path.lower()
    for end in _PACKED:
        name = name.removesuffix(end)
    for end, kind in _SUFFIXES:
        if name.endswith(end):
            return kind
    raise ValueError(
        f"[data] expected a file name that ends in one of {[end for end, _ in _SUFFIXES]}, got "
        f"{path!r}; name the format, one of {list(FORMAT_NAMES)}"
    )


def make_format(name: str, path: str = "") -> FileFormat:
    """How files of a format are read; `path` is one of them.

    Raises:
        ValueError: there is no such format.
    """
    if name == "parquet":
        return ParquetFormat()
    if name == "arrow":
        return ArrowFormat()
    if name == "jsonl":
        return JsonLinesFormat()
    if name == "csv":
        return CsvFormat("\t" if ".tsv" in path.lower() else ",")
    if name == "tf_example":
        return RecordFormat(name, framing=None)
    if name in _RECORD_KINDS:
        return RecordFormat(name)
    raise ValueError(f"[data] expected a format, one of {list(FORMAT_NAMES)}, got {name!r}")


class RawFiles:
    """The samples of files, with the columns that the files have; of records, strings as ids.

    Args:
        paths: as in `monolith.data.parquet`.
        format_name: of all files; unless given, the name of the first file tells.

    Raises:
        NotFoundError: a path matches no file.
        ValueError: the format is not known.
    """

    def __init__(self, paths: Paths, format_name: str | None = None) -> None:
        self.files = find_files(paths)
        first = self.files[0]
        self.format_name = format_name or format_name_of(first.path)
        self._format = make_format(self.format_name, first.path)
        with naming(first):
            self.schema = self._format.schema(first)
        self.num_bytes = 0  # read so far

    @property
    def total_bytes(self) -> int:
        """Of all files."""
        return sum(file.size for file in self.files)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        has_schema = self._format.has_schema
        columns = Columns(list(self.schema.names)) if has_schema else Columns.infer(self.schema)
        done = 0
        for file in self.files:
            with naming(file):
                reader = self._format.open(file, 0, columns, BadSamples())
            try:
                while (raw := self._read(file, reader)) is not None:
                    self.num_bytes = done + reader.num_bytes
                    yield raw.columns.select(self.schema.names).cast(self.schema)
            finally:
                reader.close()
            done += file.size
        self.num_bytes = done

    def _read(self, file: DataFile, reader: FileReader) -> Raw | None:
        with naming(file):
            return reader.read()


def write_rows(
    path: Path, format_name: str, schema: pa.Schema, rows: Iterator[pa.RecordBatch]
) -> int:
    """Write samples to a file, which appears when it is complete; the number of samples.

    Lists in CSV are joined by `|`.

    Raises:
        ValueError: there is no such format, or the name asks for a compression it cannot have.
    """
    writers: dict[str, Any] = {
        "parquet": _ParquetSink,
        "arrow": _ArrowSink,
        "csv": _CsvSink,
        "jsonl": _JsonSink,
        **{kind: functools.partial(_RecordSink, kind) for kind in _RECORD_KINDS},
    }
    if format_name not in writers:
        raise ValueError(f"[data] expected a format, one of {sorted(writers)}, got {format_name!r}")
    beside = path.with_name(f".{path.name}.tmp")
    packing = _packing(path, format_name)
    count = 0
    try:
        with pa.OSFile(str(beside), "wb") as file, packing(file) as out:
            sink = writers[format_name](out, schema)
            try:
                for batch in rows:
                    sink.write(batch)
                    count += batch.num_rows
            finally:
                sink.close()
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return count


def _packing(path: Path, format_name: str) -> Callable[[pa.NativeFile], Any]:
    """What compresses a file, by the end of its name.

    Raises:
        ValueError: files of the format are not compressed so.
    """
    name = compression_of_text(path.name)
    if name is None:
        return contextlib.nullcontext
    is_odd = format_name in _RECORD_KINDS and name not in ("gzip", "zstd")
    if is_odd or format_name in ("parquet", "arrow"):
        raise ValueError(
            f"[data] expected a name of a {format_name} file, got {path.name!r}; such files are "
            f"not compressed by {name}"
        )
    return lambda file: pa.CompressedOutputStream(file, name)


class _ParquetSink:
    def __init__(self, out: pa.NativeFile, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(out, schema)
        self.write, self.close = self._writer.write_batch, self._writer.close


class _ArrowSink:
    def __init__(self, out: pa.NativeFile, schema: pa.Schema) -> None:
        self._writer = pa.ipc.new_file(out, schema)
        self.write, self.close = self._writer.write_batch, self._writer.close


class _CsvSink:
    def __init__(self, out: pa.NativeFile, schema: pa.Schema) -> None:
        flat = [
            pa.field(each.name, pa.string()) if _is_list(each.type) else each for each in schema
        ]
        self._writer = pa.csv.CSVWriter(out, pa.schema(flat))
        self.close = self._writer.close

    def write(self, batch: pa.RecordBatch) -> None:
        arrays = {name: _joined(batch.column(name)) for name in batch.schema.names}
        self._writer.write_batch(pa.record_batch(arrays))


class _JsonSink:
    def __init__(self, out: pa.NativeFile, schema: pa.Schema) -> None:
        self._out = out

    def write(self, batch: pa.RecordBatch) -> None:
        lines = [json.dumps(row, default=_as_text) for row in batch.to_pylist()]
        self._out.write(("\n".join(lines) + "\n").encode())

    def close(self) -> None:
        """The file is the caller's."""


class _RecordSink:
    def __init__(self, kind: str, out: pa.NativeFile, schema: pa.Schema) -> None:
        self._writer, self._out = RecordWriter(kind), out

    def write(self, batch: pa.RecordBatch) -> None:
        records = self._writer.records(pa.Table.from_batches([batch]))
        self._out.write(self._writer.frames(records))

    def close(self) -> None:
        """The file is the caller's."""


def _as_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _joined(array: pa.Array) -> pa.Array:
    if not _is_list(array.type):
        return array
    return pc.binary_join(array.cast(pa.list_(pa.string())), _LIST_SEPARATOR)
