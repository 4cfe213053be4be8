"""Copy files and folders between any file systems that fsspec reaches."""

import contextlib
import os
import posixpath
import shutil
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import IO, Any, NamedTuple

import fsspec
from fsspec.implementations.local import LocalFileSystem

from monolith.errors import NotFoundError

_CHUNK_BYTES = 4 << 20


def copy_file(
    src: str,
    dst: str,
    *,
    overwrite: bool = True,
    skip_missing: bool = True,
    max_retries: int = 5,
) -> None:
    """Copy a file; folders above `dst` are made.

    A local copy is written to a file next to `dst`, then renamed. On other file systems a copy
    appears as they have it, in most when it is complete; a failed one is removed.

    Args:
        src: path or URL of the file.
        dst: path or URL of the copy.
        overwrite: whether a file at `dst` is replaced.
        skip_missing: whether a file that is not there is tried again, and then left out.
        max_retries: how often it is tried again.

    Raises:
        FileExistsError: there is a file at `dst`, and `overwrite` is not set.
        NotFoundError: there is no file at `src`, and `skip_missing` is not set.
        ValueError: `max_retries` is negative.
    """
    _check_max_retries("copy_file", max_retries)
    source, target = _place(src), _place(dst)
    if not overwrite and target.system.exists(target.path):
        raise FileExistsError(f"[copy_file] expected no file, got one at {dst}; set overwrite")
    _copy(source, target, skip_missing, max_retries)


def copy_tree(
    src: str,
    dst: str,
    *,
    max_workers: int = 1,
    skip_missing: bool = True,
    max_retries: int = 5,
) -> None:
    """Copy a folder with all that is below it; a folder at `dst` is removed first.

    Links are followed: the copy has files and folders in their place.

    Args:
        src: path or URL of the folder.
        dst: path or URL of the copy.
        max_workers: how many files are copied at once.
        skip_missing: whether a folder or file that is not there is left out.
        max_retries: see `copy_file`; of each file.

    Raises:
        NotADirectoryError: `src` is a file.
        NotFoundError: a file went while its folder was copied, and `skip_missing` is not set.
        ValueError: there is nothing at `src`, and `skip_missing` is not set; one of the folders is
            inside the other, or has a link to itself; `max_workers` is not positive, or
            `max_retries` negative.
    """
    _check_max_retries("copy_tree", max_retries)
    if max_workers < 1:
        raise ValueError(f"[copy_tree] expected max_workers > 0, got {max_workers}")
    source, target = _place(src), _place(dst)
    if not source.system.exists(source.path):
        if skip_missing:
            return
        raise ValueError(f"{src} doesn't exist!")
    if not source.system.isdir(source.path):
        raise NotADirectoryError(f"[copy_tree] expected a folder, got a file at {src}")
    if _overlap(source, target):
        raise ValueError(f"[copy_tree] expected two separate folders, got {src} and {dst}")
    folders, files = _below(source)
    if target.system.isdir(target.path):
        target.system.rm(target.path, recursive=True)
    for folder in ["", *folders]:
        target.system.makedirs(target.below(folder).path, exist_ok=True)

    def copy(name: str) -> None:
        _copy(source.below(name), target.below(name), skip_missing, max_retries)

    with ThreadPoolExecutor(max_workers) as pool:
        for _ in pool.map(copy, files):  # raises what a copy raised, and cancels the rest
            pass


class _Place(NamedTuple):
    """A path, and the file system that it belongs to."""

    system: Any
    path: str

    def below(self, name: str) -> "_Place":
        return _Place(self.system, posixpath.join(self.path, name).rstrip("/"))


def _place(url: str) -> _Place:
    return _Place(*fsspec.core.url_to_fs(url))


def _check_max_retries(who: str, max_retries: int) -> None:
    if max_retries < 0:
        raise ValueError(f"[{who}] expected max_retries >= 0, got {max_retries}")


def _copy(source: _Place, target: _Place, skip_missing: bool, max_retries: int) -> None:
    for _ in range(max_retries + 1):
        try:
            opened = source.system.open(source.path, "rb")
        except FileNotFoundError as error:
            if not skip_missing:
                message = f"[copy_file] expected a file, got none at {source.path}"
                raise NotFoundError(message) from error
        else:
            with opened:
                _write(opened, target)
            return


def _write(opened: IO[bytes], target: _Place) -> None:
    system, path = target
    is_local = isinstance(system, LocalFileSystem)
    written = f"{path}.{uuid.uuid4().hex}.part" if is_local else path
    system.makedirs(posixpath.dirname(path), exist_ok=True)
    try:
        with system.open(written, "wb") as file:
            shutil.copyfileobj(opened, file, _CHUNK_BYTES)
        if is_local:
            os.replace(written, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            system.rm_file(written)
        raise


def _below(source: _Place) -> tuple[list[str], list[str]]:
    """Paths of all folders and files, relative to the source."""
    folders, files = [], []
    is_local = isinstance(source.system, LocalFileSystem)
    walk = _walk_local if is_local else partial(source.system.walk, on_error="raise")
    for root, folder_names, file_names in walk(source.path):
        inside = root[len(source.path) :].strip("/")
        folders += [posixpath.join(inside, name) for name in folder_names]
        files += [posixpath.join(inside, name) for name in file_names]
    return folders, files


def _walk_local(path: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk a folder as `os.walk` does; fsspec takes a link to a folder for a file."""

    def refuse(error: OSError) -> None:
        raise error

    for root, folder_names, file_names in os.walk(path, onerror=refuse, followlinks=True):
        for name in folder_names:
            folder = os.path.join(root, name)
            if f"{os.path.realpath(root)}/".startswith(f"{os.path.realpath(folder)}/"):
                raise ValueError(f"[copy_tree] expected no links to folders above, got {folder}")
        yield root, folder_names, file_names


def _overlap(source: _Place, target: _Place) -> bool:
    if source.system != target.system:
        return False
    paths = [source.path, target.path]
    if isinstance(source.system, LocalFileSystem):
        paths = [os.path.realpath(path) for path in paths]
    one, other = (f"{path.rstrip('/')}/" for path in paths)
    return one.startswith(other) or other.startswith(one)
