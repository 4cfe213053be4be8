"""Files without conversion: for printing, and for conversion between formats."""

import contextlib
import functools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from monolith.data.columns import Columns, is_list
from monolith.data.convert import BadSamples
from monolith.data.files.file_source import FileFormat, FileReader, Raw, schema_of
from monolith.data.files.listing import DataFile, Paths, find_files, naming
from monolith.data.files.parquet import ArrowFormat, ParquetFormat
from monolith.data.files.text import CsvFormat, JsonLinesFormat
from monolith.data.files.text_lines import compression_of
from monolith.data.records.decoder import RecordFormat
from monolith.data.records.record_writer import RecordWriter

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


def format_name_of(path: str) -> str:
    """Return the format of a file by the end of its name, ignoring `.gz` and other compressions.

    Raises:
        ValueError: the name has no known end.

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


def make_format(name: str, path: str = "", preview: int | None = None) -> FileFormat:
    """Return the reader of a format.

    Args:
        name: name of the format.
        path: path of one of the files.
        preview: number of samples that are needed of the begin of a file; None means all.

    Raises:
        ValueError: the format is unknown.
    """
    if name == "parquet":
        return ParquetFormat(preview)
    if name == "arrow":
        return ArrowFormat()
    if name == "jsonl":
        return JsonLinesFormat()
    if name == "csv":
        return CsvFormat(_separator_of(path))
    if name == "tf_example":
        return RecordFormat(name, framing=None)
    if name in _RECORD_KINDS:
        return RecordFormat(name)
    raise ValueError(f"[data] expected a format, one of {list(FORMAT_NAMES)}, got {name!r}")


def _separator_of(path: str) -> str:
    return "\t" if ".tsv" in path.lower() else ","


class RawFiles:
    """Samples of files without conversion; strings in records stay strings.

    Args:
        paths: files, as in `monolith.data.parquet`.
        format_name: format of all files; None takes the format from the name of the first file.
        preview: number of samples that are needed of the begin of a file; None means all.

    Attributes:
        schema: columns to read; `select` sets them.
        num_columns: number of columns of the files.
        num_bytes: number of bytes that were read.

    Raises:
        NotFoundError: a path matches no file.
        ValueError: the format is unknown.
    """

    def __init__(
        self, paths: Paths, format_name: str | None = None, preview: int | None = None
    ) -> None:
        self.files = find_files(paths)
        first = self.files[0]
        self.format_name = format_name or format_name_of(first.path)
        self._format = make_format(self.format_name, first.path, preview)
        self.schema = schema_of(self.files, self._format)
        self.num_columns = len(self.schema.names)
        self.num_bytes = 0

    def select(self, names: Sequence[str]) -> None:
        """Read only the named columns, in this order.

        Raises:
            ValueError: the files do not have a column.
        """
        Columns(list(names)).check("[data]", self.schema)
        self.schema = pa.schema([self.schema.field(name) for name in names])

    @property
    def total_bytes(self) -> int:
        """Size of all files in bytes."""
        return sum(file.size for file in self.files)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        has_schema = self._format.has_schema
        columns = Columns(list(self.schema.names)) if has_schema else Columns.infer(self.schema)
        position = 0
        for file in self.files:
            with naming(file):
                reader = self._format.open(file, 0, columns, BadSamples(), ahead=False)
            try:
                while (raw := self._read(file, reader)) is not None:
                    self.num_bytes = position + reader.num_bytes
                    yield self._cast(file, raw.columns.select(self.schema.names))
            finally:
                reader.close()
            position += file.size
        self.num_bytes = position

    def _cast(self, file: DataFile, rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.schema == self.schema:
            return rows
        with naming(file):
            return rows.cast(self.schema)

    def _read(self, file: DataFile, reader: FileReader) -> Raw | None:
        with naming(file):
            return reader.read()


def write_rows(
    path: Path, format_name: str, schema: pa.Schema, rows: Iterator[pa.RecordBatch]
) -> int:
    """Write samples to a file that appears when it is complete; return the number of samples.

    Lists in CSV are JSON arrays; NaN and infinite numbers become null in JSON. Text is compressed
    if the name ends in `.gz` or another known compression.

    Raises:
        ValueError: the format is unknown, or has no such compression.
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
    packing = _packing(path, format_name)
    temporary = path.with_name(f".{path.name}.tmp")
    count = 0
    try:
        with contextlib.ExitStack() as stack:
            out = stack.enter_context(pa.OSFile(str(temporary), "wb"))
            if packing is not None:
                out = stack.enter_context(pa.CompressedOutputStream(out, packing))
            sink = writers[format_name](out, schema, path.name)
            try:
                for batch in rows:
                    sink.write(batch)
                    count += batch.num_rows
            finally:
                sink.close()
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _packing(path: Path, format_name: str) -> str | None:
    """Return the compression of a file by the end of its name.

    Raises:
        ValueError: the format does not support the compression.
    """
    name = compression_of(path.name)
    is_odd = format_name in _RECORD_KINDS and name not in ("gzip", "zstd")
    if name is not None and (is_odd or format_name in ("parquet", "arrow")):
        raise ValueError(
            f"[data] expected a name of a {format_name} file, got {path.name!r}; such files are "
            f"not compressed by {name}"
        )
    return name


