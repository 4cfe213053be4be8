"""Files of a table during a save: a task per file, and the entries of the manifest."""

import functools
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from monolith.table.config import NUM_PARTITIONS, row_bytes
from monolith.table.disk.arrow import (
    candidate_schema,
    make_batch,
    metadata_of,
    row_schema,
    tensors_of_rows,
    tombstone_schema,
)
from monolith.table.disk.new_file import NewFile
from monolith.table.disk.ranges import Run, common_runs, partitions_of_runs, pieces
from monolith.table.disk.remote.remote_save import (
    FileRequest,
    Place,
    TableFacts,
    WriteRequest,
    Written,
    write_remotely,
)
from monolith.table.disk.table_manifest import VERSION, FileEntry, TableEntry
from monolith.table.disk.workers import Work
from monolith.table.disk.writer import ArrowFile, Throttle, write_arrow
from monolith.table.eviction import candidate_columns
from monolith.table.initializers import partitions_of
from monolith.table.rows import RowMemory, Rows, Touched
from monolith.table.snapshot import Snapshot

_FILE_BYTES = 1 << 25  # approximate bytes of rows, as in memory, per file
_BATCH_ROWS = 65536
_BATCH_BYTES = 1 << 26  # bytes of a batch of very long rows
_PIECE_ROWS = 16384  # number of candidates that torch processes with one thread
_FIRST_PARTITIONS = 16

NameOfFile = Callable[[str, tuple[int, int], tuple[Run, ...]], str]
"""(kind, (number of the file, number of files of that kind), partitions) -> path of the file."""


@dataclass(frozen=True)
class SaveJob:
    """Settings that the files of one save share.

    Args:
        create: function that creates a file of a name.
        runs: partitions to save.
        throttle: limit of the write rate.
        work: progress, and whether to continue.
        cuts: cuts that stay open and complete, such as those of the caller.
        with_expired: whether to write expired rows too.
        place: where other processes create files of the save; None if only this process writes.
        num_threads: number of writing threads of each of these processes.
    """

    create: Callable[[str], NewFile]
    runs: list[Run]
    throttle: Throttle
    work: Work
    cuts: list[Snapshot]
    with_expired: bool = False
    place: Place | None = None
    num_threads: int = 1


