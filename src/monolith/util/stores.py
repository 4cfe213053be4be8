"""Open the file systems of fsspec, such as S3, with bounded waits and errors that name a path."""

import asyncio
import contextlib
import errno
import functools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from monolith.errors import InvalidArgumentError, MonolithError

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger(__name__)

_BLOCK_BYTES = 1 << 23  # of a file that are in memory at a time, and in one part of an upload
_CALL_SECONDS = 120.0  # limit of a call; some drivers have none, for example for an upload
_LIST_SECONDS = 600.0  # the same of a listing of many files
_CANCEL_SECONDS = 5.0  # before the limit, a call that writes is cancelled, where it can be
_FIRST_WORD_SECONDS = 10.0
_EXTRAS = MappingProxyType({"s3": "s3", "s3a": "s3"})  # protocol -> extra of this package
# A name with slashes needs no folders there, and to make one might make a bucket.
_WITHOUT_FOLDERS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"})
# Most calls without an answer end by these, after a minute: tries of botocore times tries of s3fs.
_S3_CONFIG = MappingProxyType(
    {
        "connect_timeout": 5,
        "read_timeout": 15,
        "retries": {"mode": "standard", "total_max_attempts": 2},
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
        # Files are written by this method. What was given up must not be written later.
        system.call_s3 = functools.partial(
            type(system).call_s3, system, timeout=_CALL_SECONDS - _CANCEL_SECONDS
        )
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

    Errors of the driver that are no `OSError`, such as those of botocore, become one. A call runs
    on a thread, which is left alone if the store does not answer for two minutes: the call then
    raises `TimeoutError`. After ten seconds the wait is logged. Paths are those of the file system,
    without a scheme.

    Args:
        system: File system of fsspec.
    """

    system: Any

    def cat_file(self, path: str) -> bytes:
        """Return the bytes of a file."""
        data: bytes = self._call("read", path, self.system.cat_file)
        return data

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""
        return bool(self._call("look for", path, self.system.exists))

    def find(self, path: str) -> list[str]:
        """Return the paths of all files below a folder."""
        return list(self._call("list", path, self.system.find, seconds=_LIST_SECONDS))

    def glob(self, path: str) -> list[str]:
        """Return the paths that match a pattern."""
        return list(self._call("list", path, self.system.glob, seconds=_LIST_SECONDS))

    def isdir(self, path: str) -> bool:
        """Whether there is a folder."""
        return bool(self._call("look at", path, self.system.isdir))

    def isfile(self, path: str) -> bool:
        """Whether there is a file."""
        return bool(self._call("look at", path, self.system.isfile))

    def ls(self, path: str, detail: bool = False) -> list[Any]:
        """Return the paths in a folder, or with `detail` their facts."""
        names = self._call("list", path, self.system.ls, detail=detail, seconds=_LIST_SECONDS)
        return list(names)

    def makedirs(self, path: str) -> None:
        """Make a folder and its parents, unless the store has no folders."""
        if not _WITHOUT_FOLDERS.intersection(self._protocols):
            self._call("make", path, self.system.makedirs, exist_ok=True)

    def modified(self, path: str) -> float:
        """Return when a file was written, in seconds since 1970."""
        seconds: float = self._call("look at", path, self.system.modified).timestamp()
        return seconds

    def open(self, path: str, mode: str = "rb") -> "StoreFile":
        """Open a file to read, or a new file to write."""
        file = self._call("open", path, self.system.open, mode=mode, block_size=_BLOCK_BYTES)
        return StoreFile(file, self, path)

    def pipe_file(self, path: str, data: bytes) -> None:
        """Write a file in one step; it replaces an older one."""
        limit = self._cancel_options(_CALL_SECONDS)
        self._call("write", path, lambda path: self.system.pipe_file(path, data, **limit))

    def create_file(self, path: str, data: bytes) -> None:
        """Write a new file in one step, where the store has such a step.

        Raises:
            FileExistsError: there is a file of that name; at some stores, another writer's file of
                the same moment goes unseen.
        """
        options = {"mode": "create", **self._cancel_options(_CALL_SECONDS)}
        try:
            self._call("write", path, lambda path: self.system.pipe_file(path, data, **options))
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            if self.exists(path):
                raise FileExistsError(errno.EEXIST, "a file is there", self.url(path)) from error
            self.pipe_file(path, data)

    def rm(self, path: str, recursive: bool = False) -> None:
        """Remove a file, or a folder with its content."""
        options = {"recursive": recursive, **self._cancel_options(_LIST_SECONDS)}
        self._call("delete", path, self.system.rm, seconds=_LIST_SECONDS, **options)

    def size(self, path: str) -> int:
        """Return the size of a file."""
        return int(self._call("look at", path, self.system.size) or 0)

    def drop_uploads(self, start: str) -> None:
        """Delete the parts of uploads that were not completed, of files whose path has a start.

        S3 keeps the parts, invisible and at a cost, until they are deleted. Other stores delete
        parts themselves.
        """
        if self._is_s3:
            self._call("list uploads of", start, self._drop_uploads)

    def _drop_uploads(self, start: str) -> None:
        bucket, key, _ = self.system.split_path(start)
        place: dict[str, str] | None = {}
        while place is not None:
            page = self.system.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key, **place)
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

    @property
    def _is_s3(self) -> bool:
        return bool(_EXTRAS.keys() & self._protocols)

    def _cancel_options(self, seconds: float) -> dict[str, Any]:
        return {"timeout": seconds - _CANCEL_SECONDS} if self._is_s3 else {}

    def _call(
        self,
        verb: str,
        path: str,
        call: Callable[..., Any],
        seconds: float | None = None,
        **options: Any,
    ) -> Any:
        self.system.invalidate_cache(path)  # another process may have written
        return _answer(verb, self.url(path), lambda: call(path, **options), seconds)


def _answer(verb: str, url: str, call: Callable[[], Any], seconds: float | None = None) -> Any:
    """Return the result of a call of a driver, on a thread of its own, or raise an `OSError`."""
    thread = _DriverCall(call)
    thread.start()
    start, limit = time.monotonic(), _CALL_SECONDS if seconds is None else seconds
    thread.join(min(_FIRST_WORD_SECONDS, limit))
    if thread.is_alive():
        waited = time.monotonic() - start
        _log.warning(
            "waiting for a store to %s %s, since %.0f s of at most %g s", verb, url, waited, limit
        )
        thread.join(max(0.0, limit - waited))
    error = TimeoutError() if thread.is_alive() else thread.error
    if error is None:
        return thread.value
    if isinstance(error, TimeoutError | asyncio.TimeoutError) and not str(error):
        raise OSError(errno.ETIMEDOUT, f"no answer for {limit:g} s ({url})") from error
    if isinstance(error, Exception) and not isinstance(error, OSError | MonolithError):
        text = str(error) or type(error).__name__
        raise OSError(errno.EIO, f"{text} ({url})") from error
    raise error


class _DriverCall(threading.Thread):
    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(name="monolith-store", daemon=True)
        self._call = call
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.value = self._call()
        except BaseException as error:
            self.error = error


class StoreFile:
    """An open file of a store, with errors and limits as those of `Store`. Not thread-safe."""

    def __init__(self, file: Any, store: Store, path: str) -> None:
        from fsspec.spec import AbstractBufferedFile

        self._file, self._url = file, store.url(path)
        self._is_in_blocks = isinstance(file, AbstractBufferedFile)
        self._num_pending = 0  # bytes that a driver with blocks has in memory

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
        data: bytes = self._answer("read", lambda: self._file.read(num_bytes))
        return data

    def readinto(self, memory: Any) -> int:
        """Fill a buffer, or its begin at the end of the file; return the number of bytes."""
        return int(self._answer("read", lambda: self._file.readinto(memory)))

    def write(self, data: Any) -> int:
        """Write all bytes of a buffer."""
        size = memoryview(data).nbytes
        self._num_pending += size
        if self._is_in_blocks and self._num_pending < _BLOCK_BYTES:
            self._file.write(data)
        else:
            self._num_pending = 0
            self._answer("write", lambda: self._file.write(data))
        return size

    def flush(self) -> None:
        """Do nothing: `close` completes the file."""

    def close(self) -> None:
        """Complete the file. Safe to call again."""
        self._answer("close", self._file.close)

    def discard(self) -> None:
        """Close a new file without completing it, where the driver can."""
        if not self._is_in_blocks:
            self.close()
            return
        try:
            self._answer("discard", self._file.discard)
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

    def _answer(self, verb: str, call: Callable[[], Any]) -> Any:
        return _answer(verb, self._url, call)
