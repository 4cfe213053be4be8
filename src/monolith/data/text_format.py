"""CSV and JSON lines; positions are bytes of the (uncompressed) text."""

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from monolith.data.columns import Columns, is_untyped
from monolith.data.convert import BadSamples, Origin
from monolith.data.file_source import Raw
from monolith.data.files import DataFile
from monolith.errors import DataLossError

__all__ = ["CsvFormat", "JsonLinesFormat", "compression_of"]

_BLOCK = 1 << 22  # bytes of text
_MAX_LINE = 1 << 28
_UNIT = b"\x1f"  # stands for a separator of several characters
_COMPRESSIONS = (
    (".gz", "gzip"),
    (".bz2", "bz2"),
    (".zst", "zstd"),
    (".lz4", "lz4"),
    (".br", "brotli"),
)
_Parse = Callable[[bytes], pa.Table]


def compression_of(path: str) -> str | None:
    """How a file is compressed, by the end of its name."""
    return next((name for end, name in _COMPRESSIONS if path.lower().endswith(end)), None)


class _Text:
    """The bytes of a file, cut at ends of lines."""

    def __init__(self, file: DataFile, position: int) -> None:
        self._file = file
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
            end = data.rfind(b"\n") + 1 if more else len(data)
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

    def close(self) -> None:
        self._stream.close()
        self._raw.close()


class _LineReader:
    """Parses the text of a file block by block."""

    def __init__(self, file: DataFile, position: int, parse: _Parse) -> None:
        self._file, self._parse = file, parse
        self._text = _Text(file, position)

    @property
    def position(self) -> int:
        """See `FileReader`."""
        return self._text.position

    @property
    def num_bytes(self) -> int:
        """See `FileReader`."""
        return self._text.num_bytes

    def read(self) -> Raw | None:
        """See `FileReader`."""
        begin = self._text.position
        while (lines := self._text.read()) and not lines.strip():
            begin = self._text.position
        if not lines:
            return None
        try:
            table = self._parse(lines)
        except pa.ArrowInvalid as error:
            raise _bad_text(self._file, begin, lines, error) from error
        rows = table.combine_chunks().to_batches()
        origin = Origin(self._file.path, 0, begin)
        return Raw(rows[0] if rows else pa.RecordBatch.from_pylist([], table.schema), origin)

    def close(self) -> None:
        """See `FileReader`."""
        self._text.close()


def _bad_text(file: DataFile, begin: int, lines: bytes, error: Exception) -> DataLossError:
    """Names the line of a file where Arrow counts rows, else the block of lines."""
    text, place = str(error), f"in the block at byte {begin}"
    row = re.search(r"Row #(\d+): ", text)
    if row is not None:
        is_row = [line.strip(b"\r") != b"" for line in lines.split(b"\n")]  # Arrow skips others
        rows = [number for number, is_one in enumerate(is_row, 1) if is_one]
        number = _lines_before(file, begin) + rows[int(row[1]) - 1]
        text, place = text.replace(row[0], ""), f"line {number}"
    return DataLossError(f"[data] {file.path!r}, {place}: {text}")


def _lines_before(file: DataFile, position: int) -> int:
    text, count = _Text(file, 0), 0
    while text.position < position:
        begin = text.position
        count += text.read()[: position - begin].count(b"\n")
    text.close()
    return count


