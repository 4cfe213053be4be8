"""CSV and JSON lines; positions are bytes of the uncompressed text."""

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

_UNIT = b"\x1f"  # replaces a separator of several characters
_Parse = Callable[[bytes, Origin], pa.Table]


@dataclass(frozen=True, slots=True)
class _TextBlock:
    """Rows of some lines, with the positions of their end in the text and in the file."""

    raw: Raw
    end: int
    num_bytes: int


class _LineReader:
    """Parses the text of a file, block by block."""

    def __init__(self, file: DataFile, text: Text, parse: _Parse, ahead: bool) -> None:
        self._text = text
        self.position, self.num_bytes = text.position, text.num_bytes
        # Holds no reference to this reader, because a thread may hold it.
        blocks = _parse_blocks(file, text, parse)
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


def _parse_blocks(file: DataFile, text: Text, parse: _Parse) -> Iterator[_TextBlock]:
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
            yield _TextBlock(Raw(batch, origin), text.position, text.num_bytes)
        begin = text.position


@dataclass
class CsvFormat:
    """Reads CSV; the first line of each file, or `names`, gives the names of the columns.

    Args:
        separator: text between values, of one or several characters.
        names: names of all columns, for files without a header line.
        types: types of columns, as Arrow types or their names; others are guessed from the first
            block of the first file. Cells with lists are JSON arrays.
        lists: separators of columns with lists in another form, such as `{"genres": "|"}`.
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
        text = Text(file, begin, self._quoted_pattern())
        lines, origin = text.read(), Origin(file.path, 0, begin)
        text.close()
        types = self._types()
        try:
            table = self._parser(names, types)(lines, origin)
        except pa.ArrowInvalid as error:
            raise bad_text(file, begin, lines, error) from error
        for column in table.schema:
            if column.name not in types or is_untyped(types[column.name]):
                values = table.column(column.name)
                types[column.name] = kind = self._guess(column, values)
                if is_list(kind) and pa.types.is_string(column.type):
                    values = to_lists(column.name, values, kind, origin, use_threads=False)
                self._refuse_rounded(file, names, column.name, values, lines)
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

    def _guess(self, column: pa.Field, values: pa.ChunkedArray) -> pa.DataType:
        # Text that is not UTF-8; the check of strings refuses it.
        if pa.types.is_binary(column.type):
            return pa.string()
        if pa.types.is_string(column.type) and column.name not in self.lists and are_lists(values):
            kind, nowhere = pa.list_(pa.null()), Origin("", 0)
            with contextlib.suppress(DataLossError):
                return to_lists(column.name, values, kind, nowhere, use_threads=False).type
        return column.type

    def _types(self) -> dict[str, pa.DataType]:
        guessed = {k: v for k, v in (self._guessed or {}).items() if not pa.types.is_null(v)}
        declared = {
            name: pa.type_for_alias(kind) if isinstance(kind, str) else kind
            for name, kind in self.types.items()
        }
        return {**guessed, **declared}

    def _quoted_pattern(self) -> "re.Pattern[bytes]":
        """Return the pattern of quoted values; the last value may lack its end."""
        separator = re.escape(self.separator.encode())
        return re.compile(rb"(?:\A|[\n\r]|" + separator + rb')"[^"]*(?:""[^"]*)*"?')

    def _parser(
        self,
        names: list[str],
        types: dict[str, pa.DataType],
        use_threads: bool = False,
        wanted: list[str] | None = None,
    ) -> "_CsvParser":
        wanted = names if wanted is None else wanted
        return _CsvParser(self.separator, names, types, self.lists, use_threads, wanted)

    def _header(self, file: DataFile) -> tuple[list[str], int]:
        """Return the names of the columns, and the position of the first sample."""
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
        if names:  # an empty file has no line of names
            columns.check(f"[data] {file.path!r}", pa.schema([(n, pa.null()) for n in names]))
        text = Text(file, max(position, begin), self._quoted_pattern())
        wanted = {column for _, column in columns.sources()}
        parser = self._parser(names, self._types(), ahead, [n for n in names if n in wanted])
        return _LineReader(file, text, parser, ahead)


@dataclass(frozen=True, slots=True)
class _CsvParser:
    """Parses the wanted columns of lines as a table.

    An empty value is missing; two quotes are an empty string.
    """

    separator: str
    names: list[str]
    types: dict[str, pa.DataType]
    lists: Mapping[str, str]
    use_threads: bool
    wanted: list[str]

    def __call__(self, lines: bytes, origin: Origin) -> pa.Table:
        in_text = {*self.lists, *(name for name, kind in self.types.items() if is_list(kind))}
        plain = {**self.types, **dict.fromkeys(in_text, pa.string())}
        if not lines:
            return pa.schema([(n, plain.get(n, pa.null())) for n in self.wanted]).empty_table()
        options = pa.csv.ConvertOptions(column_types=plain, include_columns=self.wanted)
        table = self._strings(lines, self._read(lines, options))
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
        """Parse on one thread, where errors name the row, and add the column to an error."""
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
        """Let only empty values without quotes be missing: "NA" may be a country."""
        names = [field.name for field in table.schema if pa.types.is_string(field.type)]
        nulls = [field.name for field in table.schema if pa.types.is_null(field.type)]
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
    """Reads files with an object on each line; the keys of the objects are the columns.

    Args:
        types: types of columns, as Arrow types or their names; others are guessed from the first
            block of the first file.
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
            return self.declared_schema()
        table = self.parse(lines, self._guessed or self.declared_schema(), False)
        for name in set(table.column_names) - set(self.types):
            cells = functools.partial(integers_of_lines, lines, name)
            refuse_rounded(file.path, name, table.column(name), cells)
        self._guessed = table.schema
        return self._guessed

    def declared_schema(self) -> pa.Schema:
        return pa.schema(
            [
                (name, pa.type_for_alias(kind) if isinstance(kind, str) else kind)
                for name, kind in self.types.items()
            ]
        )

    def parse(
        self, lines: bytes, schema: pa.Schema, use_threads: bool, *, others: str = "infer"
    ) -> pa.Table:
        """Parse lines; `others` tells what to do with columns without a type in the schema."""
        check_depth(lines)
        typed = pa.schema([column for column in schema if not is_untyped(column.type)])
        table = pa.json.read_json(
            pa.BufferReader(lines),
            pa.json.ReadOptions(use_threads=use_threads, block_size=len(lines) + 1),
            pa.json.ParseOptions(explicit_schema=typed, unexpected_field_behavior=others),
        )
        for column in schema:
            if column.name not in table.column_names:
                table = table.append_column(column, pa.nulls(table.num_rows, column.type))
        table.validate(full=True)  # checks that strings are UTF-8
        return table

    def open(
        self, file: DataFile, position: int, columns: Columns, bad: BadSamples, *, ahead: bool
    ) -> _LineReader:
        """See `FileFormat`."""
        if self._guessed is None:
            self.schema(file)
        schema = self._guessed or self.declared_schema()
        wanted = {column for _, column in columns.sources()}
        schema = pa.schema([field for field in schema if field.name in wanted])
        is_typed = wanted == set(schema.names) and not any(is_untyped(f.type) for f in schema)
        others = "ignore" if is_typed else "infer"

        def parse(lines: bytes, _: Origin) -> pa.Table:
            return self.parse(lines, schema, ahead, others=others)

        return _LineReader(file, Text(file, position, None), parse, ahead)