class _ParquetSink:
    def __init__(self, out: pa.NativeFile, schema: pa.Schema, name: str) -> None:
        self._writer = pq.ParquetWriter(out, schema)
        self.write, self.close = self._writer.write_batch, self._writer.close


class _ArrowSink:
    def __init__(self, out: pa.NativeFile, schema: pa.Schema, name: str) -> None:
        self._writer = pa.ipc.new_file(out, schema)
        self.write, self.close = self._writer.write_batch, self._writer.close


class _CsvSink:
    """Writes strings in quotes, so that an empty string differs from a missing one."""

    def __init__(self, out: pa.NativeFile, schema: pa.Schema, name: str) -> None:
        self._out, self._separator = out, _separator_of(name)
        header = _quote(pa.array(schema.names, pa.string())).to_pylist()
        out.write((self._separator.join(header) + "\n").encode())

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_columns == 1 and batch.column(0).null_count:
            raise ValueError(
                f"[data] expected values in {batch.schema.names[0]!r}, the only column of a CSV "
                "file, got a missing one, which an empty line cannot tell; write another format"
            )
        cells = [pc.fill_null(_cells(array), "") for array in batch.columns]
        lines = pc.binary_join_element_wise(*cells, self._separator)
        self._out.write("".join(f"{line}\n" for line in lines.to_pylist()).encode())

    def close(self) -> None:
        """Do nothing: the caller closes the file."""


def _cells(array: pa.Array) -> pa.Array:
    """Return the text of each value; None for a missing value."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if is_list(array.type):
        rows = (
            None if row is None else json.dumps(finite(row), default=_json_text, allow_nan=False)
            for row in array.to_pylist()
        )
        return _quote(pa.array(rows, pa.string()))
    text = array.cast(pa.string())
    if pa.types.is_floating(array.type):  # a reader would take "1" for an integer
        is_whole = pc.match_substring_regex(text, "^-?[0-9]+$")
        return pc.if_else(is_whole, pc.binary_join_element_wise(text, ".0", ""), text)
    is_number = pa.types.is_integer(array.type) or pa.types.is_boolean(array.type)
    return text if is_number else _quote(text)


def _quote(text: pa.Array) -> pa.Array:
    inside = pc.replace_substring(text, '"', '""')
    return pc.binary_join_element_wise('"', inside, '"', "")


class _JsonSink:
    def __init__(self, out: pa.NativeFile, schema: pa.Schema, name: str) -> None:
        self._out = out

    def write(self, batch: pa.RecordBatch) -> None:
        lines = [
            json.dumps(finite(row), default=_json_text, allow_nan=False)
            for row in batch.to_pylist()
        ]
        self._out.write(("\n".join(lines) + "\n").encode())

    def close(self) -> None:
        """Do nothing: the caller closes the file."""


class _RecordSink:
    def __init__(self, kind: str, out: pa.NativeFile, schema: pa.Schema, name: str) -> None:
        self._writer, self._out = RecordWriter(kind), out

    def write(self, batch: pa.RecordBatch) -> None:
        records = self._writer.records(pa.Table.from_batches([batch]))
        self._out.write(self._writer.frames(records))

    def close(self) -> None:
        """Do nothing: the caller closes the file."""


def finite(value: Any) -> Any:
    """Return a value whose NaN and infinite numbers are None, because JSON cannot express them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value


def _json_text(value: Any) -> str:
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"[data] expected bytes that are UTF-8, for JSON, got {value[:20]!r}; write parquet or "
            "arrow"
        ) from error
