"""Files of Example, ExampleBatch, Instance or tf.train.Example; positions are bytes."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from monolith.data.columns import Columns
from monolith.data.convert import BadSamples, Origin
from monolith.data.files.byte_stream import ByteStream, compression_of
from monolith.data.files.file_source import Raw
from monolith.data.files.listing import DataFile
from monolith.data.records.framing import Framing
from monolith.data.records.record_columns import RECORD_TYPES, RecordColumns
from monolith.data.records.schema import schema_of
from monolith.errors import DataLossError
from monolith.ops.compiled import load_native

_BLOCK = 1 << 24  # size of a block of uncompressed records in bytes
_MAX_RECORD = 1 << 27
_TFRECORD = 1
_UNCHECKED = 32
_SCHEMA_RECORDS = 256


@dataclass(frozen=True)
class RecordFormat:
    """Reads blocks of whole records.

    Args:
        kind: "example", "example_batch", "instance" or "tf_example".
        framing: headers before each record; None means TFRecord frames.
        compression: compression of the files; "auto" takes it from the ends of their names.
        keep_fid_v1: whether fids v1 are kept; otherwise they become fids v2.
        check_crc: whether checksums of TFRecord frames are checked.
        max_record_bytes: size of the longest valid record.

    Raises:
        ValueError: the kind or compression is unknown, or the limit is negative.
    """

    kind: str
    framing: Framing | None = field(default_factory=Framing)
    compression: str = "auto"
    keep_fid_v1: bool = False
    check_crc: bool = True
    max_record_bytes: int = _MAX_RECORD

    def __post_init__(self) -> None:
        if self.kind not in RECORD_TYPES:
            raise ValueError(
                f"[data] expected records of kind {sorted(RECORD_TYPES)}, got {self.kind!r}"
            )
        compression_of("", self.compression)
        if self.max_record_bytes < 0:
            raise ValueError(
                f"[data] expected max_record_bytes of at least 0, got {self.max_record_bytes}"
            )

    @property
    def has_schema(self) -> bool:
        """See `FileFormat`."""
        return False

    @property
    def name(self) -> str:
        """See `FileFormat`."""
        frames = "tfrecord" if self.framing is None else f"framing {self.framing.flags}"
        return f"{self.kind}, {frames}, {self.compression}, fid v1 {self.keep_fid_v1}"

    @property
    def flags(self) -> int:
        """Framing and checks as the flags of the core."""
        if self.framing is not None:
            return self.framing.flags
        return _TFRECORD if self.check_crc else _TFRECORD | _UNCHECKED

    def schema(self, file: DataFile) -> pa.Schema:
        """Return the columns of the first records of a file.

        Raises:
            ValueError: the first records have no columns.
        """
        reader = self.open(file, 0, Columns(), BadSamples(), ahead=False)
        records = reader.payloads(_SCHEMA_RECORDS)
        reader.close()
        schema = schema_of(self.kind, records)
        if records and not schema.names:
            raise ValueError(
                f"[data] {file.path!r} expected records with features, got none in the first "
                f"{len(records)}; name what to take: columns=Columns(...)"
            )
        return schema

    def open(
        self, file: DataFile, position: int, columns: Columns, bad: BadSamples, *, ahead: bool
    ) -> "_RecordReader":
        """See `FileFormat`."""
        record_columns = RecordColumns(columns)
        decoder = record_columns.decoder(
            self.kind,
            self.flags,
            max_bytes=self.max_record_bytes,
            keeps_fid_v1=self.keep_fid_v1,
            skips=bad.skips,
        )
        stream = ByteStream(file, position, compression_of(file.path, self.compression))
        reader = _RecordReader if not ahead else _AheadReader
        return reader(file, position, stream, record_columns, decoder, bad)


class _RecordReader:
    """Reads whole records; a block depends only on its position in the file."""

    def __init__(
        self,
        file: DataFile,
        position: int,
        stream: ByteStream,
        columns: RecordColumns,
        decoder: Any,
        bad: BadSamples,
    ) -> None:
        self._file, self._stream, self._columns = file, stream, columns
        self._decoder, self._bad = decoder, bad
        self._buffer = np.empty(_BLOCK, np.uint8)
        self._filled = 0
        self._rows = 0  # rows of this reader so far
        self.position = position

    @property
    def num_bytes(self) -> int:
        """See `FileReader`."""
        return self._stream.num_bytes

    def _decode(self, size: int) -> Any:
        """Return the decoded records of the first buffered bytes."""
        return self._decoder.decode(self._buffer.ctypes.data, min(self._filled, size))

    def _fill(self, size: int) -> None:
        """Buffer `size` bytes, or all remaining bytes."""
        if size > len(self._buffer):
            grown = np.empty(size, np.uint8)
            grown[: self._filled] = self._buffer[: self._filled]
            self._buffer = grown
        if self._filled < size:
            self._filled += self._stream.read_into(self._buffer[self._filled : size])

    def _block(self) -> Any:
        """Return a block of at least one record; None at the end."""
        size = _BLOCK
        while True:
            self._fill(size)
            if self._filled == 0:
                return None
            block = self._decode(size)
            if block.consumed:
                return block
            if block.broken:
                at = self.position + block.broken_at
                raise DataLossError(f"[data] {self._file.path!r}, byte {at}: {block.broken}")
            self._fill(block.needed)
            if self._filled < block.needed:
                raise DataLossError(
                    f"[data] {self._file.path!r}, byte {self.position}: truncated record: expected "
                    f"at least {block.needed} bytes, got {self._filled}"
                )
            size = block.needed

    def read(self) -> Raw | None:
        """See `FileReader`."""
        block = self._block()
        if block is None:
            return None
        begin = self.position
        for number, at, _, text, reason in block.bad:
            if not self._bad.skips:
                raise DataLossError(
                    f"[data] {self._file.path!r}, record {number} of the block at byte {begin}, "
                    f"byte {begin + at}: {text}; fix the data, or skip such records with "
                    'on_error="skip"'
                )
            self._bad.counts[reason] = self._bad.counts.get(reason, 0) + 1
        rows = self._columns.rows(block)
        self._take(block.consumed)
        origin = Origin(self._file.path, self._rows, begin)
        self._rows += rows.num_rows
        return Raw(rows, origin)

    def _take(self, count: int) -> None:
        rest = self._filled - count
        self._buffer[:rest] = self._buffer[count : self._filled].copy()
        self._filled = rest
        self.position += count

    def payloads(self, most: int) -> list[bytes]:
        """Return the bytes of the first records."""
        if self._block() is None:
            return []
        spans = self._decoder.spans(self._buffer.ctypes.data, self._filled, most)
        return [self._buffer[begin:end].tobytes() for begin, end in spans]

    def close(self) -> None:
        """See `FileReader`."""
        self._stream.close()


class _AheadReader(_RecordReader):
    """Reads the same blocks; the core decodes the next block while the caller uses the last one.

    This thread reads the bytes; the read that needs the bytes raises an error of theirs.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._ahead = load_native().DecodeAhead(self._decoder)
        self._error: Exception | None = None
        self._is_started = False
        self._begin()

    def _begin(self) -> None:
        self._num_bytes = super().num_bytes
        try:
            self._fill(_BLOCK)
        except Exception as error:
            self._error = error
            return
        if self._filled:
            self._start(_BLOCK)

    def _start(self, size: int) -> None:
        size = min(self._filled, size)
        self._ahead.start(self._buffer.ctypes.data, size, self._buffer)
        self._is_started = True

    def _decode(self, size: int) -> Any:
        if not self._is_started:
            self._start(size)
        self._is_started = False
        return self._ahead.wait()

    @property
    def num_bytes(self) -> int:
        """Bytes of the file that were read, without the block that is decoded ahead."""
        return self._num_bytes

    def read(self) -> Raw | None:
        """See `FileReader`."""
        if self._error is not None:
            raise self._error
        raw = super().read()
        if raw is not None:
            self._begin()
        return raw

    def close(self) -> None:
        """Close the file; waits for the block that is being decoded."""
        if self._is_started:
            self._decode(0)
        self._ahead = None
        super().close()
