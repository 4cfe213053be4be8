"""Open the stream of a URI, for a source that takes the URI in place of paths."""

from collections.abc import Sequence
from typing import Any

from monolith.data.columns import Columns
from monolith.data.files.file_source import FileFormat
from monolith.data.files.parquet import ArrowFormat, ParquetFormat
from monolith.data.files.stream_uri import TAIL, StreamUri
from monolith.data.files.text import JsonLinesFormat
from monolith.data.pipeline import Pipeline
from monolith.data.records.decoder import RecordFormat
from monolith.data.sources import OnError
from monolith.data.stream.tail import tail


def open_stream(
    text: str,
    file_format: FileFormat,
    columns: Columns | None,
    label: str | Sequence[str] | None,
    on_error: OnError,
) -> Pipeline:
    """Return the pipeline of a URI; see `from_files` for the other arguments.

    Raises:
        ValueError: The URI is wrong, or samples of a stream have no such format.
    """
    uri = StreamUri.of(text)
    options: dict[str, Any] = {"columns": columns, "label": label, "on_error": on_error}
    if isinstance(file_format, JsonLinesFormat) and file_format.types:
        options["types"] = file_format.types
    assert uri.scheme == TAIL
    return tail(uri.place, _format(file_format, text), **options, **uri.options)


def _format(file_format: FileFormat, text: str) -> str | RecordFormat:
    """Return a format as streams take it."""
    if isinstance(file_format, RecordFormat):
        return file_format
    for kind, name in (
        (JsonLinesFormat, "jsonl"),
        (ParquetFormat, "parquet"),
        (ArrowFormat, "arrow"),
    ):
        if isinstance(file_format, kind):
            return name
    raise ValueError(
        f"[stream] expected JSON lines, Arrow, Parquet or records, got {file_format.name} "
        f"({text!r}); read the stream by data.jsonl, data.arrow, data.parquet or data.examples"
    )
