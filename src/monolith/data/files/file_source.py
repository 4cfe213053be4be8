"""Blocks of many files, one file after another or several files in turns."""

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from monolith.data.columns import Columns, is_untyped
from monolith.data.convert import BadSamples, Origin, to_block
from monolith.data.cursor import Cursor, State
from monolith.data.files.listing import DataFile, naming
from monolith.data.order import permutation
from monolith.data.stages import ShardSamples
from monolith.errors import DataLossError

_LOOKED_AT = 8  # number of files that are read for the types of columns


@dataclass(frozen=True, slots=True)
class Raw:
    """Columns of a file before conversion, and their position in the file."""

    columns: pa.RecordBatch
    origin: Origin


class FileReader(Protocol):
    """Reader of an open file."""

    @property
    def position(self) -> int:
        """Position of the next block, in a unit of the format."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the file that were read so far."""

    def read(self) -> Raw | None:
        """Return the next block; None at the end."""

    def close(self) -> None:
        """Close the file."""


class FileFormat(Protocol):
    """Format of files: how columns are read."""

    @property
    def has_schema(self) -> bool:
        """Whether `schema` gives all columns of a file, or those of the first samples."""

    @property
    def name(self) -> str:
        """Name of the format, for descriptions."""

    def schema(self, file: DataFile) -> pa.Schema:
        """Return the columns of a file."""

    def open(
        self, file: DataFile, position: int, columns: Columns, bad: BadSamples, *, ahead: bool
    ) -> FileReader:
        """Open a file at a position of a reader; position 0 is the begin.

        Args:
            file: file to open.
            position: position of the first block.
            columns: columns to read; a reader may return more columns.
            bad: handling of records that cannot be read.
            ahead: whether another thread decodes the next block while the caller uses the last one.
        """


def check_names(file: DataFile, names: Sequence[str]) -> None:
    """Refuse columns with equal names.

    Raises:
        DataLossError: two columns have the same name.
    """
    for name in names:
        if names.count(name) > 1:
            raise DataLossError(
                f"[data] {file.path!r}: expected columns of different names, got {name!r} "
                f"{names.count(name)} times; rename them"
            )


def schema_of(files: Sequence[DataFile], file_format: FileFormat) -> pa.Schema:
    """Return the columns of the first file that has columns, with types from the first values."""
    schema, num_seen = pa.schema([]), 0
    for file in files:
        with naming(file):
            file_schema = file_format.schema(file)
            check_names(file, file_schema.names)
        schema = schema if schema.names else file_schema
        for i, field in enumerate(schema):
            if is_untyped(field.type) and field.name in file_schema.names:
                schema = schema.set(i, file_schema.field(field.name))
        num_seen += bool(file_schema.names)
        is_known = schema.names and not any(is_untyped(field.type) for field in schema)
        if is_known or num_seen == _LOOKED_AT:
            break
    return schema


@dataclass(frozen=True)
class FileSource:
    """Source stage of the blocks of files.

    Args:
        files: files in order.
        format: format of the files.
        columns: columns to read.
        bad: handling of bad samples.
        interleave: number of files that are read in turns.
        shuffle_seed: seed of the file order, which also depends on the epoch; None keeps the given
            order.
        reads_ahead: whether a block of each open file, and of the next file, is decoded ahead.
        worker: number of a worker, and number of workers that share the files. A worker reads every
            count-th file, or every count-th sample if there are fewer files than workers.
    """

    files: Sequence[DataFile]
    format: FileFormat
    columns: Columns
    bad: BadSamples
    interleave: int = 1
    shuffle_seed: int | None = None
    reads_ahead: bool = False
    worker: tuple[int, int] = (0, 1)

    @property
    def own_files(self) -> Sequence[DataFile]:
        """Files that the worker reads."""
        index, count = self.worker
        return self.files[index::count] if len(self.files) >= count else self.files

    @property
    def _of_samples(self) -> ShardSamples | None:
        """Stage of every count-th sample of all files; None if the worker has its own files."""
        if len(self.files) >= self.worker[1]:
            return None
        return ShardSamples(replace(self, worker=(0, 1)), *self.worker)

    def describe(self) -> list[str]:
        """See `Stage`."""
        if self._of_samples is not None:
            return self._of_samples.describe()
        names = "".join(f"{file.path}\n{file.size}\n" for file in self.own_files)
        digest = hashlib.sha256(names.encode()).hexdigest()[:16]
        order = "" if self.shuffle_seed is None else f", shuffled by {self.shuffle_seed}"
        return [
            f"{self.format.name}: {len(self.own_files)} files {digest}, "
            f"interleave {self.interleave}{order}"
        ]

    def open(self, epoch: int, state: State | None = None) -> Cursor:
        """See `Stage`."""
        if self._of_samples is not None:
            return self._of_samples.open(epoch, state)
        return FileCursor(self, epoch, state)

    def order(self, epoch: int) -> Sequence[int]:
        """Return the numbers of the worker's files in the order of an epoch."""
        count, seed = len(self.own_files), self.shuffle_seed
        return range(count) if seed is None else permutation(count, seed, epoch).tolist()

    def files_left(self, epoch: int, state: State | None) -> list[DataFile]:
        """Return the files that a cursor of an epoch reads from a state on."""
        if state is None:
            return list(self.own_files)
        if self._of_samples is not None:
            state = state["source"]
        order = self.order(epoch)
        numbers = [number for number, _ in state["open"]] + [*range(state["next"], len(order))]
        return [self.own_files[order[number]] for number in numbers]


