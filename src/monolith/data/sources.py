"""Sources of samples: each function returns a `Pipeline`."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from monolith.data.columns import Columns
from monolith.data.convert import BadSamples
from monolith.data.files.file_queue import QueueReader, QueueSource
from monolith.data.files.file_source import FileFormat, FileSource, schema_of
from monolith.data.files.listing import Paths, find_files
from monolith.data.files.parquet import ArrowFormat, ParquetFormat
from monolith.data.files.stream_uri import is_stream_uri
from monolith.data.files.text import CsvFormat, JsonLinesFormat
from monolith.data.memory import SyntheticSource, TableSource, as_table
from monolith.data.pipeline import Pipeline

OnError = Literal["raise", "skip"]


def from_files(
    paths: Paths | QueueReader,
    file_format: FileFormat,
    *,
    columns: Columns | None = None,
    label: str | Sequence[str] | None = None,
    on_error: OnError = "raise",
) -> Pipeline:
    """Read samples of files of one format.

    Args:
        paths: files, globs or folders, on local disks or any file system of fsspec; or the URI of a
            stream (`monolith.data.stream.stream_uri`); or `FileQueue.reader`, the files that a
            queue hands to a worker, which needs `columns`.
        file_format: format of the files.
        columns: columns to read; None chooses all columns by `Columns.infer`.
        label: name of the label column, or several names; only without `columns`.
        on_error: whether a sample that breaks a rule raises an error, or is skipped and counted.

    Raises:
        NotFoundError: a path matches no file.
        ValueError: a column is missing, files have no columns, or two arguments exclude each other.
    """
    bad = _bad(on_error)
    if isinstance(paths, QueueReader):
        if columns is None:
            raise ValueError("[data] expected columns for the files of a queue; give columns=")
        return Pipeline(QueueSource(paths, file_format, columns, bad), columns, bad)
    if is_stream_uri(paths):
        from monolith.data.stream.open_stream import open_stream  # late: streams are pipelines

        return open_stream(str(paths), file_format, columns, label, on_error)
    files, declared = find_files(paths), columns
    if columns is None or label is not None or file_format.has_schema:
        schema = schema_of(files, file_format)
        if not schema.names and (columns is None or label is None):
            others = f" and {len(files) - 1} more" if len(files) > 1 else ""
            raise ValueError(
                f"[data] expected at least one column, got none (file {files[0].path!r}{others}); "
                "leave out empty files"
            )
        columns = _columns(schema, columns, label)
    inferred = _inferred(declared, label, columns)
    return Pipeline(FileSource(files, file_format, columns, bad), columns, bad, inferred=inferred)


def _columns(
    schema: pa.Schema, columns: Columns | None, label: str | Sequence[str] | None
) -> Columns:
    if columns is None:
        return Columns.infer(schema, label=label)
    if label is not None:
        raise ValueError("[data] expected columns or label, got both; name labels in columns")
    columns.check("[data]", schema)
    return columns


def _inferred(
    declared: Columns | None, label: str | Sequence[str] | None, columns: Columns
) -> frozenset[str]:
    """Return the names of the columns that no argument names."""
    if declared is not None:
        return frozenset()
    named = set() if label is None else {column.name for column in columns.label_columns}
    return frozenset(columns.names()) - {columns.weight, columns.time} - named


def _bad(on_error: str) -> BadSamples:
    if on_error not in ("raise", "skip"):
        raise ValueError(f'[data] expected on_error "raise" or "skip", got {on_error!r}')
    return BadSamples(on_error == "skip")


def parquet(paths: Paths | QueueReader, **options: Any) -> Pipeline:
    """Read samples of Parquet files; options as in `from_files`."""
    return from_files(paths, ParquetFormat(), **options)


def arrow(paths: Paths | QueueReader, **options: Any) -> Pipeline:
    """Read samples of Arrow IPC files and streams; options as in `from_files`."""
    return from_files(paths, ArrowFormat(), **options)


def csv(
    paths: Paths | QueueReader,
    *,
    separator: str = ",",
    names: Sequence[str] | None = None,
    types: Mapping[str, pa.DataType | str] | None = None,
    lists: Mapping[str, str] | None = None,
    **options: Any,
) -> Pipeline:
    """Read samples of CSV files, also compressed ones (.gz, .bz2, .zst, .lz4, .br).

    Values with separators, quotes or line ends stand in quotes; `""` is the empty string, and an
    empty cell is a missing value. Lists are JSON arrays.

    Args:
        paths: files, as in `from_files`.
        separator: text between values, of one or several characters.
        names: names of all columns, for files without a header line.
        types: types of columns, such as `{"price": "float32"}`; other types are guessed from the
            begin of the first file.
        lists: separators of columns with lists in another form, such as `{"genres": "|"}`.
        options: options of `from_files`.
    """
    return from_files(paths, CsvFormat(separator, names, types or {}, lists or {}), **options)


def jsonl(
    paths: Paths | QueueReader,
    *,
    types: Mapping[str, pa.DataType | str] | None = None,
    **options: Any,
) -> Pipeline:
    """Read samples of files with a JSON object on each line, also compressed ones as in `csv`."""
    return from_files(paths, JsonLinesFormat(types or {}), **options)


def arrow_table(
    frame: Any,
    *,
    columns: Columns | None = None,
    label: str | Sequence[str] | None = None,
    on_error: OnError = "raise",
) -> Pipeline:
    """Read samples of an Arrow table, a pandas or polars frame, or a dict of columns, in memory."""
    table, bad, declared = as_table(frame), _bad(on_error), columns
    columns = _columns(table.schema, columns, label)
    inferred = _inferred(declared, label, columns)
    return Pipeline(TableSource(table, columns, bad), columns, bad, inferred=inferred)


def synthetic(
    num_samples: int,
    *,
    num_features: int = 26,
    num_dense: int = 13,
    vocabulary: int = 1_000_000,
    ids_per_feature: int = 1,
    seed: int = 0,
) -> Pipeline:
    """Generate synthetic samples with a learnable label, equal for equal seeds on every machine.

    Example:
        >>> batch = next(iter(synthetic(100, num_features=2, num_dense=1).batch(4)))
        >>> sorted(batch.features), sorted(batch.dense), len(batch)
        (['feature_0', 'feature_1'], ['dense_0'], 4)
    """
    source = SyntheticSource(
        num_samples, num_features, num_dense, vocabulary, ids_per_feature, seed
    )
    return Pipeline(source, source.columns(), BadSamples())
