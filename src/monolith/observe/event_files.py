"""TensorBoard's event files: TFRecord frames of `Event` messages, encoded without TensorBoard.

A file is `events.out.tfevents.<seconds>.<host>.<pid>.<n>` in the folder of a run. Its first event
has the version of the format. Its first event with a step tells readers that a run begins at that
step, so that what a killed run wrote for later steps is dropped.
"""

import math
import os
import posixpath
import socket
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import BinaryIO

import torch

from monolith.observe.store_log import StoreLog
from monolith.observe.summaries import TensorSummary
from monolith.util.protobuf import put_bytes, put_fixed32, put_fixed64, put_varint
from monolith.util.stores import local_path
from monolith.util.tfrecord import tfrecord_frame

_VERSION = b"brain.Event:2"
_DATA_CLASS_TENSOR = 2
_START = 1  # of SessionLog
_STRING = 7  # a DataType
_DATA_TYPES = MappingProxyType(
    {
        torch.float32: 1,
        torch.float64: 2,
        torch.int32: 3,
        torch.uint8: 4,
        torch.int16: 5,
        torch.int8: 6,
        torch.int64: 9,
        torch.bool: 10,
        torch.float16: 19,
    }
)


def summary_metadata(plugin: str, content: bytes, *, description: str = "") -> bytes:
    """Return the message `SummaryMetadata` of a tensor.

    Args:
        plugin: Name of the plugin that shows the tensor.
        content: Data for the plugin.
        description: Text for readers.

    Example:
        >>> summary_metadata("text", b"").hex()
        '0a060a04746578742002'
    """
    data = put_bytes(1, plugin.encode())
    if content:
        data += put_bytes(2, content)
    metadata = put_bytes(1, data)
    if description:
        metadata += put_bytes(3, description.encode())
    return metadata + put_varint(4, _DATA_CLASS_TENSOR)


_TEXT = summary_metadata("text", b"")


class EventFile:
    """Writer of a new event file. Thread-safe.

    Events are kept in memory until `flush`; a reader then sees all of them, also if this process is
    killed. The disk is not waited for. In a store, see `StoreLog`: events are there some seconds
    later, and a large file is followed by another one.

    Args:
        folder: Folder of the run; created if missing.

    Raises:
        ValueError: The folder cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._lock = threading.Lock()
        self._last_step: int | None = None
        header = _frame(time.time(), None, put_bytes(3, _VERSION))
        local = local_path(os.fspath(folder))
        try:
            if local is None:
                self._file: BinaryIO | StoreLog = _create_in_store(os.fspath(folder), header)
            else:
                os.makedirs(local, exist_ok=True)
                self._file = _create(os.path.abspath(local))
                self._file.write(header)
                self._file.flush()
        except OSError as error:
            raise ValueError(
                f"[TensorBoard] expected a folder that can be written, got {os.fspath(folder)} "
                f"({error}); choose another folder"
            ) from error

    @property
    def path(self) -> str:
        """Path of the file; in a store, of the newest file."""
        return self._file.path if isinstance(self._file, StoreLog) else self._file.name

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._file.closed

    def add_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Add numbers by tag as one event."""
        self._add(b"".join(_scalar(tag, value) for tag, value in values.items()), step)

    def add_tensor(self, summary: TensorSummary, step: int) -> None:
        """Add a tensor, copied to the CPU.

        Raises:
            ValueError: The tensor has a dtype that event files do not have.
        """
        self._add(_value(summary.tag, _tensor(summary.tag, summary.tensor), summary.metadata), step)

    def add_text(self, tag: str, text: str, step: int, seconds: float | None = None) -> None:
        """Add a text, as of now or of a time in seconds since 1970."""
        message = put_varint(1, _STRING) + put_bytes(2, b"") + put_bytes(8, text.encode())
        self._add(_value(tag, message, _TEXT), step, seconds)

    def restart(self, step: int) -> None:
        """Tell readers to drop the events of steps after `step`, where the run goes on."""
        with self._lock:
            if self._last_step is None or self._last_step > step:  # None: of an earlier file
                self._last_step = step
                self._file.write(_start(time.time(), step + 1))

    def flush(self) -> None:
        """Hand all events to the operating system."""
        with self._lock:
            self._file.flush()

    def close(self) -> None:
        """Flush and close the file. Safe to call again."""
        with self._lock:
            self._file.close()

    def _add(self, values: bytes, step: int, seconds: float | None = None) -> None:
        now = time.time() if seconds is None else seconds
        frame = _frame(now, step, put_bytes(5, values))
        with self._lock:
            if self._file.closed:
                raise ValueError(
                    f"[TensorBoard] expected an open file, got {self.path}, a closed one"
                )
            if self._last_step is None:
                self._file.write(_start(now, step))
            self._last_step = step
            self._file.write(frame)


def _name(seconds: int) -> str:
    return f"events.out.tfevents.{seconds:010d}.{socket.gethostname()}.{os.getpid()}"


def _create_in_store(folder: str, header: bytes) -> StoreLog:
    """Return a new log in the folder, whose files are sorted by their names."""
    seconds = int(time.time())
    while True:
        try:
            return StoreLog(_names(posixpath.join(folder, _name(seconds))), header=header)
        except FileExistsError:
            seconds += 1


def _names(stem: str) -> Callable[[int], str]:
    return lambda number: f"{stem}.{number:05d}"


def _create(folder: str) -> BinaryIO:
    """Return a new file of the folder."""
    stem = _name(int(time.time()))
    number = 0
    while True:
        path = os.path.join(folder, f"{stem}.{number}")
        try:
            return open(path, "xb")
        except FileExistsError:
            number += 1


def _frame(seconds: float, step: int | None, content: bytes) -> bytes:
    """Return the frame of an `Event`, whose content is the field of one kind of event."""
    event = put_fixed64(1, seconds)
    if step is not None:
        event += put_varint(2, step)
    return tfrecord_frame(event + content)


def _start(seconds: float, step: int) -> bytes:
    """Return the frame of the event that a run begins at a step."""
    return _frame(seconds, step, put_bytes(7, put_varint(1, _START)))


def _scalar(tag: str, value: float) -> bytes:
    try:
        number = put_fixed32(2, value)
    except OverflowError:  # beyond float32
        number = put_fixed32(2, math.copysign(math.inf, value))
    return put_bytes(1, put_bytes(1, tag.encode()) + number)


def _value(tag: str, tensor: bytes, metadata: bytes) -> bytes:
    """Return the field of a `Summary` with a value: a `TensorProto` under a tag."""
    value = [put_bytes(1, tag.encode()), put_bytes(8, tensor), put_bytes(9, metadata)]
    return put_bytes(1, b"".join(value))


def _tensor(tag: str, tensor: torch.Tensor) -> bytes:
    """Return the message `TensorProto`; bfloat16 becomes float32, which every reader has."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    if tensor.dtype not in _DATA_TYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DATA_TYPES)
        raise ValueError(
            f"[TensorBoard] expected a tensor of dtype {names} or bfloat16, got {tensor.dtype} "
            f"(tag {tag!r}); cast the tensor"
        )
    shape = b"".join(put_bytes(2, put_varint(1, size)) for size in tensor.shape)
    content = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    kind = put_varint(1, _DATA_TYPES[tensor.dtype])
    return b"".join([kind, put_bytes(2, shape), put_bytes(4, content)])
