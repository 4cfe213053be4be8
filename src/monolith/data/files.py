"""The files of a source: local paths, globs, directories, and any store that fsspec knows."""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from monolith.errors import DataLossError, FailedPreconditionError, NotFoundError

__all__ = ["DataFile", "Paths", "file_at", "find_files", "naming"]

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file, as it was when it was found."""

    system: Any
    path: str
    size: int

    @property
    def is_local(self) -> bool:
        """Whether it is on a disk of this machine."""
        return isinstance(self.system, LocalFileSystem)

    def open(self) -> pa.NativeFile:
        """Open it for reads anywhere.

        Raises:
            NotFoundError: it is gone.
        """
        try:
            if (
                self.is_local
            ):  # without Python between Arrow and the disk; not mapped: it may shrink
                return pa.OSFile(self.path)
            return pa.PythonFile(self.system.open(self.path, "rb"), "r")
        except FileNotFoundError as error:
            raise NotFoundError(
                f"[data] expected file {self.path!r}, which was there when the source was made; "
                "it is gone"
            ) from error

    def size_now(self) -> int:
        """Its size at the moment.

        Raises:
            NotFoundError: it is gone.
        """
        try:
            return int(self.system.size(self.path))
        except FileNotFoundError as error:
            raise NotFoundError(f"[data] expected file {self.path!r}; it is gone") from error

    def check_size(self, num_bytes: int) -> None:
        """Refuse a file that is shorter or longer than when it was found.

        Raises:
            FailedPreconditionError: `num_bytes` is another size.
        """
        if num_bytes != self.size:
            raise FailedPreconditionError(
                f"[data] expected file {self.path!r} of {self.size} bytes, as when the source was "
                f"made, got {num_bytes}; do not change files that are read"
            )


def file_at(path: str) -> DataFile:
    """The file of exactly this name.

    Raises:
        NotFoundError: there is none.
    """
    system, inside = fsspec.core.url_to_fs(path)
    return DataFile(system, inside, DataFile(system, inside, 0).size_now())


def find_files(paths: Paths) -> list[DataFile]:
    """Expand paths in their order: a file, a glob, or all files below a directory, sorted.

    Files and folders whose names begin with `.` or `_` are left out of globs and directories.

    Raises:
        NotFoundError: a path matches no file, or there is no path.

    Example:
        >>> import tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "b.csv").write_text("1"), (folder / "a.csv").write_text("1")
        >>> [pathlib.Path(file.path).name for file in find_files(folder)]
        ['a.csv', 'b.csv']
    """
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    found: list[DataFile] = []
    for given in paths:
        system, path = fsspec.core.url_to_fs(os.fspath(given))
        matches = _expand(system, path)
        if not matches:
            raise NotFoundError(
                f"[data] expected at least one file at {os.fspath(given)!r}, got none"
            )
        found += [DataFile(system, each, int(system.size(each) or 0)) for each in matches]
    if not found:
        raise NotFoundError("[data] expected at least one path, got none")
    return found


def _expand(system: Any, path: str) -> list[str]:
    is_glob = any(mark in path for mark in "*?[")
    if is_glob and not ("[" in path and system.exists(path)):
        names = [each for each in system.glob(path) if system.isfile(each)]
        given = re.split(r"[*?\[]", path)[0].rsplit("/", 1)[0]
    elif system.isdir(path):
        names, given = system.find(path), path.rstrip("/")
    else:
        return [path] if system.exists(path) else []
    return sorted(each for each in names if not _is_hidden(each[len(given) :]))


def _is_hidden(path: str) -> bool:
    return any(part.startswith((".", "_")) for part in path.split("/"))


@contextlib.contextmanager
def naming(file: DataFile) -> Iterator[None]:
    """Errors of Arrow name the file."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, DataLossError | FileNotFoundError):
            raise
        raise DataLossError(f"[data] {file.path!r} cannot be read: {error}") from error
