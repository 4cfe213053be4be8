"""Formats of the messages of a stream: JSON, records, and Arrow."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from monolith.data.columns import Columns
from monolith.data.convert import BadSamples, Origin, to_block
from monolith.data.records.decoder import RecordFormat
from monolith.data.records.record_columns import RECORD_TYPES, RecordColumns
from monolith.data.stages import concat
from monolith.data.stream.json_rows import JsonRows
from monolith.errors import DataLossError

Counts = npt.NDArray[np.int64]
Types = Mapping[str, pa.DataType | str]

NOT_READABLE = (pa.ArrowInvalid, DataLossError, TypeError, ValueError)
"""Errors of a message that cannot be read or converted."""

_ONE_EACH = ("example", "instance", "tf_example")


class MessageReader(ABC):
    """Reads the samples of messages. Not thread-safe.

    Args:
        columns: columns to read.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    @abstractmethod
    def read(self, values: Sequence[bytes], origin: Origin) -> tuple[pa.RecordBatch, Counts]:
        """Return the checked samples of messages, and how many each message has.

        Raises:
            Exception: a message is bad: one of `NOT_READABLE`.
        """

    def read_one(self, value: bytes, origin: Origin, bad: BadSamples) -> list[pa.RecordBatch]:
        """Return the checked samples of one message; bad samples of it are skipped and counted.

        Raises:
            Exception: the message cannot be read at all.
        """
        return [to_block(self.rows(value), self._columns, origin, bad)]

    def rows(self, value: bytes) -> pa.RecordBatch:
        """Return the samples of a message as the message has them."""
        raise NotImplementedError


class JsonReader(MessageReader):
    """Reads messages with an object, several lines with an object each, or an array of objects."""

    def __init__(self, columns: Columns, types: Types) -> None:
        super().__init__(columns)
        self._rows = JsonRows(columns, types)

    def read(self, values: Sequence[bytes], origin: Origin) -> tuple[pa.RecordBatch, Counts]:
        """See `MessageReader`."""
        texts = [_lines_of(value) for value in values]
        counts = np.array([text.count(b"\n") + 1 for text in texts], np.int64)
        blocks = self._rows.blocks(b"\n".join(texts), origin, BadSamples())
        if not blocks or blocks[0].num_rows != counts.sum():
            raise DataLossError(f"{origin} expected an object on each line of a message")
        return blocks[0], counts

    def read_one(self, value: bytes, origin: Origin, bad: BadSamples) -> list[pa.RecordBatch]:
        """See `MessageReader`."""
        return self._rows.blocks(_lines_of(value), origin, bad)


def _lines_of(value: bytes) -> bytes:
    """Return the objects of a message, each on its line."""
    text = value.strip()
    if not text.startswith(b"["):
        return text
    try:
        return b"\n".join(json.dumps(each).encode() for each in json.loads(text))
    except RecursionError as error:
        raise DataLossError("expected JSON values nested less deeply") from error