class TableFiles:
    """Files of one table: of all rows, or of those that changed.

    The files are written here, or where the parts of the cut are (`Snapshot.remote_files`).

    Args:
        job: settings of the save.
        snapshot: cut of the table.
        name_of: function that names the files.
        changes: keys of the changed rows and of the removed ones, at the cut; None saves all rows.
            Candidates are saved whole.
    """

    def __init__(
        self,
        job: SaveJob,
        snapshot: Snapshot,
        name_of: NameOfFile,
        changes: Touched | None = None,
    ) -> None:
        self._job, self._snapshot, self._changes = job, snapshot, changes
        self._facts = TableFacts.of(snapshot)
        self._remote = None if job.place is None else snapshot.remote_files()
        self._parts = self._plan(name_of)
        self._written: list[Written] = []

    def tasks(self) -> list[Callable[[], None]]:
        """Return a call for each file, or one call if the files are written elsewhere."""
        if self._remote is not None:
            return [self._write_remotely]
        writer = PartFiles(self._job, self._snapshot, self._facts, self._parts[0], self._changes)
        self._written = [writer.written]
        return writer.tasks()

    def entry(self) -> TableEntry:
        """Return the entry of the manifest after all tasks are done."""
        files = [file for written in self._written for file in written.files]
        files.sort(key=lambda file: (file.kind != "rows", file.path))
        config = self._facts.config
        return TableEntry(
            name=self._snapshot.config.name,
            config=config,
            seed=config["seed"],
            num_update_calls=self._facts.num_update_calls,
            latest_time=self._facts.latest_time,
            partitions=tuple(self._job.runs),
            num_rows=sum(file.num_rows for file in files if file.kind == "rows"),
            num_expired=sum(sum(written.num_expired) for written in self._written),
            files=tuple(files),
        )

    def _plan(self, name_of: NameOfFile) -> list[list[FileRequest]]:
        """Return the files of each part of the table, with numbers over all parts."""
        config, changes = self._snapshot.config, self._changes
        kinds = ["rows"]
        if candidate_columns(config):
            kinds.append("candidates")
        if changes is not None and len(changes.tombstones):
            kinds.append("tombstones")
        parts = [(self._job.runs, len(self._snapshot))]
        if self._remote is not None:
            parts = [(common_runs(self._job.runs, p.runs), p.num_rows) for p in self._remote.parts]
        if changes is not None:
            parts = [(runs, -(-len(changes.keys) // len(parts))) for runs, _ in parts]
        runs_of_files = [
            pieces(runs, -(-num_rows * row_bytes(config) // _FILE_BYTES))
            for runs, num_rows in parts
        ]
        total = sum(map(len, runs_of_files))
        numbers = itertools.count()
        numbered = [[(next(numbers), runs) for runs in part] for part in runs_of_files]
        return [
            [
                FileRequest(name_of(kind, (number, total), runs), kind, runs)
                for kind in kinds
                for number, runs in part
            ]
            for part in numbered
        ]

    def _write_remotely(self) -> None:
        assert self._remote is not None
        assert self._job.place is not None
        is_kept = self._snapshot in self._job.cuts
        request = WriteRequest(
            place=self._job.place,
            facts=self._facts,
            is_link=self._changes is not None,
            with_expired=self._job.with_expired,
            keeps_cut=is_kept,
            rate=self._job.throttle.rate,
            num_threads=self._job.num_threads,
        )
        self._written = write_remotely(self._remote, request, self._parts, self._job.work)
        if not is_kept:
            self._snapshot.close()


class PartFiles:
    """Writes files of a table, or of a part of its rows, in this process.

    Args:
        job: settings of the save; its `runs` do not count.
        snapshot: cut of the rows.
        facts: what the files say about the table.
        requests: files to write.
        changes: keys of the changed rows and of the removed ones; None saves all rows.

    Attributes:
        written: the files, after all tasks are done.
    """

    def __init__(
        self,
        job: SaveJob,
        snapshot: Snapshot,
        facts: TableFacts,
        requests: Sequence[FileRequest],
        changes: Touched | None = None,
    ) -> None:
        self._job, self._snapshot, self._changes = job, snapshot, changes
        self._facts, self._requests = facts, requests
        self.written = Written([], [])
        self._num_left = Counter(request.runs for request in requests)
        self._num_row_files = sum(request.kind == "rows" for request in requests)
        self._lock = threading.Lock()
        self._memories: list[RowMemory] = []  # memories of the files being written

    def tasks(self) -> list[Callable[[], None]]:
        """Return a call for each file."""
        writers = {
            "rows": self._write_rows,
            "candidates": self._write_candidates,
            "tombstones": self._write_tombstones,
        }
        return [functools.partial(writers[r.kind], r) for r in self._requests]

    def _write_rows(self, request: FileRequest) -> None:
        config, num_expired = self._snapshot.config, 0
        expiry = None if self._job.with_expired else config.expiry
        limit = max(1, min(_BATCH_ROWS, _BATCH_BYTES // row_bytes(config)))

        try:
            memory = self._memories.pop()
        except IndexError:
            memory = RowMemory()

        def batches(schema: pa.Schema) -> Iterable[pa.RecordBatch]:
            nonlocal num_expired
            for rows in self._row_chunks(request.runs, limit, memory):
                if expiry is not None:
                    expired = expiry.is_expired(rows.keys, rows.times, self._facts.latest_time)
                    num_expired += int(expired.sum())
                    rows = rows.take(~expired) if expired.any() else rows
                yield make_batch(schema, tensors_of_rows(rows))

        self._write(request, row_schema, batches)
        self._memories.append(memory)
        self.written.num_expired.append(num_expired)
        if len(self.written.num_expired) == self._num_row_files:
            self._memories.clear()

    def _row_chunks(self, runs: tuple[Run, ...], limit: int, memory: RowMemory) -> Iterable[Rows]:
        if self._changes is None:
            yield from self._snapshot.export(_partitions(runs), limit, memory=memory)
            return
        keys = _keys_in(runs, self._changes.keys)
        for start in range(0, len(keys), limit):
            yield self._snapshot.lookup_entry(keys[start : start + limit], memory=memory).rows

    def _write_tombstones(self, request: FileRequest) -> None:
        assert self._changes is not None
        keys = _keys_in(request.runs, self._changes.tombstones)

        def batches(schema: pa.Schema) -> Iterable[pa.RecordBatch]:
            for start in range(0, len(keys), _BATCH_ROWS):
                yield make_batch(schema, {"key": keys[start : start + _BATCH_ROWS]})

        self._write(request, lambda _, metadata: tombstone_schema(metadata), batches)

    def _write_candidates(self, request: FileRequest) -> None:
        def batches(schema: pa.Schema) -> Iterable[pa.RecordBatch]:
            for columns in _candidate_pieces(self._snapshot, partitions_of_runs(request.runs)):
                num_rows = len(next(iter(columns.values())))
                for start in range(0, num_rows, _BATCH_ROWS):
                    end = start + _BATCH_ROWS
                    yield make_batch(schema, {name: c[start:end] for name, c in columns.items()})

        self._write(request, candidate_schema, batches)

    def _write(self, request: FileRequest, make_schema: Any, batches: Any) -> None:
        """Write a file of all batches and sync it."""
        name, kind, runs = request
        metadata = metadata_of(VERSION, self._facts.config, self._facts.num_update_calls, runs)
        schema = make_schema(self._snapshot.config, metadata)
        self.written.files.append(
            write_file(self._job, name, kind, runs, (schema, batches(schema)))
        )
        self._release(runs)

    def _release(self, runs: tuple[Run, ...]) -> None:
        """Count a finished file of the runs; after the last file, writers need not keep rows."""
        with self._lock:
            self._num_left[runs] -= 1
            is_last = not self._num_left[runs]
            is_end = not self._num_left.total()
        if self._snapshot in self._job.cuts:
            return
        if is_end:
            self._snapshot.close()
        elif is_last:
            self._snapshot.release(partitions_of_runs(runs))


def write_file(
    job: SaveJob,
    name: str,
    kind: str,
    runs: tuple[Run, ...],
    content: tuple[pa.Schema, Iterable[pa.RecordBatch]],
) -> FileEntry:
    """Write an Arrow file, report its progress, and leave its sync to the job's other threads.

    Args:
        job: settings of the save.
        name: name of the file.
        kind: kind of the file, as of `FileEntry`.
        runs: partitions in the file.
        content: schema and batches.
    """
    schema, batches = content
    file = job.create(name)
    sink, num_rows = ArrowFile(file, job.throttle), 0
    try:
        with write_arrow(sink, schema) as writer:
            for batch in batches:
                before = sink.num_bytes
                writer.write_batch(batch)
                num_rows += batch.num_rows
                num_done = batch.num_rows if kind == "rows" else 0
                job.work.report(num_done, sink.num_bytes - before)
    except BaseException:
        file.discard()
        raise
    job.work.later(file.close)  # other files are written while the disk syncs
    return FileEntry(name, kind, runs, num_rows, sink.num_bytes, f"{sink.crc32c:08x}")


def _keys_in(runs: tuple[Run, ...], keys: torch.Tensor) -> torch.Tensor:
    """Return the keys of the partitions, in their order."""
    is_in = np.zeros(NUM_PARTITIONS, np.bool_)
    is_in[partitions_of_runs(runs)] = True
    return keys[torch.from_numpy(is_in[partitions_of(keys.numpy())])]


def _candidate_pieces(
    snapshot: Snapshot, partitions: list[int]
) -> Iterable[dict[str, torch.Tensor]]:
    """Yield candidates of some partitions at a time, few enough to block other threads shortly."""
    start, size = 0, _FIRST_PARTITIONS
    waiting: list[dict[str, torch.Tensor]] = []
    num_waiting = 0
    while start < len(partitions):
        waiting.append(snapshot.export_candidates(partitions[start : start + size]))
        start += size
        num_rows = len(next(iter(waiting[-1].values())))
        num_waiting += num_rows
        if num_waiting >= _PIECE_ROWS:
            yield _concat(waiting)
            waiting, num_waiting = [], 0
        if num_rows > _PIECE_ROWS:
            size = max(1, size // 2)
        elif 2 * num_rows <= _PIECE_ROWS:
            size *= 2
    if num_waiting:
        yield _concat(waiting)


def _concat(pieces: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    if len(pieces) == 1:
        return pieces[0]
    return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}


def _partitions(runs: tuple[Run, ...]) -> list[int] | None:
    """Return the partitions of the runs; None, which is faster, for all partitions."""
    return None if runs == ((0, NUM_PARTITIONS - 1),) else partitions_of_runs(runs)
