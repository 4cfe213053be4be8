"""Files of a source: local paths, globs, folders, and any store of fsspec."""

import contextlib
import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from monolith.errors import DataLossError, FailedPreconditionError, NotFoundError
from monolith.util.stores import open_store

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file with its size at the time of the listing."""

    system: Any
    path: str
    size: int

    @property
    def is_local(self) -> bool:
        """Whether the file is on a disk of this machine."""
        return isinstance(self.system, LocalFileSystem)

    def open(self) -> pa.NativeFile:
        """Open the file for random reads.

        Raises:
            NotFoundError: the file was removed.
            DataLossError: the file cannot be opened.
        """
        try:
            # Arrow reads the disk directly; not mapped, because the file may shrink.
            if self.is_local:
                return pa.OSFile(self.path)
            return pa.PythonFile(self.system.open(self.path, "rb"), "r")
        except FileNotFoundError as error:
            raise NotFoundError(
                f"[data] expected file {self.path!r}, which was there when the source was made; "
                "it is gone"
            ) from error
        except OSError as error:  # Arrow does not always name the file
            raise DataLossError(f"[data] {self.path!r} cannot be opened: {error}") from error

    def size_now(self) -> int:
        """Return the current size of the file.

        Raises:
            NotFoundError: the file was removed.
            DataLossError: the system does not know the size.
        """
        return _size(self.system, self.path)

    def check_size(self, num_bytes: int) -> None:
        """Refuse a file whose size has changed since it was found.

        Raises:
            FailedPreconditionError: `num_bytes` differs from the size.
        """
        if num_bytes != self.size:
            raise FailedPreconditionError(
                f"[data] expected file {self.path!r} of {self.size} bytes, as when the source was "
                f"made, got {num_bytes}; do not change files that are read"
            )


def _size(system: Any, path: str) -> int:
    try:
        return int(system.size(path) or 0)
    except FileNotFoundError as error:
        raise NotFoundError(f"[data] expected file {path!r}; it is gone") from error
    except OSError as error:  # such as a link to itself
        raise DataLossError(f"[data] expected a file at {path!r}, got {error}") from error


def file_at(path: str) -> DataFile:
    """Return the file of exactly this name.

    Raises:
        NotFoundError: the file does not exist.
    """
    system, inside = open_store(path)
    return DataFile(system, inside, DataFile(system, inside, 0).size_now())


def find_files(paths: Paths) -> list[DataFile]:
    """Expand paths in their order: a file, a glob, or all files below a folder, sorted.

    Globs and folders leave out files and folders whose names begin with `.` or `_`. In local
    folders, links to folders are followed; each folder is read once.

    Raises:
        NotFoundError: a path matches no file, or there is no path.
        DataLossError: an entry is no file, such as a link to itself.

    Example:
        >>> import tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "b.csv").write_text("1"), (folder / "a.csv").write_text("1")
        >>> [pathlib.Path(file.path).name for file in find_files(folder)]
        ['a.csv', 'b.csv']
    """
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    files: list[DataFile] = []
    for location in paths:
        system, path = open_store(os.fspath(location))
        matches = _expand(system, path)
        if not matches:
            raise NotFoundError(
                f"[data] expected at least one file at {os.fspath(location)!r}, got none"
            )
        files += [DataFile(system, match, _size(system, match)) for match in matches]
    if not files:
        raise NotFoundError("[data] expected at least one path, got none")
    return files


def _expand(system: Any, path: str) -> list[str]:
    is_glob = any(mark in path for mark in "*?[")
    if is_glob and not ("[" in path and system.exists(path)):
        names = [name for name in system.glob(path) if system.isfile(name)]
        folder = re.split(r"[*?\[]", path)[0].rsplit("/", 1)[0]
    elif system.isdir(path):
        is_local = isinstance(system, LocalFileSystem)
        names, folder = _walk(path) if is_local else system.find(path), path.rstrip("/")
    else:
        return [path] if system.exists(path) else []
    return sorted(name for name in names if not _is_hidden(name[len(folder) :]))


def _walk(folder: str) -> list[str]:
    """Return all files below a folder except in hidden folders; follows links, reads a folder once.

    So links that lead back up end, and a link `latest` to a sibling folder adds no samples.
    """
    names: list[str] = []
    places: set[str] = set()
    waiting = deque([folder])
    while waiting:
        links: list[str] = []
        for here, folders, files in os.walk(waiting.popleft()):
            place = os.path.realpath(here)
            if place in places:
                folders.clear()
                continue
            places.add(place)
            folders[:] = [folder for folder in folders if not _is_hidden(folder)]
            names += [f"{here.rstrip('/')}/{file}" for file in files]
            paths = [f"{here}/{folder}" for folder in folders]
            links += [path for path in paths if os.path.islink(path)]
        waiting += [link for link in sorted(links) if not _leads_up(link)]
    return names


def _leads_up(link: str) -> bool:
    """Whether a link leads to one of the folders that contain the link."""
    target, here = os.path.realpath(link), os.path.realpath(os.path.dirname(link))
    return f"{here}/".startswith(f"{target.rstrip('/')}/")


def _is_hidden(path: str) -> bool:
    return any(part.startswith((".", "_")) for part in path.split("/"))


@contextlib.contextmanager
def naming(file: DataFile) -> Iterator[None]:
    """Add the file name to errors of Arrow."""
    try:
        yield
    except UnicodeDecodeError as error:  # raised by a schema, because Arrow does not check names
        raise DataLossError(
            f"[data] {file.path!r}: expected names of columns in UTF-8, got {error}; rename them"
        ) from error
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, DataLossError | FileNotFoundError):
            raise
        raise DataLossError(f"[data] {file.path!r} cannot be read: {error}") from error
