"""Files of lines, and JSON lines; positions are bytes of the (uncompressed) text."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from monolith.data.columns import Columns, is_untyped
from monolith.data.convert import BadSamples, Origin
from monolith.data.file_source import Raw
from monolith.data.files import DataFile
from monolith.data.prefetch import PartsAhead
from monolith.errors import DataLossError

__all__ = ["JsonLinesFormat", "LineReader", "Text", "bad_text", "compression_of"]

_BLOCK = 1 << 22  # bytes of text
_MAX_LINE = 1 << 28
_COMPRESSIONS = (
    (".gz", "gzip"),
    (".bz2", "bz2"),
    (".zst", "zstd"),
    (".lz4", "lz4"),
    (".br", "brotli"),
)
_Parse = Callable[[bytes, Origin], pa.Table]


def compression_of(path: str) -> str | None:
    """How a file is compressed, by the end of its name."""
    return next((name for end, name in _COMPRESSIONS if path.lower().endswith(end)), None)


class Text:
    """The bytes of a file, cut at ends of lines; not inside of quoted values where it has some."""

    def __init__(self, file: DataFile, position: int, quoted: "re.Pattern[bytes] | None") -> None:
        self._file, self._quoted = file, quoted
        self._raw = file.open()
        compression = compression_of(file.path)
        self._stream = self._raw
        if compression is not None:
            self._stream = pa.CompressedInputStream(self._raw, compression)
            self._skip(position)
        else:
            self._raw.seek(position)
        self.position = position
        self._rest = b""

    def _skip(self, count: int) -> None:
        while count > 0:
            got = len(self._stream.read(min(count, _BLOCK)))
            if got == 0:
                raise DataLossError(f"[data] {self._file.path!r} is shorter than it was")
            count -= got

    @property
    def num_bytes(self) -> int:
        """Bytes of the file that were read."""
        return min(self._file.size, int(self._raw.tell()))

    def read(self) -> bytes:
        """Some lines; nothing at the end. Where they end depends on where they begin alone.

        So blocks are the same after a restart, and files that are read in turns keep their turns.
        """
        data, size = self._rest, _BLOCK
        while True:
            more: bytes = self._stream.read(size - len(data))
            data += more
            if more and len(data) < size:
                continue
            end = self._last_end(data) if more else len(data)
            if end or not more:
                break
            size += _BLOCK
            if len(data) > _MAX_LINE:
                raise DataLossError(
                    f"[data] {self._file.path!r}: the line at byte {self.position} is longer than "
                    f"{_MAX_LINE} bytes"
                )
        self._rest = data[end:]
        self.position += end
        return data[:end]

    def _last_end(self, data: bytes) -> int:
        """Where the last whole line ends; 0: there is none."""
        end = data.rfind(b"\n") + 1
        if self._quoted is None or data.count(b'"', 0, end) % 2 == 0:
            return end
        for begin, quote_end in reversed([each.span() for each in self._quoted.finditer(data)]):
            if begin < end - 1 < quote_end:
                end = data.rfind(b"\n", 0, begin + 1) + 1
        return end

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        self._raw.close()


@dataclass(frozen=True, slots=True)
class _Parsed:
    """Rows of some lines, and the bytes of the text and of the file where they end."""

    raw: Raw
    end: int
    num_bytes: int


class LineReader:
    """Parses the text of a file block by block."""

    def __init__(self, file: DataFile, text: Text, parse: _Parse, ahead: bool) -> None:
        self._text = text
        self.position, self.num_bytes = text.position, text.num_bytes
        blocks = _parsed(file, text, parse)  # without this reader: a thread may hold them
        self._blocks = PartsAhead(blocks) if ahead else blocks

    def read(self) -> Raw | None:
        """See `FileReader`."""
        block = next(self._blocks, None)
        if block is None:
            return None
        self.position, self.num_bytes = block.end, block.num_bytes
        return block.raw

    def close(self) -> None:
        """See `FileReader`."""
        if isinstance(self._blocks, PartsAhead):
            self._blocks.close()
        self._text.close()


def _parsed(file: DataFile, text: Text, parse: _Parse) -> Iterator[_Parsed]:
    begin = text.position
    while lines := text.read():
        if lines.strip():
            origin = Origin(file.path, 0, begin)
            try:
                table = parse(lines, origin)
            except pa.ArrowInvalid as error:
                raise bad_text(file, begin, lines, error) from error
            rows = table.combine_chunks().to_batches()
            batch = rows[0] if rows else pa.RecordBatch.from_pylist([], table.schema)
            yield _Parsed(Raw(batch, origin), text.position, text.num_bytes)
        begin = text.position


def bad_text(file: DataFile, begin: int, lines: bytes, error: Exception) -> DataLossError:
    """Names the line of a file where Arrow counts rows and rows are lines, else the block."""
    text, place = str(error), f"in the block at byte {begin}"
    row = re.search(r"Row #(\d+): ", text)
    if row is not None and b'"' not in lines:
        is_row = [line.strip(b"\r") != b"" for line in lines.split(b"\n")]  # Arrow skips others
        rows = [number for number, is_one in enumerate(is_row, 1) if is_one]
        number = _lines_before(file, begin) + rows[int(row[1]) - 1]
        text, place = text.replace(row[0], ""), f"line {number}"
    return DataLossError(f"[data] {file.path!r}, {place}: {text}")


def _lines_before(file: DataFile, position: int) -> int:
    text, count = Text(file, 0, None), 0
    while text.position < position:
        begin = text.position
        count += text.read()[: position - begin].count(b"\n")
    text.close()
    return count


@dataclass
class JsonLinesFormat:
    """An object on each line; its keys are the columns.

    Args:
        types: of columns, Arrow types or their names; others are guessed from the first block of
            the first file.
    """

    types: Mapping[str, pa.DataType | str] = field(default_factory=dict)
    name = "jsonl"
    has_schema = True
    _guessed: pa.Schema | None = None

    def schema(self, file: DataFile) -> pa.Schema:
        """See `FileFormat`."""
        text = Text(file, 0, None)
        lines = text.read()
        text.close()
        if not lines.strip():
            return self._given()
        self._guessed = self._parse(lines, self._guessed or self._given(), False).schema
        return self._guessed

    def _given(self) -> pa.Schema:
        return pa.schema(
            [
                (name, pa.type_for_alias(kind) if isinstance(kind, str) else kind)
                for name, kind in self.types.items()
            ]
        )

    def _parse(self, lines: bytes, schema: pa.Schema, use_threads: bool) -> pa.Table:
        typed = pa.schema([each for each in schema if not is_untyped(each.type)])
        table = pa.json.read_json(
            pa.BufferReader(lines),
            pa.json.ReadOptions(use_threads=use_threads, block_size=len(lines) + 1),
            pa.json.ParseOptions(explicit_schema=typed, unexpected_field_behavior="infer"),
        )
        for each in schema:
            if each.name not in table.column_names:
                table = table.append_column(each, pa.nulls(table.num_rows, each.type))
        table.validate(full=True)  # that strings are UTF-8
        return table

    def open(
        self, file: DataFile, position: int, columns: Columns, bad: BadSamples, *, ahead: bool
    ) -> LineReader:
        """See `FileFormat`."""
        if self._guessed is None:
            self.schema(file)
        schema = self._guessed or self._given()
        text = Text(file, position, None)
        return LineReader(file, text, lambda lines, _: self._parse(lines, schema, ahead), ahead)
