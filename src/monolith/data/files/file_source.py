"""The blocks of many files, one file after another or several in turns."""

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from monolith.data.columns import Columns, is_untyped
from monolith.data.convert import BadSamples, Origin, to_block
from monolith.data.cursor import State
from monolith.data.files.listing import DataFile, naming
from monolith.data.order import permutation
from monolith.errors import DataLossError

_LOOKED_AT = 8  # files, for the types of columns


@dataclass(frozen=True, slots=True)
class Raw:
    """Columns as a file has them, and where they stand in it."""

    columns: pa.RecordBatch
    origin: Origin


class FileReader(Protocol):
    """An open file."""

    @property
    def position(self) -> int:
        """Where the next block begins, in a unit of the format's own."""

    @property
    def num_bytes(self) -> int:
        """Read so far, of the file's size."""

    def read(self) -> Raw | None:
        """The next block; None at the end."""

    def close(self) -> None:
        """Close the file."""


class FileFormat(Protocol):
    """How a file becomes columns."""

    @property
    def has_schema(self) -> bool:
        """Whether `schema` tells every column; else those of the first samples."""

    @property
    def name(self) -> str:
        """For descriptions."""

    def schema(self, file: DataFile) -> pa.Schema:
        """The columns of a file."""

    def open(
        self, file: DataFile, position: int, columns: Columns, bad: BadSamples, *, ahead: bool
    ) -> FileReader:
        """Open a file at a position that a reader gave; 0 is its begin.

        Args:
            file: the file.
            position: where to begin.
            columns: those that are wanted; a reader may give others too.
            bad: for records that cannot be read.
            ahead: whether the next block is decoded on another thread, while the last one is used.
        """


def check_names(file: DataFile, names: Sequence[str]) -> None:
    """Refuse columns that cannot be told apart.

    Raises:
        DataLossError: two have one name.
    """
    for name in names:
        if names.count(name) > 1:
            raise DataLossError(
                f"[data] {file.path!r}: expected columns of different names, got {name!r} "
                f"{names.count(name)} times; rename them"
            )


def schema_of(files: Sequence[DataFile], file_format: FileFormat) -> pa.Schema:
    """The columns of the first file that has some; their types where they first have values."""
    schema, num_seen = pa.schema([]), 0
    for file in files:
        with naming(file):
            found = file_format.schema(file)
            check_names(file, found.names)
        schema = schema if schema.names else found
        for i, each in enumerate(schema):
            if is_untyped(each.type) and each.name in found.names:
                schema = schema.set(i, found.field(each.name))
        num_seen += bool(found.names)
        is_known = schema.names and not any(is_untyped(each.type) for each in schema)
        if is_known or num_seen == _LOOKED_AT:
            break
    return schema


@dataclass(frozen=True)
class FileSource:
    """A stage without a stage before it.

    Args:
        files: in order.
        format: of all of them.
        columns: what to take.
        bad: what to do with bad samples.
        interleave: how many files are read in turns.
        shuffle_seed: files are read in an order of this seed and of the epoch; None: as given.
        reads_ahead: of each open file a block is decoded ahead, and of the file that comes next.
    """

    files: Sequence[DataFile]
    format: FileFormat
    columns: Columns
    bad: BadSamples
    interleave: int = 1
    shuffle_seed: int | None = None
    reads_ahead: bool = False

    def describe(self) -> list[str]:
        """See `Stage`."""
        names = "".join(f"{file.path}\n{file.size}\n" for file in self.files)
        digest = hashlib.sha256(names.encode()).hexdigest()[:16]
        order = "" if self.shuffle_seed is None else f", shuffled by {self.shuffle_seed}"
        return [
            f"{self.format.name}: {len(self.files)} files {digest}, "
            f"interleave {self.interleave}{order}"
        ]

    def shard(self, index: int, count: int) -> "FileSource":
        """Every count-th file."""
        return replace(self, files=self.files[index::count])

    def open(self, epoch: int, state: State | None = None) -> "FileCursor":
        """See `Stage`."""
        return FileCursor(self, epoch, state)


class FileCursor:
    """A pass over the files."""

    def __init__(self, source: FileSource, epoch: int, state: State | None) -> None:
        self._source = source
        count = len(source.files)
        seed = source.shuffle_seed
        self._order = range(count) if seed is None else permutation(count, seed, epoch).tolist()
        self._next = 0
        self._turn = 0
        self._open: list[tuple[int, FileReader]] = []  # number in the order
        self._upcoming: tuple[int, FileReader] | None = None  # opened before its turn
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
        return self._source.files[self._order[number]]

    def _open_file(self, number: int, position: int) -> None:
        if self._upcoming is not None and self._upcoming[0] == number:
            opened, self._upcoming = self._upcoming, None
        else:
            opened = number, self._reader(number, position)
        self._open.append(opened)

    def _reader(self, number: int, position: int) -> FileReader:
        file, source = self._file(number), self._source
        file.check_size(file.size_now())
        with naming(file):
            return source.format.open(
                file, position, source.columns, source.bad, ahead=source.reads_ahead
            )

    def _look_ahead(self) -> None:
        """Open the file that comes next, so that its first block is decoded; once."""
        if self._source.reads_ahead and self._looked_at < self._next < len(self._order):
            self._looked_at = self._next
            with contextlib.suppress(Exception):  # told when its turn comes: it is opened again
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
        opened = [[number, reader.position] for number, reader in self._open]
        return {"next": self._next, "turn": self._turn, "open": opened}

    def progress(self) -> tuple[int, int]:
        """See `Cursor`."""
        done = self._bytes_of_closed + sum(reader.num_bytes for _, reader in self._open)
        return done, sum(file.size for file in self._source.files)

    def close(self) -> None:
        """See `Cursor`."""
        for _, reader in self._open:
            reader.close()
        if self._upcoming is not None:
            self._upcoming[1].close()
        self._open.clear()
