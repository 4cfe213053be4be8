"""Write and remove the files of one checkpoint: it is complete or invisible.

Files get temporary names, are synced and renamed; the manifest comes last. A file
`<prefix>.manifest.json.saving` marks a save, `.deleted` a removal: the next save into the directory
finds by these what a killed process has left, and deletes it.
"""

import contextlib
import fcntl
import os
import posixpath
import re
import threading
import uuid
from collections.abc import Iterator

from monolith.checkpoint.manifest import (
    MANIFEST_SUFFIX,
    CheckpointManifest,
    parse_checkpoint_manifest,
)
from monolith.checkpoint.storage import delete, drop_uploads, exists, list_names, read_file, touch
from monolith.errors import OpError
from monolith.table.disk.folder import Folder, open_folder
from monolith.table.disk.new_file import NewFile
from monolith.util.stores import local_path

_SAVING, _DELETED = ".saving", ".deleted"
_TABLE_FILE = re.compile(r"-\d{5}-of-\d{5}(\.\w+)?\.arrow(\.tmp-[0-9a-f]{12})?$")
_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{12}$")
_SUFFIX = re.compile(
    r"\.(dense-\d{5}-of-\d{5}\.safetensors|meta\.json|trainer\.json|assets|manifest\.json(\.new)?)"
    r"(\.tmp-[0-9a-f]{12})?"
)


def split_prefix(prefix: str) -> tuple[str, str]:
    """Return the directory and the name of a checkpoint.

    Raises:
        ValueError: the prefix has no name.

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


class CheckpointFiles:
    """Writes the files of one checkpoint. `create` is thread-safe.

    Args:
        prefix: `<directory>/<name>`.

    Attributes:
        folder: the directory.
        name: name of the checkpoint.
    """

    def __init__(self, prefix: str) -> None:
        self.directory, self.name = split_prefix(prefix)
        self.folder: Folder = open_folder(self.directory)
        self._mark = f"tmp-{uuid.uuid4().hex[:12]}"
        self._names: list[str] = []
        self._lock = threading.Lock()
        # Where files have their names from the start, an older checkpoint has to go first.
        self._is_direct = self.folder.temporary("", self._mark) == ""

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Keep other writers out of the directory; delete the files of a block that fails.

        Raises:
            FailedPreconditionError: another save writes into the directory.
        """
        with self.folder.writing("checkpoint.write"):
            _finish_others(self.directory)
            try:
                touch(self._path(self._manifest + _SAVING))
                if self._is_direct:
                    delete(self._path(self._manifest))
                yield
            except BaseException:
                with contextlib.suppress(OSError, OpError):  # the disk may be the reason
                    _clean(self.directory, self.name)
                raise
            delete(self._path(self._manifest + _SAVING))

    def create(self, suffix: str) -> NewFile:
        """Open a new file `<prefix><suffix>`."""
        return self.folder.create(self.reserve(suffix))

    def reserve(self, suffix: str) -> str:
        """Return the name, until `commit`, of a new file `<prefix><suffix>` of any process."""
        with self._lock:
            self._names.append(self.name + suffix)
        return self.folder.temporary(self.name + suffix, self._mark)

    def commit(self, manifest: bytes) -> None:
        """Give all files their names, the manifest last; an older checkpoint is gone then.

        Every byte is on the disk before the first rename: a full disk leaves the older one alone.
        """
        if self._is_direct:
            _remove_but(self.directory, self.name, set(self._names))
            self.folder.replace(self._manifest, manifest)
            return
        temporary = self.folder.temporary(self._manifest, self._mark)
        file = self.folder.create(temporary)
        try:
            file.write(manifest)
        finally:
            file.close()
        delete(self._path(self._manifest))
        self.folder.settle(self._names, self._mark)
        _remove_but(self.directory, self.name, {*self._names, temporary})
        self.folder.settle([self._manifest], self._mark)

    def replace_manifest(self, manifest: CheckpointManifest) -> None:
        """Give new files their names and replace the manifest in one step; others of it go.

        Unlike `commit`, the checkpoint exists all the while. No new file has the name of an old
        one, and files that the new manifest does not name are deleted afterwards.
        """
        with self.folder.writing("checkpoint.compact"):
            if not self._is_direct:
                self.folder.settle(self._names, self._mark)
            self.folder.replace(self._manifest, manifest.to_json())
            _remove_unnamed(self.directory, self.name, manifest)

    def abandon(self) -> None:
        """Delete the new files of a checkpoint that exists, before `replace_manifest`."""
        with contextlib.suppress(OSError, OpError):  # the disk may be the reason
            for name in self._names:
                delete(self._path(self.folder.temporary(name, self._mark)))

    @property
    def _manifest(self) -> str:
        return self.name + MANIFEST_SUFFIX

    def _path(self, name: str) -> str:
        return posixpath.join(self.directory, name)


