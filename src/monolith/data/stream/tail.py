"""`tail`: the samples of a folder whose files appear and grow."""

import fnmatch
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from monolith.data.columns import Columns
from monolith.data.convert import BadSamples
from monolith.data.cursor import BlockLog, SourceWait, State, settled
from monolith.data.files.file_source import FileFormat, schema_of
from monolith.data.files.listing import find_files
from monolith.data.files.parquet import ArrowFormat, ParquetFormat
from monolith.data.files.text import JsonLinesFormat
from monolith.data.pipeline import Pipeline
from monolith.data.records.decoder import RecordFormat
from monolith.data.records.record_columns import RecordColumns
from monolith.data.sources import OnError
from monolith.data.stream.growing import (
    Chunk,
    GrowingReader,
    LineReader,
    RecordReader,
    WholeFileReader,
)
from monolith.errors import DataLossError, FailedPreconditionError, NotFoundError

_POLL_SECONDS = 0.02  # between two looks into a folder that is quiet
_SHARE_OF_LOOKS = 20  # a look that takes long is followed by a pause of so many times its time


def tail(
    folder: str | os.PathLike[str],
    file_format: str | RecordFormat = "jsonl",
    *,
    pattern: str = "*",
    columns: Columns | None = None,
    label: str | Sequence[str] | None = None,
    types: Mapping[str, pa.DataType | str] | None = None,
    on_error: OnError = "raise",
) -> Pipeline:
    r"""Read the samples of a folder without end: its files, what is added to them, and new files.

    A file is a partition with a position of its own; the positions are the state of the pipeline.
    JSON lines and records may be appended to files: a line or record counts once all its bytes are
    there. Files of the other formats appear as a whole: write them under a name that begins with
    `.` or `_`, which is not read, and rename them. Files may be removed once a checkpoint has their
    samples.

    Growing files are read in turns, and whole files in the order of their names. New samples are
    seen after about 20 ms.

    Args:
        folder: local folder; its folders are read too.
        file_format: "jsonl", "parquet", "arrow", or the `RecordFormat` of uncompressed records.
        pattern: pattern of `fnmatch` for the names of the files.
        columns: columns to read; None chooses columns by the files that are there.
        label: name of the label column, or several names; only without `columns`.
        types: types of columns of JSON lines, as in `data.jsonl`.
        on_error: whether a sample that breaks a rule raises an error, or is skipped and counted. A
            file in which the next record cannot be located is an error in both cases.

    Raises:
        NotFoundError: the folder does not exist, or has no file to choose columns by.
        ValueError: the format is unknown, or two arguments exclude each other.

    Example:
        >>> import tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.jsonl").write_text('{"user": 7}\n{"user": 8}\n')
        >>> stream = tail(folder, columns=Columns(["user"])).batch(64, seconds=0.05)
        >>> with iter(stream) as batches:
        ...     next(batches).features["user"].to_lists()
        [[7], [8]]
    """
    path = os.fspath(folder)
    if not os.path.isdir(path):
        raise NotFoundError(f"[data.stream.tail] expected a local folder, got {path!r}")
    if on_error not in ("raise", "skip"):
        raise ValueError(
            f'[data.stream.tail] expected on_error "raise" or "skip", got {on_error!r}'
        )
    opened = _format_of(file_format, types or {})
    if columns is not None and label is not None:
        raise ValueError("[data.stream.tail] expected columns or label, got both")
    inferred = frozenset[str]()
    if columns is None:
        columns = Columns.infer(_schema(path, pattern, opened), label=label)
        inferred = frozenset(columns.names()) - {columns.weight, columns.time}
    if isinstance(opened, RecordFormat):
        RecordColumns(columns)  # refuses columns that records cannot give
    bad = BadSamples(on_error == "skip")
    source = TailSource(os.path.abspath(path), pattern, opened, columns, bad)
    return Pipeline(source, columns, bad, inferred=inferred)


def _format_of(
    file_format: str | RecordFormat, types: Mapping[str, pa.DataType | str]
) -> FileFormat:
    if types and file_format != "jsonl":
        raise ValueError(f"[data.stream.tail] expected types with jsonl only, got {file_format!r}")
    if isinstance(file_format, RecordFormat):
        if file_format.compression not in ("auto", "none"):
            raise ValueError(
                "[data.stream.tail] expected records without compression, got "
                f"{file_format.compression!r}"
            )
        return file_format
    formats: dict[str, FileFormat] = {
        "jsonl": JsonLinesFormat(types),
        "parquet": ParquetFormat(),
        "arrow": ArrowFormat(),
    }
    if file_format not in formats:
        raise ValueError(
            f"[data.stream.tail] expected a RecordFormat or a format of {sorted(formats)}, got "
            f"{file_format!r}"
        )
    return formats[file_format]


