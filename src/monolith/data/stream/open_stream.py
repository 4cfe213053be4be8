"""Open the stream of a URI, for a source that takes the URI in place of paths."""

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from monolith.data.columns import Columns
from monolith.data.files.file_source import FileFormat
from monolith.data.files.parquet import ArrowFormat, ParquetFormat
from monolith.data.files.stream_uri import TAIL, StreamUri
from monolith.data.files.text import JsonLinesFormat
from monolith.data.pipeline import Pipeline
from monolith.data.records.decoder import RecordFormat
from monolith.data.sources import OnError
from monolith.data.stream.kafka import kafka
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
        OSError: The file of settings cannot be read.
    """
    uri = StreamUri.of(text)
    options: dict[str, Any] = {"on_error": on_error}
    if isinstance(file_format, JsonLinesFormat) and file_format.types:
        options["types"] = file_format.types
    if uri.scheme == TAIL:
        options |= {"columns": columns, "label": label, **uri.options}
        return tail(uri.place, _file_format(file_format, text), **options)
    if columns is None:
        raise ValueError(
            f"[stream] expected columns for messages of {text!r}, got none: there is no file to "
            "choose them by; name them where the source is made, columns=Columns(...)"
        )
    message_format = uri.options.get("format") or _message_format(file_format, text)
    return kafka(uri.place, uri.topics, message_format, columns=columns, **options, **_kafka(uri))


def _file_format(file_format: FileFormat, text: str) -> str | RecordFormat:
    """Return a format as `tail` takes it."""
    if isinstance(file_format, RecordFormat):
        return file_format
    kinds = {JsonLinesFormat: "jsonl", ParquetFormat: "parquet", ArrowFormat: "arrow"}
    if type(file_format) not in kinds:
        raise ValueError(
            f"[stream] expected JSON lines, Arrow, Parquet or records, got {file_format.name} "
            f"({text!r}); read the stream by data.jsonl, data.arrow, data.parquet or data.examples"
        )
    return kinds[type(file_format)]


def _message_format(file_format: FileFormat, text: str) -> str:
    """Return a format as `kafka` takes it: a message has a bare record, JSON or Arrow."""
    if isinstance(file_format, RecordFormat):
        return file_format.kind
    kinds = {JsonLinesFormat: "json", ArrowFormat: "arrow"}
    if type(file_format) not in kinds:
        raise ValueError(
            f"[stream] expected JSON, Arrow or records in messages, got {file_format.name} "
            f"({text!r}); read the topic by data.jsonl, data.arrow or data.examples, or name the "
            "format of its messages in the URI: ?format=json"
        )
    return kinds[type(file_format)]


def _kafka(uri: StreamUri) -> dict[str, Any]:
    """Return the options of a URI as arguments of `kafka`."""
    options: dict[str, Any] = {
        name: uri.options[name] for name in ("group", "event_time") if name in uri.options
    }
    if "start" in uri.options:
        options["start"] = start_of(uri.options["start"])
    if "lateness" in uri.options:
        options["lateness_seconds"] = _number("lateness", uri.options["lateness"])
    if "settings" in uri.options:
        options["settings"] = _settings(uri.options["settings"])
    return options


def start_of(text: str) -> str | float:
    """Return a start: "earliest", "latest", or seconds since 1970.

    Raises:
        ValueError: The text is no start.

    Example:
        >>> start_of("latest"), start_of("2026-11-19T10:00"), start_of("1700000000")
        ('latest', 1795082400.0, 1700000000.0)
    """
    if text in ("earliest", "latest"):
        return text
    try:
        return float(text)
    except ValueError:
        pass
    try:
        time = datetime.fromisoformat(text.removesuffix("Z"))
    except ValueError as error:
        raise ValueError(
            "[stream] expected a start of earliest, latest, seconds since 1970 or a time in UTC "
            f"such as 2026-11-19T10:00, got {text!r}"
        ) from error
    return (time if time.tzinfo else time.replace(tzinfo=timezone.utc)).timestamp()


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ValueError(f"[stream] expected {name} as seconds of at least 0, got {text!r}")
    return number


def _settings(path: str) -> dict[str, str]:
    """Return the settings of a file, `name=value` on each line; their values are never shown."""
    with open(path, encoding="utf-8") as file:
        lines = [line.strip() for line in file]
    settings = {}
    for number, line in enumerate(lines, 1):
        name, separator, value = line.partition("=")
        if line and not line.startswith("#"):
            if not separator:
                raise ValueError(
                    f"[stream] expected name=value in line {number} of {path}, got no '='"
                )
            settings[name.strip()] = value.strip()
    return settings