def remove(prefix: "str | os.PathLike[str]") -> None:
    """Remove `<prefix>.*`, the manifest first; files of another checkpoint stay.

    A folder that a load reads at this moment is left to the next save.

    Raises:
        OpError: a file cannot be removed.
    """
    directory, name = split_prefix(os.fspath(prefix))
    manifest = posixpath.join(directory, name + MANIFEST_SUFFIX)
    touch(manifest + _DELETED)
    delete(manifest)
    _finish_removal(directory, name)


def _finish_removal(directory: str, name: str) -> None:
    names = list_names(directory)
    inner = [file.removesuffix(MANIFEST_SUFFIX) for file in names if file.endswith(MANIFEST_SUFFIX)]
    others = tuple(f"{other}." for other in inner if other.startswith(f"{name}."))
    marker = name + MANIFEST_SUFFIX + _DELETED
    is_done = True
    for file in names:
        if file.startswith(f"{name}.") and not file.startswith(others) and file != marker:
            is_done = _remove(posixpath.join(directory, file)) and is_done
    if is_done:
        delete(posixpath.join(directory, marker))


def _remove(path: str) -> bool:
    """Remove a file or folder, unless a load holds it. Return whether it is gone."""
    folder = local_path(path)
    if folder is None or not os.path.isdir(folder):  # stores have no locks
        delete(path)
        return True
    with contextlib.suppress(FileNotFoundError):
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            delete(path)
        except BlockingIOError:
            return False
        finally:
            os.close(number)
    return True


def _finish_others(directory: str) -> None:
    """Delete what killed saves and removals have left."""
    for file in list_names(directory):
        if file.endswith(MANIFEST_SUFFIX + _DELETED):
            name = file.removesuffix(MANIFEST_SUFFIX + _DELETED)
            if exists(posixpath.join(directory, name + MANIFEST_SUFFIX)):
                delete(posixpath.join(directory, file))  # saved again meanwhile
            else:
                _finish_removal(directory, name)
        elif file.endswith(MANIFEST_SUFFIX + _SAVING):
            _clean(directory, file.removesuffix(MANIFEST_SUFFIX + _SAVING))


def remove_unnamed(directory: str) -> None:
    """Delete what killed compactions have left: files of links that their manifests do not name.

    No other thread or process writes into the directory.
    """
    for file in list_names(directory):
        if not file.endswith(MANIFEST_SUFFIX):
            continue
        path = posixpath.join(directory, file)
        with contextlib.suppress(OpError):  # of another program, or damaged: nothing is known
            manifest = parse_checkpoint_manifest(read_file(path), path)
            _remove_unnamed(directory, file.removesuffix(MANIFEST_SUFFIX), manifest)


def _remove_unnamed(directory: str, name: str, manifest: CheckpointManifest) -> None:
    assets = posixpath.join(directory, f"{name}.assets")
    drop_uploads(f"{assets}/")
    named = {posixpath.basename(fact.path) for fact in manifest.files}
    for file in list_names(assets):
        if _TABLE_FILE.search(file) and file not in named:
            delete(posixpath.join(assets, file))


def _clean(directory: str, name: str) -> None:
    """Delete the files of an incomplete save, then its marker."""
    drop_uploads(posixpath.join(directory, f"{name}."))
    if exists(posixpath.join(directory, name + MANIFEST_SUFFIX)):
        _remove_temporary(directory, name)
    else:
        _remove_but(directory, name, set())
    delete(posixpath.join(directory, name + MANIFEST_SUFFIX + _SAVING))


def _remove_temporary(directory: str, name: str) -> None:
    assets = f"{name}.assets"
    inside = [f"{assets}/{file}" for file in list_names(posixpath.join(directory, assets))]
    for file in [*list_names(directory), *inside]:
        if file.startswith(f"{name}.") and _TEMPORARY.search(file):
            delete(posixpath.join(directory, file))


def _remove_but(directory: str, name: str, kept: set[str]) -> None:
    """Delete the files of this checkpoint, except those to keep."""
    for file in list_names(directory):
        if not file.startswith(name) or not _SUFFIX.fullmatch(file[len(name) :]) or file in kept:
            continue
        if file != f"{name}.assets":
            delete(posixpath.join(directory, file))
            continue
        path = posixpath.join(directory, file)
        inside = list_names(path)
        stale = [item for item in inside if f"{file}/{item}" not in kept]
        for item in stale:
            delete(posixpath.join(path, item))
        if len(stale) == len(inside):
            delete(path)
