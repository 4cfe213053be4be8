"""The files of one checkpoint: complete or invisible.

Files get temporary names, are synced and renamed; the manifest comes last. A file
`<prefix>.manifest.json.saving` stands there meanwhile, and `.deleted` while one is removed: so the
next save knows what one that was killed has left.
"""

import contextlib
import fcntl
import os
import posixpath
import re
import threading
import uuid
from collections.abc import Iterator

from monolith.checkpoint.state import MANIFEST_SUFFIX
from monolith.checkpoint.storage import (
    exists,
    list_names,
    local_path,
    make_folder,
    remove,
    storage_errors,
    touch,
)
from monolith.errors import FailedPreconditionError, OpError
from monolith.table.disk.folder import Folder, open_folder
from monolith.table.disk.new_file import NewFile

_SAVING, _DELETED = ".saving", ".deleted"
_RUN_LOCK = ".run.lock"
_OWN = re.compile(
    r"\.(dense-\d{5}-of-\d{5}\.safetensors|meta\.json|trainer\.json|assets|manifest\.json(\.new)?)"
    r"(\.tmp-[0-9a-f]{12})?"
)


def split_prefix(prefix: str) -> tuple[str, str]:
    """The directory and the name of a checkpoint.

    Raises:
        ValueError: there is no name.

    Example:
        >>> split_prefix("m/ckpt-7"), split_prefix("ckpt-7")
        (('m', 'ckpt-7'), ('.', 'ckpt-7'))
    """
    directory, name = posixpath.split(prefix)
    if not name:
        raise ValueError(
            f"[split_prefix] expected a prefix such as dir/model.ckpt-7, got {prefix!r}"
        )
    return directory or ".", name


@contextlib.contextmanager
def only_run(directory: str) -> Iterator[None]:
    """Makes a directory and keeps other runs out of it, where it is local and there are locks.

    The lock ends with the process, also if that is killed.

    Raises:
        FailedPreconditionError: another run saves there.
        OpError: the directory cannot be written.
    """
    make_folder(directory)
    folder = local_path(directory)
    if folder is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        with storage_errors("CheckpointHook", f"write {directory}"):
            path = os.path.join(folder, _RUN_LOCK)
            lock = stack.enter_context(open(path, "a+b", buffering=0))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            number = lock.read().decode() or "?"
            raise FailedPreconditionError(
                f"[CheckpointHook] expected one run that saves into {directory}, got a second "
                f"beside that of process {number}; choose another folder, or end it"
            ) from error
        except OSError:  # some network disks have no locks; each save says so
            pass
        else:
            with contextlib.suppress(OSError):  # the disk may be full; the number is for readers
                lock.truncate(0)
                lock.write(str(os.getpid()).encode())
        yield