class RecordsReader(MessageReader):
    """Reads messages with one bare record, or with framed records one after another."""

    def __init__(self, columns: Columns, kind: str, framed: RecordFormat | None) -> None:
        super().__init__(columns)
        self._wanted = RecordColumns(columns)
        self._is_framed = framed is not None
        self._has_one_each = framed is None and kind in _ONE_EACH
        options = framed or RecordFormat(kind)

        def decoder(wanted: RecordColumns) -> Any:
            return wanted.decoder(
                kind,
                options.flags if self._is_framed else 0,
                max_bytes=options.max_record_bytes if self._is_framed else 0,
                keeps_fid_v1=options.keep_fid_v1,
                skips=False,
            )

        self._decoder = decoder(self._wanted)
        self._counter = decoder(RecordColumns(Columns()))  # finds the ends of records

    def read(self, values: Sequence[bytes], origin: Origin) -> tuple[pa.RecordBatch, Counts]:
        """See `MessageReader`."""
        if self._is_framed:
            counts = np.array([self._count(value) for value in values], np.int64)
            rows = self._framed_rows(b"".join(values))
        elif self._has_one_each:
            rows, counts = self._rows_of(values), np.ones(len(values), np.int64)
        else:
            parts = [self.rows(value) for value in values]
            rows, counts = concat(parts), np.array([part.num_rows for part in parts], np.int64)
        if rows.num_rows != counts.sum():
            raise DataLossError(f"{origin} expected {counts.sum()} samples, got {rows.num_rows}")
        return to_block(rows, self._columns, origin, BadSamples()), counts

    def rows(self, value: bytes) -> pa.RecordBatch:
        """See `MessageReader`."""
        if not self._is_framed:
            return self._rows_of([value])
        self._count(value)
        return self._framed_rows(value)

    def _count(self, value: bytes) -> int:
        """Return the number of samples of a message of whole records."""
        data = np.frombuffer(value, np.uint8)
        at, count = 0, 0
        while at < len(data):
            block = self._counter.decode(data.ctypes.data + at, len(data) - at)
            if block.broken or not block.consumed:
                raise DataLossError(
                    f"expected whole records, got {block.broken or 'a part of one'}"
                )
            at, count = at + block.consumed, count + block.num_rows
        if not count:
            raise DataLossError("expected at least one record, got none")
        return count

    def _rows_of(self, values: Sequence[bytes]) -> pa.RecordBatch:
        data = np.frombuffer(b"".join(values), np.uint8)
        splits = np.zeros(len(values) + 1, np.int64)
        np.cumsum([len(value) for value in values], out=splits[1:])
        return self._checked(
            self._decoder.decode_split(data.ctypes.data, splits.ctypes.data, len(values))
        )

    def _framed_rows(self, value: bytes) -> pa.RecordBatch:
        data, at, parts = np.frombuffer(value, np.uint8), 0, []
        while at < len(data):
            block = self._decoder.decode(data.ctypes.data + at, len(data) - at)
            if block.broken or not block.consumed:
                raise DataLossError(f"expected whole records, got {block.broken}")
            parts.append(self._checked(block))
            at += block.consumed
        return concat(parts)

    def _checked(self, block: Any) -> pa.RecordBatch:
        for _, _, _, text, _ in block.bad:
            raise DataLossError(text)
        return self._wanted.rows(block)


class ArrowReader(MessageReader):
    """Reads messages with a stream of Arrow IPC."""

    def __init__(self, columns: Columns) -> None:
        super().__init__(columns)
        self._names = list(dict.fromkeys(column for _, column in columns.sources()))

    def read(self, values: Sequence[bytes], origin: Origin) -> tuple[pa.RecordBatch, Counts]:
        """See `MessageReader`."""
        parts = [self.rows(value) for value in values]
        counts = np.array([part.num_rows for part in parts], np.int64)
        return to_block(concat(parts), self._columns, origin, BadSamples()), counts

    def rows(self, value: bytes) -> pa.RecordBatch:
        """See `MessageReader`."""
        try:
            table = pa.ipc.open_stream(value).read_all()
        except (pa.ArrowException, OSError) as error:
            raise DataLossError(f"expected a stream of Arrow IPC, got {error}") from error
        self._columns.check("[data.stream] a message:", table.schema)
        table = table.select(self._names).combine_chunks()
        table.validate(full=True)  # messages are not trusted
        batches = table.to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


def check_format(message_format: str | RecordFormat, types: Types) -> None:
    """Refuse a format that is unknown.

    Raises:
        ValueError: the format is unknown, or has no types.
    """
    known = ["json", "arrow", *RECORD_TYPES]
    if not isinstance(message_format, RecordFormat) and message_format not in known:
        raise ValueError(
            f"[data.stream] expected a RecordFormat or a format of {known}, got {message_format!r}"
        )
    if types and message_format != "json":
        raise ValueError(f"[data.stream] expected types with json only, got {message_format!r}")


def reader_of(message_format: str | RecordFormat, columns: Columns, types: Types) -> MessageReader:
    """Return a reader of messages.

    Args:
        message_format: "json", "arrow", the kind of bare records, or the format of framed ones.
        columns: columns to read.
        types: types of columns of JSON.
    """
    if isinstance(message_format, RecordFormat):
        return RecordsReader(columns, message_format.kind, message_format)
    if message_format == "json":
        return JsonReader(columns, types)
    if message_format == "arrow":
        return ArrowReader(columns)
    return RecordsReader(columns, message_format, None)


def name_of(message_format: str | RecordFormat) -> str:
    """Return the name of a format, for descriptions."""
    return message_format if isinstance(message_format, str) else message_format.name
