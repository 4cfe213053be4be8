"""Where a save lies: a folder of this machine, or one that fsspec reaches.

A folder appears as a whole: files are written into a subfolder of their own and synced, then the
manifest that names them takes its place in one step.
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

_LOCK = ".lock"
_READ_BYTES = 1 << 19  # at once: half of a second-level cache


class Folder(ABC):
    """A place for one save.

    Args:
        path: for messages and for files below it.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def where(self, name: str) -> str:
        """The path of a file, for messages."""
        return f"{self.path.rstrip('/')}/{name}"

    @abstractmethod
    def writing(self, who: str = "save_tables") -> contextlib.AbstractContextManager[None]:
        """Makes the folder and keeps other writers out; `who` begins the messages."""

    @abstractmethod
    def create(self, name: str) -> NewFile:
        """A new file below the folder; its subfolder is made too."""

    @abstractmethod
    def commit(self, subfolder: str, manifest: bytes) -> None:
        """Make files of the subfolder last, then let the manifest take its place in one step."""

    @abstractmethod
    def remove_data_but(self, kept: set[str]) -> None:
        """Remove other subfolders that saves made; what is not all theirs, or resists, stays."""

    @abstractmethod
    def holding(self, subfolders: Iterable[str]) -> contextlib.AbstractContextManager[None]:
        """Keeps saves from removing subfolders of data, where the file system has locks.

        Raises:
            NotFoundError: one is gone, or is being removed.
        """

    @abstractmethod
    def replace(self, name: str, data: bytes) -> None:
        """Write a file that takes its place in one step."""

    @abstractmethod
    def temporary(self, name: str, mark: str) -> str:
        """Another name for a file until `settle`; the same where a file appears when complete."""

    @abstractmethod
    def settle(self, names: Iterable[str], mark: str) -> None:
        """Give files their names in place of `temporary` ones, and make that last."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The bytes of a file; NotFoundError if there is none."""

    @abstractmethod
    def read_chunks(self, name: str, num_bytes: int) -> Iterator[bytes]:
        """The bytes of a file in parts of at most so many; NotFoundError if there is none."""

    @abstractmethod
    def read_into(self, name: str, memory: Any, *, is_read_again: bool = False) -> tuple[int, int]:
        """Read a file into a buffer; the number of bytes read, and their CRC-32C.

        Args:
            name: of the file.
            memory: as many bytes of it as fit.
            is_read_again: it is read once more soon, so that it is worth a place in the page cache.
        """

    @abstractmethod
    def size(self, name: str) -> int:
        """Bytes of a file; NotFoundError if there is none."""

    def _missing(self, name: str) -> NotFoundError:
        return NotFoundError(f"[load_tables] expected a file, got none at {self.where(name)}")