@dataclass
class CsvFormat:
    """Columns are named by the first line of each file, or by `names`.

    Args:
        separator: between values; of one or several characters.
        names: of all columns, where the file has no line of names.
        types: of columns, Arrow types or their names; others are guessed from the first block of
            the first file.
        lists: separators of columns whose values are lists, such as `{"genres": "|"}`.
    """

    separator: str = ","
    names: Sequence[str] | None = None
    types: Mapping[str, pa.DataType | str] = field(default_factory=dict)
    lists: Mapping[str, str] = field(default_factory=dict)
    name = "csv"
    has_schema = True
    _guessed: dict[str, pa.DataType] | None = None

    def schema(self, file: DataFile) -> pa.Schema:
        """See `FileFormat`."""
        names, begin = self._header(file)
        text = _Text(file, begin)
        lines = text.read()
        text.close()
        types = self._types()
        try:
            table = self._parse(lines, names, types)
        except pa.ArrowInvalid as error:
            raise _bad_text(file, begin, lines, error) from error
        for each in table.schema:
            # Text that is no UTF-8 is guessed to be bytes; as a string it is refused.
            guess = pa.string() if pa.types.is_binary(each.type) else each.type
            types.setdefault(each.name, guess)
        self._guessed = types
        return self._parse(lines, names, self._types()).schema

    def _types(self) -> dict[str, pa.DataType]:
        guessed = {k: v for k, v in (self._guessed or {}).items() if not pa.types.is_null(v)}
        given = {
            name: pa.type_for_alias(kind) if isinstance(kind, str) else kind
            for name, kind in self.types.items()
        }
        return {**guessed, **given}

    def _header(self, file: DataFile) -> tuple[list[str], int]:
        """Names of the columns, and where the samples begin."""
        if self.names is not None:
            return list(self.names), 0
        text = _Text(file, 0)
        line, newline, _ = text.read().partition(b"\n")
        text.close()
        try:
            header = line.decode("utf-8-sig").strip("\r")
        except UnicodeDecodeError as error:
            raise DataLossError(
                f"[data] {file.path!r}, in the line of names: expected UTF-8, got {error}"
            ) from error
        if len(self.separator) > 1:
            names = header.split(self.separator)
        else:
            names = next(csv.reader([header], delimiter=self.separator), [])
        return [name.strip() for name in names], len(line) + len(newline)

    def _parse(self, lines: bytes, names: list[str], types: dict[str, pa.DataType]) -> pa.Table:
        delimiter = self.separator
        if len(delimiter) > 1:
            lines, delimiter = lines.replace(delimiter.encode(), _UNIT), _UNIT.decode()
        plain = {**types, **dict.fromkeys(self.lists, pa.string())}
        if not lines:
            return pa.schema([(n, plain.get(n, pa.null())) for n in names]).empty_table()
        try:
            table = pa.csv.read_csv(
                pa.BufferReader(lines),
                pa.csv.ReadOptions(
                    column_names=names, use_threads=False, block_size=len(lines) + 1
                ),
                pa.csv.ParseOptions(delimiter=delimiter),
                pa.csv.ConvertOptions(column_types=plain),
            )
        except pa.ArrowInvalid as error:
            text = str(error).replace(_UNIT.decode(), self.separator)
            named = re.sub(r"In CSV column #(\d+)", lambda m: f"column {names[int(m[1])]!r}", text)
            raise pa.ArrowInvalid(named) from error
        for i, each in enumerate(table.schema):
            if pa.types.is_string(each.type):  # missing only if empty: "NA" may be a country
                strings = table.column(i)
                is_empty = pc.equal(strings, "")
                table = table.set_column(i, each, pc.if_else(is_empty, None, strings))
        for name, separator in self.lists.items():
            table = _split_lists(table, name, separator, types.get(name))
        return table

    def open(self, file: DataFile, position: int, columns: Columns, bad: BadSamples) -> _LineReader:
        """See `FileFormat`."""
        names, begin = self._header(file)
        if self._guessed is None:
            self.schema(file)
        types = self._types()
        return _LineReader(
            file, max(position, begin), lambda lines: self._parse(lines, names, types)
        )


def _split_lists(table: pa.Table, name: str, separator: str, kind: pa.DataType | None) -> pa.Table:
    strings = table.column(name)
    lists = pc.split_pattern(strings, separator)
    if kind is not None and pa.types.is_list(kind):
        lists = lists.cast(kind)
    return table.set_column(table.schema.get_field_index(name), name, lists)


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
        text = _Text(file, 0)
        lines = text.read()
        text.close()
        if not lines.strip():
            return self._given()
        self._guessed = self._parse(lines, self._guessed or self._given()).schema
        return self._guessed

    def _given(self) -> pa.Schema:
        return pa.schema(
            [
                (name, pa.type_for_alias(kind) if isinstance(kind, str) else kind)
                for name, kind in self.types.items()
            ]
        )

    def _parse(self, lines: bytes, schema: pa.Schema) -> pa.Table:
        typed = pa.schema([each for each in schema if not is_untyped(each.type)])
        table = pa.json.read_json(
            pa.BufferReader(lines),
            pa.json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            pa.json.ParseOptions(explicit_schema=typed, unexpected_field_behavior="infer"),
        )
        for each in schema:
            if each.name not in table.column_names:
                table = table.append_column(each, pa.nulls(table.num_rows, each.type))
        table.validate(full=True)  # that strings are UTF-8
        return table

    def open(self, file: DataFile, position: int, columns: Columns, bad: BadSamples) -> _LineReader:
        """See `FileFormat`."""
        if self._guessed is None:
            self.schema(file)
        schema = self._guessed or self._given()
        return _LineReader(file, position, lambda lines: self._parse(lines, schema))
