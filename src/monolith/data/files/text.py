"""CSV and JSON lines; positions are bytes of the (uncompressed) text."""

import contextlib
import csv
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from monolith.data.columns import Columns, is_list, is_untyped
from monolith.data.convert import BadSamples, Origin
from monolith.data.files.file_source import Raw, check_names
from monolith.data.files.json_depth import check_depth
from monolith.data.files.list_cells import are_lists, to_lists
from monolith.data.files.listing import DataFile
from monolith.data.files.text_lines import Text, bad_text
from monolith.data.large_integers import integers_of_cells, integers_of_lines, refuse_rounded
from monolith.data.prefetch import PartsAhead
from monolith.errors import DataLossError

_UNIT = b"\x1f"  # stands for a separator of several characters
_Parse = Callable[[bytes, Origin], pa.Table]


@dataclass(frozen=True, slots=True)
class _Parsed:
    """Rows of some lines, and the bytes of the text and of the file where they end."""

    raw: Raw
    end: int
    num_bytes: int


class _LineReader:
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


@dataclass
class CsvFormat:
    """Columns are named by the first line of each file, or by `names`.

    Args:
        separator: between values; of one or several characters.
        names: of all columns, where the file has no line of names.
        types: of columns, Arrow types or their names; others are guessed from the first block of
            the first file. Cells of lists are JSON arrays.
        lists: separators of columns whose values are lists in another form, `{"genres": "|"}`.
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
        text = Text(file, begin, self._quoted())
        lines, origin = text.read(), Origin(file.path, 0, begin)
        text.close()
        types = self._types()
        try:
            table = self._parser(names, types)(lines, origin)
        except pa.ArrowInvalid as error:
            raise bad_text(file, begin, lines, error) from error
        for each in table.schema:
            if each.name not in types or is_untyped(types[each.name]):
                values = table.column(each.name)
                types[each.name] = kind = self._guess(each, values)
                if is_list(kind) and pa.types.is_string(each.type):
                    values = to_lists(each.name, values, kind, origin, use_threads=False)
                self._refuse_rounded(file, names, each.name, values, lines)
        self._guessed = types
        return self._parser(names, self._types())(lines, origin).schema

    def _refuse_rounded(
        self, file: DataFile, names: list[str], name: str, values: pa.ChunkedArray, lines: bytes
    ) -> None:
        def cells() -> Iterator[Any]:
            parser, origin = self._parser(names, {name: pa.string()}), Origin(file.path, 0)
            texts = parser(lines, origin).column(name)
            return integers_of_cells(texts.filter(values.is_valid()))

        refuse_rounded(file.path, name, values, cells)

    def _guess(self, each: pa.Field, values: pa.ChunkedArray) -> pa.DataType:
        if pa.types.is_binary(each.type):  # text that is no UTF-8; as a string it is refused
            return pa.string()
        if pa.types.is_string(each.type) and each.name not in self.lists and are_lists(values):
            kind, nowhere = pa.list_(pa.null()), Origin("", 0)
            with contextlib.suppress(DataLossError):
                return to_lists(each.name, values, kind, nowhere, use_threads=False).type
        return each.type

    def _types(self) -> dict[str, pa.DataType]:
        guessed = {k: v for k, v in (self._guessed or {}).items() if not pa.types.is_null(v)}
        given = {
            name: pa.type_for_alias(kind) if isinstance(kind, str) else kind
            for name, kind in self.types.items()
        }
        return {**guessed, **given}

    def _quoted(self) -> "re.Pattern[bytes]":
        """Values in quotes, which begin where a value begins; the last one may not end."""
        separator = re.escape(self.separator.encode())
        return re.compile(rb"(?:\A|[\n\r]|" + separator + rb')"[^"]*(?:""[^"]*)*"?')

    def _parser(
        self, names: list[str], types: dict[str, pa.DataType], use_threads: bool = False
    ) -> "_CsvParser":
        return _CsvParser(self.separator, names, types, self.lists, use_threads)

    def _header(self, file: DataFile) -> tuple[list[str], int]:
        """Names of the columns, and where the samples begin."""
        if self.names is not None:
            check_names(file, self.names)
            return list(self.names), 0
        text = Text(file, 0, None)
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
        names = [name.strip() for name in names]
        check_names(file, names)
        return names, len(line) + len(newline)

    def open(
        self, file: DataFile, position: int, columns: Columns, bad: BadSamples, *, ahead: bool
    ) -> _LineReader:
        """See `FileFormat`."""
        names, begin = self._header(file)
        if self._guessed is None:
            self.schema(file)
        text = Text(file, max(position, begin), self._quoted())
        return _LineReader(file, text, self._parser(names, self._types(), ahead), ahead)


@dataclass(frozen=True, slots=True)
class _CsvParser:
    """Some lines as a table. A value of nothing is missing; one of two quotes is empty."""

    separator: str
    names: list[str]
    types: dict[str, pa.DataType]
    lists: Mapping[str, str]
    use_threads: bool

    def __call__(self, lines: bytes, origin: Origin) -> pa.Table:
        in_text = {*self.lists, *(name for name, kind in self.types.items() if is_list(kind))}
        plain = {**self.types, **dict.fromkeys(in_text, pa.string())}
        if not lines:
            return pa.schema([(n, plain.get(n, pa.null())) for n in self.names]).empty_table()
        table = self._strings(lines, self._read(lines, pa.csv.ConvertOptions(column_types=plain)))
        for name in in_text.intersection(table.column_names):
            lists = self._lists(name, table.column(name), origin)
            table = table.set_column(table.schema.get_field_index(name), name, lists)
        return table

    def _read(self, lines: bytes, options: pa.csv.ConvertOptions) -> pa.Table:
        try:
            return self._read_with(lines, options, self.use_threads)
        except pa.ArrowInvalid:
            return self._read_named(lines, options)

    def _read_named(self, lines: bytes, options: pa.csv.ConvertOptions) -> pa.Table:
        """On one thread, where an error names the row; it names the column here."""
        try:
            return self._read_with(lines, options, False)
        except pa.ArrowInvalid as error:
            text = str(error).replace(_UNIT.decode(), self.separator)
            named = re.sub(
                r"In CSV column #(\d+)", lambda m: f"column {self.names[int(m[1])]!r}", text
            )
            raise pa.ArrowInvalid(named) from error

    def _read_with(
        self, lines: bytes, options: pa.csv.ConvertOptions, use_threads: bool
    ) -> pa.Table:
        delimiter, has_quotes = self.separator, b'"' in lines
        if len(delimiter) > 1:
            lines, delimiter = lines.replace(delimiter.encode(), _UNIT), _UNIT.decode()
        return pa.csv.read_csv(
            pa.BufferReader(lines),
            pa.csv.ReadOptions(
                column_names=self.names, use_threads=use_threads, block_size=len(lines) + 1
            ),
            pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=has_quotes),
            options,
        )

    def _strings(self, lines: bytes, table: pa.Table) -> pa.Table:
        """Strings are missing only if empty and without quotes: "NA" may be a country."""
        names = [each.name for each in table.schema if pa.types.is_string(each.type)]
        nulls = [each.name for each in table.schema if pa.types.is_null(each.type)]
        if b'""' not in lines or not [*names, *nulls]:
            for name in names:
                strings = table.column(name)
                strings = pc.if_else(pc.equal(strings, ""), None, strings)
                table = table.set_column(table.column_names.index(name), name, strings)
            return table
        names += nulls
        options = pa.csv.ConvertOptions(
            include_columns=names, column_types=dict.fromkeys(names, pa.string()),
            null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False,
        )  # fmt: skip
        exact = self._read(lines, options)
        for name in names:
            strings = exact.column(name)
            if strings.null_count < len(strings):
                table = table.set_column(table.column_names.index(name), name, strings)
        return table

    def _lists(
        self, name: str, strings: pa.ChunkedArray, origin: Origin
    ) -> pa.Array | pa.ChunkedArray:
        kind = self.types.get(name)
        if name not in self.lists and kind is not None:
            return to_lists(name, strings, kind, origin, use_threads=self.use_threads)
        lists = pc.split_pattern(strings, self.lists[name])
        return lists.cast(kind) if kind is not None and is_list(kind) else lists


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
        table = self._parse(lines, self._guessed or self._given(), False)
        for name in set(table.column_names) - set(self.types):
            cells = functools.partial(integers_of_lines, lines, name)
            refuse_rounded(file.path, name, table.column(name), cells)
        self._guessed = table.schema
        return self._guessed

    def _given(self) -> pa.Schema:
        return pa.schema(
            [
                (name, pa.type_for_alias(kind) if isinstance(kind, str) else kind)
                for name, kind in self.types.items()
            ]
        )

    def _parse(self, lines: bytes, schema: pa.Schema, use_threads: bool) -> pa.Table:
        check_depth(lines)
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
    ) -> _LineReader:
        """See `FileFormat`."""
        if self._guessed is None:
            self.schema(file)
        schema = self._guessed or self._given()
        text = Text(file, position, None)
        return _LineReader(file, text, lambda lines, _: self._parse(lines, schema, ahead), ahead)
