"""Folder of a save, on this machine or on a file system of fsspec.

A save appears as a whole: files are written into a new subfolder and synced, then the manifest that
names them replaces the previous one in one step.
"""

import contextlib
import fcntl
import io
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from monolith.errors import FailedPreconditionError, NotFoundError
from monolith.ops.compiled import load_native
from monolith.table.disk.buffers import address_of, crc32c
from monolith.table.disk.new_file import LocalFile, NewFile, RemoteFile
from monolith.table.disk.table_manifest import MANIFEST, is_data_file, is_data_folder
from monolith.util.stores import local_path, open_store

_LOCK = ".lock"
_READ_BYTES = 1 << 19  # size of one read: half of a second-level cache


class Folder(ABC):
    """Place of one save.

    Args:
        path: path of the folder, for messages and for its files.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def where(self, name: str) -> str:
        """Return the path of a file, for messages."""
        return f"{self.path.rstrip('/')}/{name}"

    @abstractmethod
    def writing(self, who: str = "save_tables") -> contextlib.AbstractContextManager[None]:
        """Create the folder and keep other writers out; `who` begins the messages."""

    @abstractmethod
    def create(self, name: str) -> NewFile:
        """Create a file in the folder, with its subfolder."""

    @abstractmethod
    def commit(self, subfolder: str, manifest: bytes) -> None:
        """Sync the files of the subfolder, then replace the manifest in one step."""

    @abstractmethod
    def remove_data_but(self, current: set[str]) -> None:
        """Remove other subfolders of saves; keeps subfolders with other files, or in use."""

    @abstractmethod
    def holding(self, subfolders: Iterable[str]) -> contextlib.AbstractContextManager[None]:
        """Keep saves from removing subfolders of data, if the file system has locks.

        Raises:
            NotFoundError: a subfolder was removed, or is being removed.
        """

    @abstractmethod
    def replace(self, name: str, data: bytes) -> None:
        """Write a file that replaces the previous file in one step."""

    @abstractmethod
    def temporary(self, name: str, mark: str) -> str:
        """Return the name for a file until `settle`, which differs if partial files are visible."""

    @abstractmethod
    def settle(self, names: Iterable[str], mark: str) -> None:
        """Give files their final names instead of `temporary` ones, and sync the names."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return the bytes of a file; raises NotFoundError if there is no such file."""

    @abstractmethod
    def read_chunks(self, name: str, num_bytes: int) -> Iterator[bytes]:
        """Yield the bytes of a file in parts of at most `num_bytes`; raises NotFoundError."""

    @abstractmethod
    def read_into(self, name: str, memory: Any, *, is_read_again: bool = False) -> tuple[int, int]:
        """Read a file into a buffer; return the number of bytes, and their CRC-32C.

        Args:
            name: name of the file.
            memory: buffer for at most its size of bytes.
            is_read_again: whether the file is re-read soon, so that the page cache should keep it.
        """

    @abstractmethod
    def size(self, name: str) -> int:
        """Return the size of a file; raises NotFoundError if there is no such file."""

    def _missing(self, name: str) -> NotFoundError:
        return NotFoundError(f"[load_tables] expected a file, got none at {self.where(name)}")


def open_folder(path: str) -> Folder:
    """Return the folder of a path: by fsspec if the path has a scheme such as s3://, else local."""
    local = local_path(path)
    return _RemoteFolder(path) if local is None else _LocalFolder(local)


@contextlib.contextmanager
def _open_directory(path: str, flags: int = 0) -> Iterator[int]:
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | flags)
    try:
        yield number
    finally:
        os.close(number)


def _sync_directory(path: str) -> None:
    with _open_directory(path) as number:
        os.fsync(number)


