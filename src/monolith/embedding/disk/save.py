"""Saving tables: parallel by ranges of partitions; complete or invisible."""

import functools
import os
import threading
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from monolith.embedding.arguments import check_number
from monolith.embedding.config import NUM_PARTITIONS, row_bytes
from monolith.embedding.cut import Snapshot
from monolith.embedding.disk.arguments import (
    checked_partitions,
    checked_path,
    checked_progress,
    checked_tables,
    checked_threads,
)
from monolith.embedding.disk.arrow import (
    candidate_schema,
    make_batch,
    metadata_of,
    row_schema,
    tensors_of_rows,
)
from monolith.embedding.disk.config_json import config_to_json
from monolith.embedding.disk.folder import Folder, open_folder
from monolith.embedding.disk.manifest import (
    VERSION,
    FileEntry,
    Manifest,
    TableEntry,
    parse_manifest,
)
from monolith.embedding.disk.ranges import Run, partitions_of_runs, pieces, runs_of
from monolith.embedding.disk.throttle import Throttle
from monolith.embedding.disk.workers import ProgressCallback, Work, run_all
from monolith.embedding.disk.writer import ArrowFile, write_arrow
from monolith.embedding.retention_checks import candidate_columns
from monolith.embedding.verbs import TableVerbs
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError

__all__ = ["save_tables"]

_FILE_BYTES = 1 << 25  # of rows in memory, about, that one file holds
_BATCH_ROWS = 65536
_BATCH_BYTES = 1 << 26  # of a batch of very long rows


def save_tables(
    tables: "TableVerbs | Snapshot | Sequence[TableVerbs | Snapshot]",
    path: "str | os.PathLike[str]",
    *,
    partitions: Iterable[int] | None = None,
    num_threads: int | None = None,
    max_bytes_per_second: float | None = None,
    progress: ProgressCallback | None = None,
) -> None:
    """Write tables into a folder, each as of a cut (`Table.cut`). Safe with every verb but `clear`.

    The save is complete or invisible: an earlier one at the same path stays until this one is
    complete, and if this one fails or is killed. Rows that have expired by the largest update time
    of their table are left out.

    Args:
        tables: one table, or several of different names. In place of a table may stand an open cut
            of it, which stays open and whole.
        path: a folder, made if missing; with a scheme such as s3:// through fsspec.
        partitions: only these partitions of the key space.
        num_threads: threads to write with, torch.get_num_threads() if None.
        max_bytes_per_second: bound on the rate of writing.
        progress: called with a `Progress` after each batch, from the writing threads.

    Raises:
        OSError: the folder cannot be written; a full disk for example.
        InvalidArgumentError: the folder holds a manifest of another program or a newer version.
        FailedPreconditionError: another save into the folder is running, or a cut is closed.

    Example:
        >>> import tempfile, torch
        >>> from monolith.embedding import Segment, Table, TableConfig, load_table, save_tables
        >>> table = Table(TableConfig("user", Segment(2)))
        >>> table.assign(torch.tensor([7]), torch.tensor([[1.0, 2.0]]))
        >>> with tempfile.TemporaryDirectory() as path:
        ...     save_tables(table, path)
        ...     load_table(path).lookup(torch.tensor([7]))
        tensor([[1., 2.]])
    """
    chosen = checked_tables("[save_tables]", tables, Snapshot)
    threads = checked_threads("[save_tables]", num_threads)
    rate = _checked_rate(max_bytes_per_second)
    checked_progress("[save_tables]", progress)
    numbers = checked_partitions("[save_tables]", partitions)
    runs = runs_of(range(NUM_PARTITIONS) if numbers is None else numbers)
    folder = open_folder(checked_path("[save_tables]", path))
    try:
        with folder.writing(), ExitStack() as stack:
            cuts = [each for each in chosen if isinstance(each, Snapshot)]
            snapshots = [
                each if each in cuts else stack.enter_context(each.cut()) for each in chosen
            ]
            work = Work(sum(map(len, snapshots)), progress)
            stack.callback(work.close)
            _save(
                _Job(folder, runs, Throttle(rate, wait=work.wait), work, cuts), snapshots, threads
            )
    except OSError as error:
        if error.errno is None:
            raise
        text = f"[save_tables] expected to write to {folder.path}, got {error.strerror}"
        raise OSError(error.errno, text) from error


def _checked_rate(rate: float | None) -> float | None:
    if rate is not None:
        check_number("[save_tables]", "max_bytes_per_second", rate)
        if not rate > 0:
            raise ValueError(f"[save_tables] expected max_bytes_per_second > 0, got {rate}")
    return rate


@dataclass(frozen=True)
class _Job:
    folder: Folder
    runs: list[Run]
    throttle: Throttle
    work: Work
    cuts: list[Snapshot]  # of the caller


def _save(job: _Job, snapshots: list[Snapshot], num_threads: int) -> None:
    previous = _kept_folders(job.folder)
    if previous is not None:
        job.folder.remove_data_but(previous)  # of saves that were killed
    subfolder = f"data-{uuid.uuid4().hex[:12]}"
    try:
        parts = [_TableSave(job, s, subfolder, i) for i, s in enumerate(snapshots)]
        run_all(job.work, [task for part in parts for task in part.tasks()], num_threads)
        job.work.finish()
        manifest = Manifest(tuple(part.entry() for part in parts))
        job.folder.commit(subfolder, manifest.to_json())
    except BaseException:
        visible = _kept_folders(job.folder)  # the new one, if only the last sync failed
        if previous is not None and visible is not None:
            job.folder.remove_data_but(previous | visible)
        raise
    job.folder.remove_data_but({subfolder})