class CheckpointFiles:
    """Writes one checkpoint. Files may be made from several threads.

    Args:
        prefix: `<directory>/<name>`.

    Attributes:
        folder: the directory.
        name: of the checkpoint.
    """

    def __init__(self, prefix: str) -> None:
        self.directory, self.name = split_prefix(prefix)
        self.folder: Folder = open_folder(self.directory)
        self._mark = f"tmp-{uuid.uuid4().hex[:12]}"
        self._made: list[str] = []
        self._lock = threading.Lock()
        # Where files have their names from the start, an older checkpoint has to go first.
        self._is_direct = self.folder.temporary("", self._mark) == ""

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Keeps other writers out of the directory; what a block that fails has made goes.

        Raises:
            FailedPreconditionError: another save writes into the directory.
        """
        with self.folder.writing("save_checkpoint"):
            _finish_others(self.directory)
            try:
                touch(self._path(self._manifest + _SAVING))
                if self._is_direct:
                    remove(self._path(self._manifest))
                yield
            except BaseException:
                with contextlib.suppress(OSError, OpError):  # the disk may be the reason
                    _clean(self.directory, self.name)
                raise
            remove(self._path(self._manifest + _SAVING))

    def create(self, suffix: str) -> NewFile:
        """A new file `<prefix><suffix>`."""
        with self._lock:
            self._made.append(self.name + suffix)
        return self.folder.create(self.folder.temporary(self.name + suffix, self._mark))

    def commit(self, manifest: bytes) -> None:
        """Give all files their names, the manifest last; an older checkpoint is gone then.

        That begins when every byte is on the disk: one that is full leaves the older one alone.
        """
        if self._is_direct:
            _remove_but(self.directory, self.name, set(self._made))
            self.folder.replace(self._manifest, manifest)
            return
        temporary = self.folder.temporary(self._manifest, self._mark)
        file = self.folder.create(temporary)
        try:
            file.write(manifest)
        finally:
            file.close()
        remove(self._path(self._manifest))
        self.folder.settle(self._made, self._mark)
        _remove_but(self.directory, self.name, {*self._made, temporary})
        self.folder.settle([self._manifest], self._mark)

    @property
    def _manifest(self) -> str:
        return self.name + MANIFEST_SUFFIX

    def _path(self, name: str) -> str:
        return posixpath.join(self.directory, name)


def remove_checkpoint(prefix: str) -> None:
    """Remove `<prefix>.*`, the manifest first; files of another checkpoint stay.

    What a load is reading just now is left to a later save.

    Raises:
        OpError: something cannot be removed.
    """
    directory, name = split_prefix(prefix)
    manifest = posixpath.join(directory, name + MANIFEST_SUFFIX)
    touch(manifest + _DELETED)
    remove(manifest)
    _finish_removal(directory, name)


def _finish_removal(directory: str, name: str) -> None:
    names = list_names(directory)
    inner = [each.removesuffix(MANIFEST_SUFFIX) for each in names if each.endswith(MANIFEST_SUFFIX)]
    others = tuple(f"{each}." for each in inner if each.startswith(f"{name}."))
    marker = name + MANIFEST_SUFFIX + _DELETED
    is_done = True
    for each in names:
        if each.startswith(f"{name}.") and not each.startswith(others) and each != marker:
            is_done = _remove(posixpath.join(directory, each)) and is_done
    if is_done:
        remove(posixpath.join(directory, marker))


def _remove(path: str) -> bool:
    """Remove a file or folder, unless a load holds it; whether it is gone."""
    folder = local_path(path)
    if folder is None or not os.path.isdir(folder):  # stores have no locks
        remove(path)
        return True
    with contextlib.suppress(FileNotFoundError):
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(path)
        except BlockingIOError:
            return False
        finally:
            os.close(number)
    return True


def _finish_others(directory: str) -> None:
    """Remove what saves and removals that were killed have left."""
    for each in list_names(directory):
        if each.endswith(MANIFEST_SUFFIX + _DELETED):
            name = each.removesuffix(MANIFEST_SUFFIX + _DELETED)
            if exists(posixpath.join(directory, name + MANIFEST_SUFFIX)):
                remove(posixpath.join(directory, each))  # saved again meanwhile
            else:
                _finish_removal(directory, name)
        elif each.endswith(MANIFEST_SUFFIX + _SAVING):
            _clean(directory, each.removesuffix(MANIFEST_SUFFIX + _SAVING))


def _clean(directory: str, name: str) -> None:
    """Remove the files of a save that was not completed, then its marker."""
    if exists(posixpath.join(directory, name + MANIFEST_SUFFIX)):
        _remove_temporary(directory, name)
    else:
        _remove_but(directory, name, set())
    remove(posixpath.join(directory, name + MANIFEST_SUFFIX + _SAVING))


def _remove_temporary(directory: str, name: str) -> None:
    assets = f"{name}.assets"
    inside = [f"{assets}/{each}" for each in list_names(posixpath.join(directory, assets))]
    for each in [*list_names(directory), *inside]:
        if each.startswith(f"{name}.") and re.search(r"\.tmp-[0-9a-f]{12}$", each):
            remove(posixpath.join(directory, each))


def _remove_but(directory: str, name: str, kept: set[str]) -> None:
    """Remove files that a save of this name makes, but for some."""
    for each in list_names(directory):
        if not each.startswith(name) or not _OWN.fullmatch(each[len(name) :]) or each in kept:
            continue
        if each != f"{name}.assets":
            remove(posixpath.join(directory, each))
            continue
        path = posixpath.join(directory, each)
        inside = list_names(path)
        stale = [item for item in inside if f"{each}/{item}" not in kept]
        for item in stale:
            remove(posixpath.join(path, item))
        if len(stale) == len(inside):
            remove(path)
