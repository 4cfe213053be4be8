"""Open the file systems of fsspec, such as S3, with bounded waits and errors that name a path."""

import contextlib
import errno
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from monolith.errors import InvalidArgumentError, MonolithError

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger(__name__)

_BLOCK_BYTES = 1 << 24  # of a file that are in memory at a time, and in one part of an upload
_FIRST_WORD_SECONDS, _NEXT_WORD_SECONDS = 10.0, 60.0
_EXTRAS = MappingProxyType({"s3": "s3", "s3a": "s3"})  # protocol -> extra of this package
# A name with slashes needs no folders there, and to make one might make a bucket.
_WITHOUT_FOLDERS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"})
# A call without an answer ends after two minutes or three: tries of botocore times tries of s3fs.
_S3_CONFIG = MappingProxyType(
    {
        "connect_timeout": 5,
        "read_timeout": 15,
        "retries": {"mode": "standard", "total_max_attempts": 3},
    }
)
_S3_TRIES = 2


def local_path(path: str) -> str | None:
    """Return the path on this machine, or None for a path in a store.

    Example:
        >>> local_path("file:///a"), local_path("a"), local_path("s3://a")
        ('/a', 'a', None)
    """
    scheme, mark, rest = path.partition("://")
    if not mark:
        return path
    return rest if scheme == "file" else None


def open_store(url: str) -> tuple[Any, str]:
    """Return the file system of a path, and the path inside that file system.

    Returns:
        fsspec's `LocalFileSystem` for a path of this machine, else a `Store`.

    Raises:
        InvalidArgumentError: fsspec does not know the scheme, or its package is not installed.
    """
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

    if url.startswith("hdfs:/") and not url.startswith("hdfs://"):
        raise InvalidArgumentError(  # else a local folder of that name
            f"[store] expected a path such as hdfs://host/a or hdfs:///a, got {url!r}"
        )
    protocol = url.partition("://")[0]
    try:
        system, path = url_to_fs(url, **_options(protocol))
    except (ImportError, ValueError) as error:
        extra = _EXTRAS.get(protocol)
        advice = f"; pip install 'monolith-torch[{extra}]'" if extra else ""
        raise InvalidArgumentError(
            f"[store] expected a path that fsspec reaches, got {url!r}: {error}{advice}"
        ) from error
    if isinstance(system, LocalFileSystem):
        return system, path
    if protocol in _EXTRAS:
        system.retries = _S3_TRIES
    return Store(system), path


def _options(protocol: str) -> dict[str, Any]:
    """Return options for the driver of a protocol; those of fsspec's configuration come first."""
    if protocol not in _EXTRAS:
        return {}
    from fsspec.config import conf

    configured = conf.get("s3", {}) | conf.get("s3a", {})
    config = {**_S3_CONFIG, **configured.get("config_kwargs", {})}
    # A cached listing would hide what other processes write.
    return {"config_kwargs": config, "use_listings_cache": False}


