"""`Journal`: the events that a joiner took, and its snapshots, in files that are only appended to.

    snapshot-00000004    the state of the joiner before the first event of log 4
    log-00000004         the events after it, in the order in which they were taken
    snapshot-00000005    ...

A state of a joiner names a snapshot and a number of records of the log with the same number. The
log also holds the features of impressions that are not in memory. Each record is:

    bytes     what
    8         length of the Arrow data
    4         CRC-32 of the JSON text and the Arrow data
    4         length of the JSON text
    ...       JSON text, filled with spaces up to a multiple of 64 bytes of the file
    ...       Arrow stream with one record batch, or nothing; filled with zeros likewise
"""

import json
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from monolith.errors import DataLossError, NotFoundError

_HEAD = struct.Struct("<QII")
_ALIGN = 64
_WHERE = "[OnlineJoiner]"
Meta = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record begins."""

    log: int
    offset: int


@dataclass(frozen=True, slots=True)
class Record:
    """One record: its JSON object, its events if it has any, and where it begins."""

    meta: Meta
    block: pa.RecordBatch | None
    offset: int


class Journal:
    """The files of one joiner in a folder of its own. Not thread-safe.

    Args:
        folder: folder of the files, made if it does not exist.
        num_kept: number of snapshots that are kept, with the logs that they need.
        base: number of the snapshot that is resumed, which counts as the first of this joiner.
    """

    def __init__(self, folder: Path, num_kept: int, base: int | None = None) -> None:
        self._log: BinaryIO | None = None
        self._folder, self._num_kept = folder, num_kept
        folder.mkdir(parents=True, exist_ok=True)
        # Snapshots since the base, and the oldest log that each of them needs.
        self._first_logs: dict[int, int] = {}
        if base is not None and self._path("snapshot", base).exists():
            self._first_logs[base] = self._first_log(base)
        self._number = max([0, *_numbers(folder, "snapshot"), *_numbers(folder, "log")])
        self._maps: dict[int, pa.MemoryMappedFile] = {}

    @property
    def number(self) -> int:
        """Number of the last snapshot, and of the log that is written."""
        return self._number

    def begin(self, meta: Meta, blocks: Sequence[pa.RecordBatch], first_log: int | None) -> None:
        """Write a snapshot, begin its log, and remove files that no kept snapshot needs.

        Args:
            meta: JSON object of the snapshot.
            blocks: tables of the snapshot.
            first_log: oldest log that the snapshot needs; None for its own.
        """
        if self._log is not None:
            self._append({"next": self._number + 1}, None)
            self._close_log()
        self._number += 1
        first_log = self._number if first_log is None else first_log
        meta = {**meta, "first_log": first_log}
        path = self._path("snapshot")
        partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
        with partial.open("wb") as file:
            _write(file, meta, None)
            for block in blocks:
                _write(file, {}, block)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        self._log = self._path("log").open("xb")
        _sync_folder(self._folder)
        self._first_logs[self._number] = first_log
        self._remove_old()

    def _close_log(self) -> None:
        assert self._log is not None
        os.fsync(self._log.fileno())
        self._log.close()
        self._log = None

    def append(self, meta: Meta, block: pa.RecordBatch | None) -> Place:
        """Add a record to the log; it survives a kill of the process after this call."""
        return Place(self._number, self._append(meta, block))

    def _append(self, meta: Meta, block: pa.RecordBatch | None) -> int:
        assert self._log is not None
        offset = _write(self._log, meta, block)
        self._log.flush()
        return offset

    def snapshot(self, number: int, num_blocks: int) -> tuple[Meta, list[pa.RecordBatch]]:
        """Return the object and the tables of a snapshot.

        Raises:
            NotFoundError: there is no such snapshot.
            DataLossError: the file is damaged.
        """
        path = self._path("snapshot", number)
        records = list(self._records(path))
        blocks = [record.block for record in records[1:] if record.block is not None]
        if len(blocks) != num_blocks:
            raise DataLossError(
                f"{_WHERE} expected {num_blocks} tables in snapshot {str(path)!r}, got "
                f"{len(blocks)} whole ones; resume an older state"
            )
        return records[0].meta, blocks

    def log_after(self, number: int) -> Iterator[tuple[int, Record]]:
        """Yield the records after a snapshot, with the numbers of their logs.

        Goes on in the logs that the same joiner wrote later. A record whose write was interrupted
        ends the log.

        Raises:
            NotFoundError: there is no such log.
        """
        following: int | None = number
        while following is not None:
            current, following = following, None
            for record in self._records(self._path("log", current)):
                if "next" in record.meta:
                    following = record.meta["next"]
                else:
                    yield current, record

    def _records(self, path: Path) -> Iterator[Record]:
        if not path.exists():
            raise NotFoundError(
                f"{_WHERE} expected file {str(path)!r} of the saved state, got none; keep more "
                "snapshots with num_kept=, or begin at the start"
            )
        if path.stat().st_size == 0:  # cannot be mapped
            return
        with pa.memory_map(str(path)) as file:
            size, offset = file.size(), 0
            while (read := _read(file, offset, size)) is not None:
                meta, data, end = read
                yield Record(meta, _block(data), offset)
                offset = end

    def block_at(self, place: Place) -> pa.RecordBatch:
        """Return the events of a record, which stay in the file until they are used."""
        file = self._maps.get(place.log)
        if file is None or place.offset >= file.size():
            file = self._maps[place.log] = pa.memory_map(str(self._path("log", place.log)))
        file.seek(place.offset)
        num_bytes, _, num_text = _HEAD.unpack(file.read(_HEAD.size))
        file.seek(_aligned(place.offset + _HEAD.size + num_text))
        block = _block(file.read_buffer(num_bytes))
        assert block is not None
        return block

    def _remove_old(self) -> None:
        """Remove files that no kept snapshot needs, those of older joiners too."""
        kept = list(self._first_logs)[-self._num_kept :]
        self._first_logs = {number: self._first_logs[number] for number in kept}
        first_log = min(self._first_logs.values())
        for kind, first in (("snapshot", kept[0]), ("log", min(first_log, kept[0]))):
            for number in _numbers(self._folder, kind):
                if number < first:
                    self._maps.pop(number, None)
                    self._path(kind, number).unlink()

    def _first_log(self, number: int) -> int:
        with pa.memory_map(str(self._path("snapshot", number))) as file:
            read = _read(file, 0, file.size(), is_checked=False)
        return number if read is None else int(read[0]["first_log"])

    def _path(self, kind: str, number: int | None = None) -> Path:
        return self._folder / f"{kind}-{self._number if number is None else number:08d}"

    def close(self) -> None:
        """Close the files; they stay."""
        if self._log is not None:
            self._close_log()
        self._maps.clear()

    def __del__(self) -> None:
        if self._log is not None:
            self._log.close()


def _numbers(folder: Path, kind: str) -> list[int]:
    matches = (re.fullmatch(rf"{kind}-(\d+)", path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGN) * _ALIGN


def _write(file: BinaryIO, meta: Meta, block: pa.RecordBatch | None) -> int:
    """Write a record at the end of a file; return where the record begins."""
    offset = file.tell()
    text = json.dumps(meta).encode()
    begin = offset + _HEAD.size
    text = text.ljust(_aligned(begin + len(text)) - begin)
    data = _stream_of(block)
    check = zlib.crc32(data, zlib.crc32(text))
    file.write(_HEAD.pack(len(data), check, len(text)))
    file.write(text)
    file.write(data)
    file.write(bytes(_aligned(len(data)) - len(data)))
    return offset


def _stream_of(block: pa.RecordBatch | None) -> pa.Buffer | bytes:
    if block is None:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, block.schema) as writer:
        writer.write_batch(block)
    return sink.getvalue()


def _block(data: pa.Buffer) -> pa.RecordBatch | None:
    return pa.ipc.open_stream(data).read_next_batch() if data.size else None


def _read(
    file: pa.MemoryMappedFile, offset: int, size: int, *, is_checked: bool = True
) -> tuple[Meta, pa.Buffer, int] | None:
    """Return the object and the data of a record, and its end; None if the record is not whole."""
    if offset + _HEAD.size > size:
        return None
    file.seek(offset)
    num_bytes, check, num_text = _HEAD.unpack(file.read(_HEAD.size))
    begin = _aligned(offset + _HEAD.size + num_text)
    if begin + _aligned(num_bytes) > size:
        return None
    text = file.read(num_text)
    file.seek(begin)
    data = file.read_buffer(num_bytes)
    if is_checked and zlib.crc32(data, zlib.crc32(text)) != check:
        return None
    return json.loads(text), data, begin + _aligned(num_bytes)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
