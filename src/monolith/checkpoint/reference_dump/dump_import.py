"""Import the rows of dumps into tables."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from monolith.checkpoint.reference_dump.dump_files import DumpFolder, DumpSet
from monolith.checkpoint.reference_dump.dump_layout import RowLayout, layout_of
from monolith.checkpoint.reference_dump.dump_metadata import Runs, read_runs
from monolith.checkpoint.reference_dump.dump_rows import RowCounts, RowReader, slots_of
from monolith.checkpoint.reference_dump.dump_stream import DumpStream
from monolith.checkpoint.reference_dump.dump_tables import (
    Choice,
    DumpTable,
    match_tables,
    merged_tables,
)
from monolith.errors import InvalidArgumentError
from monolith.table.base import BaseTable
from monolith.table.config import column_sizes
from monolith.table.rows import Rows

NOT_IN_DUMPS = (
    "dense parameters and their optimizer",
    "step, data position and learning rates",
    "counts of ids that admission has not let in",
)
"""Parts of a run that dumps of tables do not have."""

_MOST_COMPRESSED = 2  # uncompressed bytes of a byte of Snappy, for rows of floats
_NUM_NAMES = 10  # of unused tables in a message


@dataclass(frozen=True)
class ImportOptions:
    """Options of an import.

    Args:
        choices: tables for dumps whose names do not say it.
        with_state: whether optimizer state is imported; otherwise rows get that of new rows.
        allows_unused: whether rows that no table takes are counted and left out.
        skips_non_finite: whether rows with NaN or infinite numbers are counted and left out.
    """

    choices: Sequence[Choice] = ()
    with_state: bool = True
    allows_unused: bool = False
    skips_non_finite: bool = False


@dataclass(kw_only=True)
class TableImport(RowCounts):
    """Rows that a table took; the time of a row without a time becomes 0.

    Args:
        table: name of the table.
        dumps: names of the dumped tables.
    """

    table: str
    dumps: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class DumpImport:
    """The result of an import.

    Args:
        tables: rows of each table, also of those that took none.
        unused: dumped table, or `table:slot` -> number of rows that no table took.
        num_non_finite: number of rows that were left out for NaN or infinite numbers.
        filters: names of the filters, which are never imported.
    """

    tables: Sequence[TableImport]
    unused: Mapping[str, int]
    num_non_finite: int
    filters: Sequence[str]


def import_dumps(
    folder: DumpFolder,
    tables: Sequence[BaseTable],
    options: ImportOptions = ImportOptions(),  # noqa: B008 - immutable
    *,
    put: Callable[[BaseTable, Rows], None] = BaseTable.import_rows,
    advance: Callable[[int], None] = lambda num_bytes: None,
) -> DumpImport:
    """Import the rows of a checkpoint's dumps into tables.

    Of rows with the same key, that of the last file stays: files are read by kind, name, parameter
    server and shard. After an error, tables may have some of the rows.

    Args:
        folder: dumps of the checkpoint.
        tables: tables that take the rows.
        options: options of the import.
        put: called with a table and rows for it, which are overwritten after the call.
        advance: called with the number of bytes of files that were read.

    Raises:
        DataLossError: a file is damaged or missing.
        InvalidArgumentError: a table differs from its dump, or no table takes some rows.
        NotFoundError: the dumps have no table of a choice.
    """
    return _Import(folder, tables, options, put, advance).run()


class _Import:
    def __init__(
        self,
        folder: DumpFolder,
        tables: Sequence[BaseTable],
        options: ImportOptions,
        put: Callable[[BaseTable, Rows], None],
        advance: Callable[[int], None],
    ) -> None:
        self._folder, self._options, self._put, self._advance = folder, options, put, advance
        self._tables = {table.name: table for table in tables}
        self._matches = match_tables(folder, tables, options.choices)
        self._results = {name: TableImport(table=name) for name in self._tables}
        self._readers = {n: self._reader_of(n, c) for n, c in self._matches.choices.items()}
        self._skipper = RowReader(None)
        self._unused: Counter[str] = Counter()
        self._num_bytes = 0  # of files that are read

    def _reader_of(self, dump: str, choices: Sequence[Choice]) -> RowReader:
        """Return the reader of a dump whose rows go to several tables of equal segments."""
        configs = [self._tables[choice.table].config for choice in choices]
        first, *others = (layout_of(c, with_state=self._options.with_state) for c in configs)
        for layout in others:
            if layout.segments != first.segments:
                raise InvalidArgumentError(
                    f"[reference dump] expected equal segments in the tables that take rows of "
                    f"{dump!r}, got others in {layout.config.name!r} than in {first.config.name!r}"
                )
        if len(choices) == 1 and choices[0].slot is None:
            self._expect(self._tables[choices[0].table], self._matches.dumps[dump], first)
        return RowReader(first, skips_non_finite=self._options.skips_non_finite)

    def _expect(self, table: BaseTable, dump: DumpTable, layout: RowLayout) -> None:
        """Make room for the rows of a dump; a wrong number in the metadata has a bound."""
        most = sum(dumps.num_bytes for dumps in dump.sets) // layout.record_bytes
        num_rows = most if dump.num_rows is None else min(dump.num_rows, _MOST_COMPRESSED * most)
        if not len(table):
            table._expect_rows(num_rows)

    def run(self) -> DumpImport:
        for dump in self._matches.unused:
            num_rows = dump.num_rows or 0
            for dumps in dump.sets:
                num_rows += sum(map(self._count, dumps.files)) if dumps.kind == "table" else 0
            self._unused.update({dump.name: num_rows} if num_rows else {})
        self._refuse_unused()
        for dumps in self._folder.sets:
            for file, runs in self._runs_of(dumps):
                self._read(file, runs, is_compressed=dumps.kind == "tables")
        self._refuse_unused()  # of slots that no table takes
        return DumpImport(
            tables=list(self._results.values()),
            unused=dict(self._unused),
            num_non_finite=sum(reader.num_non_finite for reader in self._readers.values()),
            filters=[dumps.name for dumps in self._folder.sets if dumps.kind == "filter"],
        )

    def _runs_of(self, dumps: DumpSet) -> Iterator[tuple[str, Runs]]:
        """Yield the files of a dump with rows to take, and the tables in each with their rows."""
        if dumps.kind == "tables":
            for file, metadata in zip(dumps.files, dumps.metadata, strict=True):
                yield file, read_runs(self._folder, metadata)
        for name in self._readers if dumps.kind == "table" else ():
            if dumps in self._matches.dumps[name].sets:
                yield from ((file, [(name, None)]) for file in dumps.files)

    def _read(self, file: str, runs: Runs, *, is_compressed: bool) -> None:
        stream = DumpStream(self._folder, file, is_compressed=is_compressed)
        for name, num_records in runs:
            reader = self._readers.get(name, self._skipper)
            for rows in reader.read(stream, num_records):
                self._take(name, rows)
                self._advance(self._num_bytes + stream.num_bytes)
        stream.check_end()
        self._num_bytes += stream.num_bytes

    def _count(self, file: str) -> int:
        stream = DumpStream(self._folder, file, is_compressed=False)
        return sum(len(rows) for rows in self._skipper.read(stream))

    def _take(self, name: str, rows: Rows) -> None:
        """Put the rows of a dump into its tables."""
        choices = self._matches.choices.get(name, ())
        slots = slots_of(rows.keys)
        for choice in choices:
            part = rows if choice.slot is None else rows.take(slots == choice.slot)
            table = self._tables[choice.table]
            # Segments of tables that share a dump may have other names.
            columns = zip(column_sizes(table.config), part.columns.values(), strict=True)
            self._put(table, Rows(part.keys, part.times, dict(columns)))
            result = self._results[table.name]
            result.dumps += [] if name in result.dumps else [name]
            result.add(part.times)
        if choices and all(choice.slot is not None for choice in choices):
            is_left = ~torch.isin(slots, torch.tensor([choice.slot for choice in choices]))
            for slot, count in Counter(slots[is_left].tolist()).items():
                self._unused[f"{name}:{slot}"] += count

    def _refuse_unused(self) -> None:
        """Refuse rows that no table takes.

        Raises:
            InvalidArgumentError: the message lists them.
        """
        if not self._unused or self._options.allows_unused:
            return
        listed = [
            f"{name} ({count:,} rows)" for name, count in self._unused.most_common(_NUM_NAMES)
        ]
        listed += [f"{len(self._unused) - _NUM_NAMES} more"] * (len(self._unused) > _NUM_NAMES)
        text = (
            f"[reference dump] expected a table of the task for each table of the dumps, got none "
            f"for {', '.join(listed)}; name one with --table DUMP=TABLE, or leave these rows out "
            f"with --allow-unused (tables: {', '.join(self._tables)})"
        )
        for name in self._unused:
            members = merged_tables(name, list(self._tables.values()))
            if members:
                text += (
                    f"; {name} has the rows of {', '.join(members)}, to be told apart by the slots "
                    f"of their ids: --table {name}:SLOT={members[0]}"
                )
        raise InvalidArgumentError(text)