class FileCursor:
    """One pass over the files."""

    def __init__(self, source: FileSource, epoch: int, state: State | None) -> None:
        self._source, self._files, self._order = source, source.own_files, source.order(epoch)
        self._next = 0
        self._turn = 0
        self._open: list[tuple[int, FileReader]] = []  # number of the file and its reader
        self._upcoming: tuple[int, FileReader] | None = None  # next file, opened ahead
        self._looked_at = 0
        self._bytes_of_closed = 0
        if state is not None:
            self._next, self._turn = state["next"], state["turn"]
            try:
                for number, position in state["open"]:
                    self._open_file(number, position)
            except BaseException:
                self.close()
                raise
            closed = set(range(self._next)) - {number for number, _ in self._open}
            self._bytes_of_closed = sum(self._file(number).size for number in closed)

    def _file(self, number: int) -> DataFile:
        return self._files[self._order[number]]

    def _open_file(self, number: int, position: int) -> None:
        if self._upcoming is not None and self._upcoming[0] == number:
            entry, self._upcoming = self._upcoming, None
        else:
            entry = number, self._reader(number, position)
        self._open.append(entry)

    def _reader(self, number: int, position: int) -> FileReader:
        file, source = self._file(number), self._source
        file.check_size(file.size_now())
        with naming(file):
            return source.format.open(
                file, position, source.columns, source.bad, ahead=source.reads_ahead
            )

    def _look_ahead(self) -> None:
        """Open the next file once, so that its first block is decoded."""
        if self._source.reads_ahead and self._looked_at < self._next < len(self._order):
            self._looked_at = self._next
            with contextlib.suppress(Exception):  # a second open, at its turn, raises the error
                self._upcoming = self._next, self._reader(self._next, 0)

    def next(self) -> pa.RecordBatch | None:
        """See `Cursor`."""
        while True:
            while self._next < len(self._order) and len(self._open) < self._source.interleave:
                self._open_file(self._next, 0)
                self._next += 1
            if not self._open:
                return None
            self._look_ahead()
            self._turn %= len(self._open)
            block = self._read(self._turn)
            if block is not None and block.num_rows:
                return block

    def _read(self, turn: int) -> pa.RecordBatch | None:
        number, reader = self._open[turn]
        with naming(self._file(number)):
            raw = reader.read()
        if raw is None:
            reader.close()
            del self._open[turn]
            self._bytes_of_closed += self._file(number).size
            return None
        self._turn += 1
        return to_block(raw.columns, self._source.columns, raw.origin, self._source.bad)

    def state(self) -> State:
        """See `Cursor`."""
        positions = [[number, reader.position] for number, reader in self._open]
        return {"next": self._next, "turn": self._turn, "open": positions}

    def progress(self) -> tuple[int, int]:
        """See `Cursor`."""
        position = self._bytes_of_closed + sum(reader.num_bytes for _, reader in self._open)
        return position, sum(file.size for file in self._files)

    def close(self) -> None:
        """See `Cursor`."""
        for _, reader in self._open:
            reader.close()
        if self._upcoming is not None:
            self._upcoming[1].close()
        self._open.clear()