def _kept_folders(folder: Folder) -> set[str] | None:
    """Folders of the save that is there; None if its manifest is damaged: then nothing goes."""
    try:
        return parse_manifest(folder.read_manifest(), folder.where("manifest.json")).data_folders()
    except NotFoundError:
        return set()
    except DataLossError:
        return None
    except InvalidArgumentError as error:
        text = str(error).removeprefix("[load_tables]")
        raise InvalidArgumentError(f"[save_tables]{text}; choose another folder") from error


class _TableSave:
    """One table on its way to disk: a task per file, and what the manifest says of them."""

    def __init__(self, job: _Job, snapshot: Snapshot, subfolder: str, index: int) -> None:
        self._job, self._snapshot = job, snapshot
        self._config = config_to_json(snapshot.config)
        self._num_update_calls = snapshot.num_update_calls
        self._latest_time = snapshot.latest_time
        self._stem = f"{subfolder}/{index}-{quote(snapshot.config.name, safe='')[:80]}"
        num_bytes = len(snapshot) * row_bytes(snapshot.config)
        self._pieces = pieces(job.runs, -(-num_bytes // _FILE_BYTES))
        self._files: list[FileEntry] = []
        self._num_expired: list[int] = []
        self._num_written: Counter[tuple[Run, ...]] = Counter()
        self._lock = threading.Lock()

    def tasks(self) -> list["functools.partial[None]"]:
        """A call for each file."""
        tasks = [functools.partial(self._write_rows, runs) for runs in self._pieces]
        if candidate_columns(self._snapshot.config):
            tasks += [functools.partial(self._write_candidates, runs) for runs in self._pieces]
        return tasks

    def entry(self) -> TableEntry:
        """What the manifest says, when all tasks are done."""
        files = sorted(self._files, key=lambda file: (file.kind != "rows", file.path))
        return TableEntry(
            name=self._snapshot.config.name,
            config=self._config,
            seed=self._config["seed"],
            num_update_calls=self._num_update_calls,
            latest_time=self._latest_time,
            partitions=tuple(self._job.runs),
            num_rows=sum(file.num_rows for file in files if file.kind == "rows"),
            num_expired=sum(self._num_expired),
            files=tuple(files),
        )

    def _write_rows(self, runs: tuple[Run, ...]) -> None:
        config, num_expired = self._snapshot.config, 0
        expiry = config.expiry
        limit = max(1, min(_BATCH_ROWS, _BATCH_BYTES // row_bytes(config)))

        def batches(schema: pa.Schema) -> Iterable[pa.RecordBatch]:
            nonlocal num_expired
            for rows in self._snapshot.export(_partitions(runs), limit):
                if expiry is not None:
                    expired = expiry.is_expired(rows.keys, rows.times, self._latest_time)
                    num_expired += int(expired.sum())
                    rows = rows.take(~expired) if expired.any() else rows
                yield make_batch(schema, tensors_of_rows(rows))

        self._write(runs, "rows", row_schema, batches)
        self._num_expired.append(num_expired)

    def _write_candidates(self, runs: tuple[Run, ...]) -> None:
        def batches(schema: pa.Schema) -> Iterable[pa.RecordBatch]:
            columns = self._snapshot.export_candidates(_partitions(runs))
            num_rows = len(next(iter(columns.values())))
            for start in range(0, num_rows, _BATCH_ROWS):
                yield make_batch(
                    schema, {name: c[start : start + _BATCH_ROWS] for name, c in columns.items()}
                )

        self._write(runs, "candidates", candidate_schema, batches)

    def _write(self, runs: tuple[Run, ...], kind: str, make_schema: Any, batches: Any) -> None:
        """A file of all batches, synced."""
        metadata = metadata_of(VERSION, self._config, self._num_update_calls, runs)
        schema = make_schema(self._snapshot.config, metadata)
        name = f"{self._stem}.{kind}-{runs[0][0]:04d}-{runs[-1][1]:04d}.arrow"
        file = self._job.folder.create(name)
        sink, num_rows = ArrowFile(file, self._job.throttle), 0
        try:
            with write_arrow(sink, schema) as writer:
                for batch in batches(schema):
                    before = sink.num_bytes
                    writer.write_batch(batch)
                    num_rows += batch.num_rows
                    done = batch.num_rows if kind == "rows" else 0
                    self._job.work.report(done, sink.num_bytes - before)
        except BaseException:
            file.close()
            raise
        self._job.work.later(file.close)  # the disk is waited for while other files are written
        crc = f"{sink.crc32c:08x}"
        self._files.append(FileEntry(name, kind, runs, num_rows, sink.num_bytes, crc))
        self._release(runs)

    def _release(self, runs: tuple[Run, ...]) -> None:
        """One more file of the runs is written; after the last, writers need keep nothing more."""
        num_kinds = 1 + bool(candidate_columns(self._snapshot.config))
        with self._lock:
            self._num_written[runs] += 1
            is_last = self._num_written[runs] == num_kinds
            is_end = self._num_written.total() == num_kinds * len(self._pieces)
        if self._snapshot in self._job.cuts:
            return
        if is_end:
            self._snapshot.close()
        elif is_last:
            self._snapshot.release(partitions_of_runs(runs))


def _partitions(runs: tuple[Run, ...]) -> list[int] | None:
    """The partitions of the runs; None, which is quicker, if that is all of them."""
    return None if runs == ((0, NUM_PARTITIONS - 1),) else partitions_of_runs(runs)