def _schema(folder: str, pattern: str, file_format: FileFormat) -> pa.Schema:
    try:
        files = [
            f for f in find_files(folder) if fnmatch.fnmatch(os.path.basename(f.path), pattern)
        ]
        schema = schema_of(files, file_format)
    except (NotFoundError, FailedPreconditionError) as error:
        raise NotFoundError(
            f"[data.stream.tail] expected files in {folder!r} that do not change while columns are "
            "chosen by them; name the columns with columns="
        ) from error
    if not schema.names:
        raise NotFoundError(
            f"[data.stream.tail] expected a sample in {folder!r} to choose columns by, got none; "
            "name the columns with columns="
        )
    return schema


@dataclass(frozen=True)
class TailSource:
    """Source stage of the samples of a folder; see `tail`.

    Args:
        folder: absolute path of the folder.
        pattern: pattern of the names of files.
        format: format of the files.
        columns: columns to read.
        bad: handling of bad samples.
        wait: wait of the iteration.
    """

    folder: str
    pattern: str
    format: FileFormat
    columns: Columns
    bad: BadSamples
    wait: SourceWait | None = field(default=None, repr=False, compare=False)
    is_stream: ClassVar[bool] = True

    def describe(self) -> list[str]:
        """See `Stage`."""
        return [f"{self.format.name}: tail of {self.folder}, {self.pattern}"]

    def reader(self) -> GrowingReader:
        """Return a reader of the files."""
        if isinstance(self.format, JsonLinesFormat):
            return LineReader(self.columns, self.format.types, self.bad)
        if isinstance(self.format, RecordFormat):
            return RecordReader(self.columns, self.format, self.bad)
        return WholeFileReader(self.columns, self.format, self.bad)

    def open(self, epoch: int, state: State | None = None) -> "TailCursor":
        """See `Stage`."""
        return TailCursor(self, state)


@dataclass(slots=True)
class _Tailed:
    """A file: position of its next sample (None after a whole file), bytes seen, number on disk."""

    position: int | None = 0
    size: int = 0
    inode: int | None = None