def _try_lock(number: int, kind: int) -> bool:
    """Return whether the lock is acquired; True on file systems without locks."""
    try:
        fcntl.flock(number, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


class _LocalFolder(Folder):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._blocks = load_native().Blocks()

    @contextlib.contextmanager
    def writing(self, who: str = "save_tables") -> Iterator[None]:
        self._make()
        with open(os.path.join(self.path, _LOCK), "ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise FailedPreconditionError(
                    f"[{who}] expected one save at a time, got a second at {self.path}"
                ) from error
            except OSError as error:  # some network disks have no locks
                warnings.warn(
                    f"[{who}] expected a lock at {self.path}, got {error.strerror}; nothing "
                    "keeps a second save out",
                    RuntimeWarning,
                    stacklevel=4,
                )
            yield

    def _make(self) -> None:
        """Create the folder and its parents, and sync them."""
        path = above = os.path.abspath(self.path)
        while not os.path.isdir(above):
            above = os.path.dirname(above)
        os.makedirs(path, exist_ok=True)
        while True:  # the folder itself too, because a save may have been killed before the sync
            path, name = os.path.split(path)
            _sync_directory(path)
            if not name or len(path) <= len(above):
                return

    def create(self, name: str) -> NewFile:
        path = os.path.join(self.path, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return LocalFile(path, self._blocks)

    def commit(self, subfolder: str, manifest: bytes) -> None:
        # The subfolder may have no files.
        os.makedirs(os.path.join(self.path, subfolder), exist_ok=True)
        _sync_directory(os.path.join(self.path, subfolder))
        self.replace(MANIFEST, manifest)

    def replace(self, name: str, data: bytes) -> None:
        path = os.path.join(self.path, name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + ".new")  # left by a killed save
        file = LocalFile(path + ".new", self._blocks)
        try:
            try:
                file.write(data)
            finally:
                file.close()
            # Syncs the other entries and the new file before the replacement.
            _sync_directory(self.path)
            os.replace(path + ".new", path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path + ".new")
            raise
        _sync_directory(self.path)

    def temporary(self, name: str, mark: str) -> str:
        return f"{name}.{mark}"

    def settle(self, names: Iterable[str], mark: str) -> None:
        paths = [os.path.join(self.path, name) for name in names]
        for path in paths:
            os.replace(f"{path}.{mark}", path)
        # The folder itself too, because it contains the names of the subfolders.
        for folder in sorted({self.path, *(os.path.dirname(path) for path in paths)}):
            _sync_directory(folder)

    def remove_data_but(self, current: set[str]) -> None:
        with contextlib.suppress(OSError):
            for name in os.listdir(self.path):
                if is_data_folder(name) and name not in current:
                    self._remove_data(os.path.join(self.path, name))

    def _remove_data(self, path: str) -> None:
        with contextlib.suppress(OSError), _open_directory(path, os.O_NOFOLLOW) as number:
            if not _try_lock(number, fcntl.LOCK_EX):
                return  # a load reads the subfolder; a later save removes it
            names = os.listdir(path)
            if all(map(is_data_file, names)):
                for name in names:
                    os.unlink(os.path.join(path, name))
                os.rmdir(path)

    @contextlib.contextmanager
    def holding(self, subfolders: Iterable[str]) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name in subfolders:
                try:
                    directory = _open_directory(os.path.join(self.path, name))
                    number = stack.enter_context(directory)
                except (FileNotFoundError, NotADirectoryError) as error:
                    raise self._missing(name) from error
                if not _try_lock(number, fcntl.LOCK_SH):
                    raise self._missing(name)
            yield

    def read(self, name: str) -> bytes:
        with self._open(name) as file:
            return file.readall()

    def read_chunks(self, name: str, num_bytes: int) -> Iterator[bytes]:
        with self._open(name) as file:
            while data := file.read(num_bytes):
                yield data

    def read_into(self, name: str, memory: Any, *, is_read_again: bool = False) -> tuple[int, int]:
        with self._open(name) as file:
            return _read_local(file, memoryview(memory), is_read_again)

    def size(self, name: str) -> int:
        with self._open(name) as file:
            return os.fstat(file.fileno()).st_size

    def _open(self, name: str) -> io.FileIO:
        try:
            return open(os.path.join(self.path, name), "rb", buffering=0)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._missing(name) from error


def _last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


class _RemoteFolder(Folder):
    """Folder on fsspec, for a single writer, on a store that replaces a file in one step."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._store, self._root = open_store(path)

    @contextlib.contextmanager
    def writing(self, who: str = "save_tables") -> Iterator[None]:
        self._store.makedirs(self._root)
        yield

    def create(self, name: str) -> NewFile:
        path = f"{self._root}/{name}"
        self._store.makedirs(path.rpartition("/")[0])
        return RemoteFile(self._store.open(path, "wb"))

    def commit(self, subfolder: str, manifest: bytes) -> None:
        self.replace(MANIFEST, manifest)

    def replace(self, name: str, data: bytes) -> None:
        self._store.pipe_file(f"{self._root}/{name}", data)

    def temporary(self, name: str, mark: str) -> str:
        return name

    def settle(self, names: Iterable[str], mark: str) -> None:
        """Do nothing: files have their final names already."""

    def remove_data_but(self, current: set[str]) -> None:
        with contextlib.suppress(OSError):
            self._store.drop_uploads(f"{self._root}/data-")
            for path in self._store.ls(self._root):
                name = _last_part(path)
                if is_data_folder(name) and name not in current:
                    self._remove_data(path)

    def _remove_data(self, path: str) -> None:
        with contextlib.suppress(OSError):
            entries = self._store.ls(path, detail=True)
            names = [_last_part(item["name"]) for item in entries if item["type"] == "file"]
            if len(names) == len(entries) and all(map(is_data_file, names)):
                self._store.rm(path, recursive=True)

    @contextlib.contextmanager
    def holding(self, subfolders: Iterable[str]) -> Iterator[None]:
        yield  # the store has no locks

    def read(self, name: str) -> bytes:
        with self._named(name):
            data: bytes = self._store.cat_file(f"{self._root}/{name}")
        return data

    def read_chunks(self, name: str, num_bytes: int) -> Iterator[bytes]:
        with self._named(name), self._store.open(f"{self._root}/{name}") as file:
            while data := file.read(num_bytes):
                yield data

    def size(self, name: str) -> int:
        with self._named(name):
            number: int = self._store.size(f"{self._root}/{name}")
        return number

    def read_into(self, name: str, memory: Any, *, is_read_again: bool = False) -> tuple[int, int]:
        with self._named(name), self._store.open(f"{self._root}/{name}") as file:
            return _read_all(file, memoryview(memory))

    @contextlib.contextmanager
    def _named(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise self._missing(name) from error


def _read_local(file: io.FileIO, memory: memoryview, is_read_again: bool) -> tuple[int, int]:
    """Fill the memory, or read the whole file; return the number of bytes, and their checksum."""
    if not memory.nbytes:
        return 0, 0
    read = load_native().read_file
    num_read, crc = read(file.fileno(), address_of(memory), memory.nbytes, is_read_again)
    return num_read, crc


def _read_all(file: Any, memory: memoryview) -> tuple[int, int]:
    """Read a file of a store in pieces, so that the checksum is computed in the cache."""
    position = crc = 0
    while position < len(memory):
        num_read = file.readinto(memory[position : position + _READ_BYTES])
        if not num_read:
            break
        crc = crc32c(memory[position : position + num_read], crc)
        position += num_read
    return position, crc
