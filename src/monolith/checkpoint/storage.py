"""Read, replace, list and delete small files, on this machine or wherever fsspec reaches."""

import contextlib
import logging
import os
import posixpath
from collections.abc import Iterator

from monolith.errors import NotFoundError, OpError
from monolith.table.disk.folder import open_folder
from monolith.util.stores import Store, local_path, open_store

_log = logging.getLogger(__name__)


def isabs(path: str) -> bool:
    """Whether a path is absolute; also one with a scheme, such as `s3://` or `hdfs:/`.

    Example:
        >>> isabs("hdfs:/a"), isabs("s3://a"), isabs("/a"), isabs("a")
        (True, True, True, False)
    """
    return path.startswith("hdfs:/") or "://" in path or os.path.isabs(path)


def path_of(directory: str, path: str) -> str:
    """Return the path, below the directory if it is relative.

    Example:
        >>> path_of("m", "ckpt-1"), path_of("m", "/n/ckpt-1")
        ('m/ckpt-1', '/n/ckpt-1')
    """
    return path if isabs(path) else posixpath.join(directory, path)


@contextlib.contextmanager
def storage_errors(where: str, what: str) -> Iterator[None]:
    """Raise errors of the file system as an `OpError` that names what was tried."""
    try:
        yield
    except OSError as error:
        if isinstance(error, OpError):
            raise
        text = error.strerror or str(error) or type(error).__name__
        kind = NotFoundError if isinstance(error, FileNotFoundError) else OpError
        raise kind(f"[{where}] expected to {what}, got {text}") from error


def read_file(path: str) -> bytes:
    """Return the bytes of a file.

    Raises:
        NotFoundError: there is no such file.
        OpError: the file cannot be read.
    """
    with storage_errors("read_file", f"read {path}"):
        system, inner = open_store(path)
        data: bytes = system.cat_file(inner)
        return data


def write_file(path: str, data: bytes) -> None:
    """Replace a file in one step; on a local disk also if the machine stops meanwhile.

    Raises:
        OpError: the file cannot be written; an older one stays.
    """
    directory, name = posixpath.split(path)
    with storage_errors("write_file", f"write {path}"):
        open_folder(directory or ".").replace(name, data)


def touch(path: str) -> None:
    """Make an empty file, without a sync: it may be gone if the machine stops."""
    with storage_errors("touch", f"write {path}"):
        system, inner = open_store(path)
        system.pipe_file(inner, b"")


def exists(path: str) -> bool:
    """Whether there is a file or folder."""
    with storage_errors("exists", f"look for {path}"):
        system, inner = open_store(path)
        return bool(system.exists(inner))


def modified_time(path: str) -> float:
    """Return when a file was written, in seconds since 1970.

    Raises:
        NotFoundError: there is no such file.
    """
    with storage_errors("modified_time", f"look at {path}"):
        system, inner = open_store(path)
        return system.modified(inner) if isinstance(system, Store) else os.stat(inner).st_mtime


def has_folder(path: str) -> bool:
    """Whether files can be made in a folder; a store needs none."""
    return local_path(path) is None or exists(path)


def make_folder(path: str) -> None:
    """Make a folder and its parents, where there is none."""
    with storage_errors("make_folder", f"make {path}"):
        system, inner = open_store(path)
        if isinstance(system, Store):
            system.makedirs(inner)
        else:
            os.makedirs(inner, exist_ok=True)


def list_names(directory: str) -> list[str]:
    """Return the names of files and folders in a folder, sorted; none where there is no folder."""
    with storage_errors("list_names", f"list {directory}"):
        system, inner = open_store(directory)
        try:
            paths = system.ls(inner, detail=False)
        except FileNotFoundError:
            return []
        return sorted(path.rstrip("/").rpartition("/")[2] for path in paths)


def delete(path: str) -> None:
    """Delete a file, or a folder with its content; a path that is gone already is fine."""
    with storage_errors("delete", f"delete {path}"):
        system, inner = open_store(path)
        with contextlib.suppress(FileNotFoundError):
            system.rm(inner, recursive=True)


def drop_uploads(start: str) -> None:
    """Delete the parts of uploads that were not completed, of files whose path has a start.

    Only S3 keeps such parts. Where the store does not let the parts be listed, they stay, with a
    warning.
    """
    if local_path(start) is None:
        system, inner = open_store(start)
        try:
            system.drop_uploads(inner)
        except FileNotFoundError:
            return  # no bucket, no parts
        except OSError as error:
            _log.warning("parts of unfinished uploads of %s* may stay: %s", start, error)