@dataclass(frozen=True)
class Store:
    """A file system of fsspec on other machines. As thread-safe as its driver.

    Errors of the driver that are no `OSError`, such as those of botocore, become one. A call that
    takes more than ten seconds is logged. Paths are those of the file system, without a scheme.

    Args:
        system: File system of fsspec.
    """

    system: Any

    def cat_file(self, path: str) -> bytes:
        """Return the bytes of a file."""
        with self._driver("read", path):
            data: bytes = self.system.cat_file(path)
        return data

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""
        with self._driver("look for", path):
            return bool(self.system.exists(path))

    def find(self, path: str) -> list[str]:
        """Return the paths of all files below a folder."""
        with self._driver("list", path):
            return list(self.system.find(path))

    def glob(self, path: str) -> list[str]:
        """Return the paths that match a pattern."""
        with self._driver("list", path):
            return list(self.system.glob(path))

    def isdir(self, path: str) -> bool:
        """Whether there is a folder."""
        with self._driver("look at", path):
            return bool(self.system.isdir(path))

    def isfile(self, path: str) -> bool:
        """Whether there is a file."""
        with self._driver("look at", path):
            return bool(self.system.isfile(path))

    def ls(self, path: str, detail: bool = False) -> list[Any]:
        """Return the paths in a folder, or with `detail` their facts."""
        with self._driver("list", path):
            return list(self.system.ls(path, detail=detail))

    def makedirs(self, path: str) -> None:
        """Make a folder and its parents, unless the store has no folders."""
        if not _WITHOUT_FOLDERS.intersection(self._protocols):
            with self._driver("make", path):
                self.system.makedirs(path, exist_ok=True)

    def modified(self, path: str) -> float:
        """Return when a file was written, in seconds since 1970."""
        with self._driver("look at", path):
            seconds: float = self.system.modified(path).timestamp()
        return seconds

    def open(self, path: str, mode: str = "rb") -> "StoreFile":
        """Open a file to read, or a new file to write."""
        with self._driver("open", path):
            file = self.system.open(path, mode, block_size=_BLOCK_BYTES)
        return StoreFile(file, self, path)

    def pipe_file(self, path: str, data: bytes) -> None:
        """Write a file in one step; it replaces an older one."""
        with self._driver("write", path):
            self.system.pipe_file(path, data)

    def create_file(self, path: str, data: bytes) -> None:
        """Write a new file in one step, where the store has such a step.

        Raises:
            FileExistsError: there is a file of that name; at some stores, another writer's file of
                the same moment goes unseen.
        """
        with self._driver("write", path):
            self.system.pipe_file(path, data, mode="create")

    def rm(self, path: str, recursive: bool = False) -> None:
        """Remove a file, or a folder with its content."""
        with self._driver("delete", path):
            self.system.rm(path, recursive=recursive)

    def size(self, path: str) -> int:
        """Return the size of a file."""
        with self._driver("look at", path):
            return int(self.system.size(path) or 0)

    def drop_uploads(self, start: str) -> None:
        """Delete the parts of uploads that were not completed, of files whose path has a start.

        S3 keeps the parts, invisible and at a cost, until they are deleted. Other stores delete
        parts themselves.
        """
        if not _EXTRAS.keys() & self._protocols:
            return
        bucket, key, _ = self.system.split_path(start)
        place: dict[str, str] | None = {}
        with self._driver("list uploads of", start):
            while place is not None:
                page = self.system.call_s3(
                    "list_multipart_uploads", Bucket=bucket, Prefix=key, **place
                )
                for item in page.get("Uploads", ()):
                    self.system.abort_mpu(bucket, item["Key"], item["UploadId"])
                names = ("KeyMarker", "UploadIdMarker")
                is_more = page.get("IsTruncated", False)
                place = {name: page[f"Next{name}"] for name in names} if is_more else None

    def url(self, path: str) -> str:
        """Return a path with the scheme of the store."""
        return str(self.system.unstrip_protocol(path))

    @property
    def _protocols(self) -> set[str]:
        protocol = self.system.protocol
        return {protocol} if isinstance(protocol, str) else set(protocol)

    @contextlib.contextmanager
    def _driver(self, verb: str, path: str) -> Iterator[None]:
        self.system.invalidate_cache(path)  # another process may have written
        with self.errors(path), self.watched(verb, path):
            yield

    @contextlib.contextmanager
    def errors(self, path: str) -> Iterator[None]:
        """Raise errors of the driver in the block as an `OSError` that names the path."""
        try:
            yield
        except (OSError, MonolithError):
            raise
        except Exception as error:
            text = str(error) or type(error).__name__
            raise OSError(errno.EIO, f"{text} ({self.url(path)})") from error

    @contextlib.contextmanager
    def watched(self, verb: str, path: str) -> Iterator[None]:
        """Log while the block waits for the store."""
        is_over = threading.Event()
        what = f"{verb} {self.url(path)}"
        watch = threading.Thread(target=_watch, args=(is_over, what), daemon=True)
        watch.start()
        try:
            yield
        finally:
            is_over.set()


def _watch(is_over: threading.Event, what: str) -> None:
    start, seconds = time.monotonic(), _FIRST_WORD_SECONDS
    while not is_over.wait(seconds):
        waited, seconds = time.monotonic() - start, _NEXT_WORD_SECONDS
        _log.warning(
            "waiting for a store to %s, since %.0f s; the timeouts of its driver end the wait",
            what,
            waited,
        )


class StoreFile:
    """An open file of a store, with errors as those of `Store`. Not thread-safe."""

    def __init__(self, file: Any, store: Store, path: str) -> None:
        self._file, self._store, self._path = file, store, path
        self._num_pending = 0  # bytes that the driver may have kept in memory

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return bool(self._file.closed)

    def readable(self) -> bool:
        """Whether the file is open to read."""
        return bool(self._file.readable())

    def writable(self) -> bool:
        """Whether the file is open to write."""
        return bool(self._file.writable())

    def seekable(self) -> bool:
        """Whether the position can change."""
        return bool(self._file.seekable())

    def tell(self) -> int:
        """Return the position."""
        return int(self._file.tell())

    def seek(self, position: int, whence: int = 0) -> int:
        """Change the position and return it."""
        return int(self._file.seek(position, whence))

    def read(self, num_bytes: int = -1) -> bytes:
        """Return the next bytes, at most `num_bytes`; -1 reads to the end."""
        with self._driver("read"):
            data: bytes = self._file.read(num_bytes)
        return data

    def readinto(self, memory: Any) -> int:
        """Fill a buffer, or its begin at the end of the file; return the number of bytes."""
        with self._driver("read"):
            return int(self._file.readinto(memory))

    def write(self, data: Any) -> int:
        """Write all bytes of a buffer."""
        size = memoryview(data).nbytes
        self._num_pending += size
        if self._num_pending < _BLOCK_BYTES:
            with self._store.errors(self._path):
                self._file.write(data)
        else:
            self._num_pending = 0
            with self._driver("write"):
                self._file.write(data)
        return size

    def flush(self) -> None:
        """Do nothing: `close` completes the file."""

    def close(self) -> None:
        """Complete the file. Safe to call again."""
        with self._driver("write" if self._num_pending else "close"):
            self._file.close()

    def discard(self) -> None:
        """Close a new file without completing it, where the driver can."""
        from fsspec.spec import AbstractBufferedFile

        with self._driver("discard"):
            if not isinstance(self._file, AbstractBufferedFile):
                self._file.close()
                return
            try:
                self._file.discard()
            finally:
                self._file.closed = True  # else the driver completes the file when it is freed

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None or not self.writable():
            self.close()
            return
        with contextlib.suppress(OSError):  # the store may be the reason
            self.discard()

    @contextlib.contextmanager
    def _driver(self, verb: str) -> Iterator[None]:
        with self._store.errors(self._path), self._store.watched(verb, self._path):
            yield