class TailCursor:
    """One pass over a folder.

    The state of the cursor:

        positions   name of a file -> [position, bytes seen]; the position after a whole file is
                    None
        blocks      blocks that were given after the state: [name, begin, end]

    Args:
        source: stage of the folder.
        state: state of a cursor.
    """

    def __init__(self, source: TailSource, state: State | None) -> None:
        self._source, self._reader = source, source.reader()
        self._wait = source.wait or SourceWait()
        self._log = BlockLog()
        self._files: dict[str, _Tailed] = {}
        self._pending: deque[str] = deque()  # files with samples, the next one first
        self._replayed: deque[Any] = deque()  # blocks to give once more
        self._num_bytes, self._next_look, self._has_looked = 0, 0.0, False
        if state is not None:
            positions = state["positions"].items()
            self._files = {name: _Tailed(position, size) for name, (position, size) in positions}
            self._replayed = deque(settled(state["blocks"]))

    def next(self) -> pa.RecordBatch:
        """See `Cursor`; there is no end."""
        while True:
            block = self._replay() if self._replayed else self._read()
            if block is not None:
                return block

    def _replay(self) -> pa.RecordBatch | None:
        name, begin, end = self._replayed[0]
        tailed = self._files.setdefault(name, _Tailed())
        chunk = self._reader.read(self._path(name), begin, end)
        if chunk is None or chunk.end != end:
            raise DataLossError(
                f"[data.stream.tail] expected samples from {begin} to {end} in file "
                f"{self._path(name)!r}, as when the state was taken, got others; do not change "
                "files that are read"
            )
        self._replayed.popleft()
        return self._give(name, tailed, chunk)

    def _read(self) -> pa.RecordBatch | None:
        """Read the file whose turn it is, or wait for samples; None if there was no sample."""
        if time.monotonic() >= self._next_look:
            self._look()
        if not self._pending:
            self._wait.pause(max(0.0, self._next_look - time.monotonic()))
            return None
        name = self._pending[0]
        tailed, is_appended = self._files[name], self._reader.is_appended
        chunk = self._reader.read(self._path(name), tailed.position or 0, tailed.size)
        if is_appended or (chunk is not None and chunk.end is None):
            self._pending.popleft()
        if chunk is None:  # the last line or record is not whole
            return None
        if is_appended and chunk.end is not None and chunk.end < tailed.size:
            self._pending.append(name)  # after the other files
        return self._give(name, tailed, chunk)

    def _give(self, name: str, tailed: _Tailed, chunk: Chunk) -> pa.RecordBatch | None:
        begin, tailed.position = tailed.position or 0, chunk.end
        tailed.size = max(tailed.size, chunk.end or 0) if self._reader.is_appended else tailed.size
        self._num_bytes += max(0, (chunk.end or begin) - begin)
        self._log.note([name, begin, chunk.end])
        return chunk.block

    def _look(self) -> None:
        """Find the files that are new, have grown or are gone."""
        begin = time.monotonic()
        files = dict(_files_of(self._source.folder, self._source.pattern))
        for name in [name for name in self._files if name not in files]:
            self._forget(name)
        is_first, self._has_looked = not self._has_looked, True
        waiting = set(self._pending)
        for name in sorted(files):
            tailed, (size, inode) = self._files.get(name, _Tailed()), files[name]
            has_grown = self._check(name, tailed, size, inode) or name not in self._files
            tailed.size, tailed.inode = size, inode
            self._files[name] = tailed
            if (has_grown or is_first) and name not in waiting and self._has_more(tailed):
                self._pending.append(name)
        if not self._reader.is_appended:
            self._pending = deque(sorted(self._pending))
        now = time.monotonic()
        self._next_look = now + max(_POLL_SECONDS, _SHARE_OF_LOOKS * (now - begin))

    def _has_more(self, tailed: _Tailed) -> bool:
        if not self._reader.is_appended:
            return tailed.position is not None
        return (tailed.position or 0) < tailed.size

    def _check(self, name: str, tailed: _Tailed, size: int, inode: int) -> bool:
        """Return whether a file has grown.

        Raises:
            DataLossError: the file was truncated, replaced or, if it appears as a whole, changed.
        """
        path = self._path(name)
        if tailed.inode not in (None, inode):
            raise DataLossError(
                f"[data.stream.tail] expected file {path!r} to stay the same file, got another one "
                "of its name; give new files new names"
            )
        if size < tailed.size:
            raise DataLossError(
                f"[data.stream.tail] expected file {path!r} of at least {tailed.size} bytes, as "
                f"many as it had, got {size}; do not truncate files that are read"
            )
        if size > tailed.size > 0 and not self._reader.is_appended:
            raise DataLossError(
                f"[data.stream.tail] expected file {path!r} of {tailed.size} bytes, as when it "
                f"appeared, got {size}; write such files under a name that begins with a dot, and "
                "rename them"
            )
        return size > tailed.size

    def _forget(self, name: str) -> None:
        """Forget a file that is gone.

        Raises:
            DataLossError: the file has samples that were not read.
        """
        tailed = self._files[name]
        if self._has_more(tailed):
            raise DataLossError(
                f"[data.stream.tail] expected file {self._path(name)!r} until its samples are "
                f"read, got none at position {tailed.position} of {tailed.size} bytes; remove "
                "files after their samples are in a checkpoint"
            )
        del self._files[name]
        if name in self._pending:
            self._pending.remove(name)

    def _path(self, name: str) -> str:
        return os.path.join(self._source.folder, name)

    def state(self) -> State:
        """See `Cursor`."""
        positions = {name: [tailed.position, tailed.size] for name, tailed in self._files.items()}
        return {"positions": positions, "blocks": self._log.later()}

    def progress(self) -> tuple[int, int]:
        """Return the bytes or samples that were read; the total is unknown."""
        return self._num_bytes, 0

    def close(self) -> None:
        """See `Cursor`."""
        self._reader.close()


def _files_of(folder: str, pattern: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the files below a folder by their relative names, with size and number on disk.

    Files and folders whose names begin with `.` or `_` are left out; links to folders are not
    followed.
    """
    waiting = [""]
    while waiting:
        inside = waiting.pop()
        try:
            entries = list(os.scandir(os.path.join(folder, inside)))
        except FileNotFoundError:  # removed meanwhile
            continue
        for entry in entries:
            if entry.name.startswith((".", "_")):
                continue
            name = os.path.join(inside, entry.name)
            try:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(name)
                elif fnmatch.fnmatch(entry.name, pattern) and entry.is_file():
                    status = entry.stat()
                    yield name, (status.st_size, status.st_ino)
            except FileNotFoundError:
                continue
