"""Queue of files that workers share while they read."""

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from monolith.data.columns import Columns
from monolith.data.convert import BadSamples
from monolith.data.cursor import State
from monolith.data.files.file_source import FileCursor, FileFormat, FileSource
from monolith.data.files.listing import DataFile, file_at, find_files
from monolith.data.str_queue import StrQueue
from monolith.errors import FailedPreconditionError, NotFoundError


class FileQueue:
    """Hands out the files of patterns, each file once, in the order of patterns and names.

    A pattern is expanded when its turn comes; a pattern without a file is skipped. Iterating over
    the queue gives names. Workers read by `reader`: the queue remembers the files of each worker,
    so that a restarted worker continues with the same files. Thread-safe.

        state_dict  patterns, names: patterns and files that are still waiting
        handed_out: worker -> its files

    Args:
        patterns: files, globs or folders.
        capacity: greatest number of waiting names, and of patterns.
        name: name of the queue, for messages.

    Example:
        >>> import tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in ("a.0", "a.1", "c.0"):
        ...     _ = (folder / name).write_text("")
        >>> queue = FileQueue([f"{folder}/{letter}.*" for letter in "abc"])
        >>> [pathlib.Path(name).name for name in queue]
        ['a.0', 'a.1', 'c.0']
    """

    def __init__(
        self, patterns: Sequence[str], *, capacity: int = 100_000, name: str = "files"
    ) -> None:
        self._section = threading.RLock()
        self._patterns = StrQueue(patterns, self._section, None, capacity, f"patterns of {name}")
        self._names = StrQueue(None, self._section, self._expand, capacity, name)
        self._handed_out: dict[str, list[str]] = {}

    def _expand(self) -> tuple[list[str], bool]:
        while True:
            pattern, is_end = self._patterns.dequeue()
            if is_end:
                return [], True
            with contextlib.suppress(NotFoundError):
                return [_url(file) for file in find_files(pattern)], False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        name, is_end = self._names.dequeue()
        if is_end:
            raise StopIteration
        return name

    def reader(self, worker: str) -> "QueueReader":
        """Return the files of a worker, for a source such as `parquet`."""
        return QueueReader(self, worker)

    def file(self, worker: str, number: int) -> str | None:
        """Return a file of a worker by number, or hand out the next file; None at the end.

        Raises:
            FailedPreconditionError: the worker has fewer files.
        """
        with self._section:
            names = self._handed_out.setdefault(worker, [])
            if number > len(names):
                raise FailedPreconditionError(
                    f"[FileQueue] expected that worker {worker!r} got {number} files, got "
                    f"{len(names)}; save the state of the queue after those of the workers"
                )
            if number < len(names):
                return names[number]
            name = next(self, None)
            if name is not None:
                names.append(name)
            return name

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the queue as JSON. Save the states of the workers first."""
        with self._section:
            handed_out = {worker: list(names) for worker, names in self._handed_out.items()}
            return {
                "patterns": self._patterns.state_dict(),
                "names": self._names.state_dict(),
                "handed_out": handed_out,
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace waiting files and files of the workers by those of a saved state."""
        with self._section:
            self._patterns.load_state_dict(state["patterns"])
            self._names.load_state_dict(state["names"])
            self._handed_out = {worker: list(got) for worker, got in state["handed_out"].items()}


def _url(file: DataFile) -> str:
    return file.path if file.is_local else str(file.system.url(file.path))


@dataclass(frozen=True)
class QueueReader:
    """Files of one worker of a queue."""

    queue: FileQueue
    worker: str


@dataclass(frozen=True)
class QueueSource:
    """Source stage of the samples of a worker's files, one file after another.

    The state is the number of the current file among those of the worker, and the position in it.
    """

    reader: QueueReader
    format: FileFormat
    columns: Columns
    bad: BadSamples
    reads_ahead: bool = False

    def describe(self) -> list[str]:
        """See `Stage`."""
        return [f"{self.format.name}: files of a queue, worker {self.reader.worker!r}"]

    def open(self, epoch: int, state: State | None = None) -> "_QueueCursor":
        """See `Stage`.

        Raises:
            ValueError: the epoch is not the first one.
        """
        if epoch > 0:
            raise ValueError("[data] expected one epoch of a queue of files; do not repeat it")
        return _QueueCursor(self, state)


class _QueueCursor:
    def __init__(self, source: QueueSource, state: State | None) -> None:
        self._source = source
        self._number, self._size, self._bytes = 0, 0, 0
        self._file: FileCursor | None = None
        if state is not None:
            self._number, self._size, self._bytes = state["number"], state["size"], state["bytes"]
        if state is not None and state["file"] is not None:
            self._file = self._open(state["file"])

    def _open(self, state: State | None) -> FileCursor | None:
        source = self._source
        name = source.reader.queue.file(source.reader.worker, self._number)
        if name is None:
            return None
        file = file_at(name)
        if state is not None and file.size != self._size:
            raise FailedPreconditionError(
                f"[data] expected file {name!r} of {self._size} bytes, as before, got {file.size}; "
                "do not change files that are read"
            )
        self._size = file.size
        files = FileSource(
            [file], source.format, source.columns, source.bad, reads_ahead=source.reads_ahead
        )
        return FileCursor(files, 0, state)

    def next(self) -> pa.RecordBatch | None:
        """See `Cursor`."""
        while True:
            if self._file is None:
                self._file = self._open(None)
            if self._file is None:
                return None
            block = self._file.next()
            if block is not None:
                return block
            self._file.close()
            self._file = None
            self._number += 1
            self._bytes += self._size

    def state(self) -> State:
        """See `Cursor`."""
        inside = None if self._file is None else self._file.state()
        return {
            "number": self._number,
            "size": self._size,
            "bytes": self._bytes,
            "file": inside,
        }

    def progress(self) -> tuple[int, int]:
        """See `Cursor`. The total is 0, because the number of files is unknown."""
        return self._bytes + (0 if self._file is None else self._file.progress()[0]), 0

    def close(self) -> None:
        """See `Cursor`."""
        if self._file is not None:
            self._file.close()