def open_folder(path: str) -> Folder:
    """The folder of a path: through fsspec if it has a scheme such as s3://, else a local one."""
    scheme, mark, rest = path.partition("://")
    if not mark:
        return _LocalFolder(path)
    return _LocalFolder(rest) if scheme == "file" else _RemoteFolder(path)


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
    """Whether nobody else has a lock in the way; also where the file system has no locks."""
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
        """Makes the folder and those above it, and makes them last."""
        path = above = os.path.abspath(self.path)
        while not os.path.isdir(above):
            above = os.path.dirname(above)
        os.makedirs(path, exist_ok=True)
        while True:  # the folder itself too: a save may have been killed before it was synced
            path, name = os.path.split(path)
            _sync_directory(path)
            if not name or len(path) <= len(above):
                return

    def create(self, name: str) -> NewFile:
        path = os.path.join(self.path, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return LocalFile(path, self._blocks)

    def commit(self, subfolder: str, manifest: bytes) -> None:
        os.makedirs(os.path.join(self.path, subfolder), exist_ok=True)  # it may have no files
        _sync_directory(os.path.join(self.path, subfolder))
        self.replace(MANIFEST, manifest)

    def replace(self, name: str, data: bytes) -> None:
        path = os.path.join(self.path, name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + ".new")  # of a save that was killed
        file = LocalFile(path + ".new", self._blocks)
        try:
            try:
                file.write(data)
            finally:
                file.close()
            _sync_directory(self.path)  # what is beside it, and the new file, before the step
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
        # The folder itself too: it names the folders of the files.
        for folder in sorted({self.path, *(os.path.dirname(path) for path in paths)}):
            _sync_directory(folder)

    def remove_data_but(self, kept: set[str]) -> None:
        with contextlib.suppress(OSError):
            for name in os.listdir(self.path):
                if is_data_folder(name) and name not in kept:
                    self._remove_data(os.path.join(self.path, name))

    def _remove_data(self, path: str) -> None:
        with contextlib.suppress(OSError), _open_directory(path, os.O_NOFOLLOW) as number:
            if not _try_lock(number, fcntl.LOCK_EX):
                return  # a load reads it: a later save removes it
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
    """Through fsspec: a single writer, and a store that replaces a file in one step."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        from fsspec.core import url_to_fs

        self._files, self._root = url_to_fs(path)

    @contextlib.contextmanager
    def writing(self, who: str = "save_tables") -> Iterator[None]:
        self._files.makedirs(self._root, exist_ok=True)
        yield

    def create(self, name: str) -> NewFile:
        path = f"{self._root}/{name}"
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        return RemoteFile(self._files.open(path, "wb"))

    def commit(self, subfolder: str, manifest: bytes) -> None:
        self.replace(MANIFEST, manifest)

    def replace(self, name: str, data: bytes) -> None:
        self._files.pipe_file(f"{self._root}/{name}", data)

    def temporary(self, name: str, mark: str) -> str:
        return name

    def settle(self, names: Iterable[str], mark: str) -> None:
        """Files have their names already."""

    def remove_data_but(self, kept: set[str]) -> None:
        with contextlib.suppress(OSError):
            for path in self._files.ls(self._root, detail=False):
                name = _last_part(path)
                if is_data_folder(name) and name not in kept:
                    self._remove_data(path)

    def _remove_data(self, path: str) -> None:
        with contextlib.suppress(OSError):
            found = self._files.ls(path, detail=True)
            names = [_last_part(item["name"]) for item in found if item["type"] == "file"]
            if len(names) == len(found) and all(map(is_data_file, names)):
                self._files.rm(path, recursive=True)

    @contextlib.contextmanager
    def holding(self, subfolders: Iterable[str]) -> Iterator[None]:
        yield  # there are no locks there

    def read(self, name: str) -> bytes:
        try:
            data: bytes = self._files.cat_file(f"{self._root}/{name}")
        except FileNotFoundError as error:
            raise self._missing(name) from error
        return data

    def read_chunks(self, name: str, num_bytes: int) -> Iterator[bytes]:
        try:
            with self._files.open(f"{self._root}/{name}", "rb") as file:
                while data := file.read(num_bytes):
                    yield data
        except FileNotFoundError as error:
            raise self._missing(name) from error

    def size(self, name: str) -> int:
        try:
            number: int = self._files.size(f"{self._root}/{name}")
        except FileNotFoundError as error:
            raise self._missing(name) from error
        return number

    def read_into(self, name: str, memory: Any, *, is_read_again: bool = False) -> tuple[int, int]:
        try:
            with self._files.open(f"{self._root}/{name}", "rb") as file:
                return _read_all(file, memoryview(memory))
        except FileNotFoundError as error:
            raise self._missing(name) from error


def _read_local(file: io.FileIO, memory: memoryview, is_read_again: bool) -> tuple[int, int]:
    """Fill the memory, or read all that there is: the number of bytes, and their checksum."""
    if not memory.nbytes:
        return 0, 0
    read = load_native().read_file
    num_read, crc = read(file.fileno(), address_of(memory), memory.nbytes, is_read_again)
    return num_read, crc


def _read_all(file: Any, memory: memoryview) -> tuple[int, int]:
    """The same from a store, in pieces: the checksum is taken while they are in the cache."""
    done = crc = 0
    while done < len(memory):
        num_read = file.readinto(memory[done : done + _READ_BYTES])
        if not num_read:
            break
        crc = crc32c(memory[done : done + num_read], crc)
        done += num_read
    return done, crc
