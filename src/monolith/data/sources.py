"""Where samples come from: each function makes a `Pipeline`."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from monolith.data.columns import Columns
from monolith.data.convert import BadSamples
from monolith.data.files.file_queue import QueueReader, QueueSource
from monolith.data.files.file_source import FileFormat, FileSource, schema_of
from monolith.data.files.listing import Paths, find_files
from monolith.data.files.parquet import ArrowFormat, ParquetFormat
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
    """Samples of files of one format.

    Args:
        paths: files, globs or directories, on local disks or wherever fsspec reaches; or
            `FileQueue.reader`, the files that a worker gets of a queue, which needs `columns`.
        file_format: how they are read.
        columns: what to take; unless given, everything, as `Columns.infer` says.
        label: column of the label, or of several; only without `columns`.
        on_error: whether a sample that breaks a rule is an error, or is left out and counted.

    Raises:
        NotFoundError: a path matches no file.
        ValueError: a column is missing, files have none, or the arguments exclude each other.
    """
    bad = _bad(on_error)
    if isinstance(paths, QueueReader):
        if columns is None:
            raise ValueError("[data] expected columns for the files of a queue; give columns=")
        return Pipeline(QueueSource(paths, file_format, columns, bad), columns, bad)
    files = find_files(paths)
    if columns is None or label is not None or file_format.has_schema:
        schema = schema_of(files, file_format)
        if not schema.names and (columns is None or label is None):
            others = f" and {len(files) - 1} more" if len(files) > 1 else ""
            raise ValueError(
                f"[data] expected at least one column, got none (file {files[0].path!r}{others}); "
                "leave out empty files"
            )
        columns = _columns(schema, columns, label)
    return Pipeline(FileSource(files, file_format, columns, bad), columns, bad)


def _columns(
    schema: pa.Schema, columns: Columns | None, label: str | Sequence[str] | None
) -> Columns:
    if columns is None:
        return Columns.infer(schema, label=label)
    if label is not None:
        raise ValueError("[data] expected columns or label, got both; name labels in columns")
    columns.check("[data]", schema)
    return columns


def _bad(on_error: str) -> BadSamples:
    if on_error not in ("raise", "skip"):
        raise ValueError(f'[data] expected on_error "raise" or "skip", got {on_error!r}')
    return BadSamples(on_error == "skip")


def parquet(paths: Paths | QueueReader, **options: Any) -> Pipeline:
    """Samples of Parquet files; options as in `from_files`."""
    return from_files(paths, ParquetFormat(), **options)


def arrow(paths: Paths | QueueReader, **options: Any) -> Pipeline:
    """Samples of Arrow IPC files, also of streams; options as in `from_files`."""
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
    """Samples of CSV files, also compressed ones (.gz, .bz2, .zst, .lz4, .br).

    Values with separators, quotes or ends of lines stand in quotes; `""` is the empty string,
    nothing a missing value. Lists are JSON arrays.

    Args:
        paths: as in `from_files`, like the other options.
        separator: between values; of one or several characters.
        names: of all columns, where files have no line of names.
        types: of columns, such as `{"price": "float32"}`; others are guessed from the begin of the
            first file.
        lists: separators of columns whose lists have another form, such as `{"genres": "|"}`.
        options: of `from_files`.
    """
    return from_files(paths, CsvFormat(separator, names, types or {}, lists or {}), **options)


def jsonl(
    paths: Paths | QueueReader,
    *,
    types: Mapping[str, pa.DataType | str] | None = None,
    **options: Any,
) -> Pipeline:
    """Samples of files with a JSON object on each line, also compressed ones, as `csv`."""
    return from_files(paths, JsonLinesFormat(types or {}), **options)


def arrow_table(
    frame: Any,
    *,
    columns: Columns | None = None,
    label: str | Sequence[str] | None = None,
    on_error: OnError = "raise",
) -> Pipeline:
    """Samples of an Arrow table, a pandas or polars frame, or a dict of columns, in memory."""
    table, bad = as_table(frame), _bad(on_error)
    columns = _columns(table.schema, columns, label)
    return Pipeline(TableSource(table, columns, bad), columns, bad)


def synthetic(
    num_samples: int,
    *,
    num_features: int = 26,
    num_dense: int = 13,
    vocabulary: int = 1_000_000,
    ids_per_feature: int = 1,
    seed: int = 0,
) -> Pipeline:
    """Made-up samples with a label that can be learned; the same for a seed on every machine.

    Example:
        >>> batch = next(iter(synthetic(100, num_features=2, num_dense=1).batch(4)))
        >>> sorted(batch.features), sorted(batch.dense), len(batch)
        (['feature_0', 'feature_1'], ['dense_0'], 4)
    """
    source = SyntheticSource(
        num_samples, num_features, num_dense, vocabulary, ids_per_feature, seed
    )
    return Pipeline(source, source.columns(), BadSamples())
