"""Saving of tables: parallel by ranges of partitions; complete or invisible."""

import os
import uuid
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from urllib.parse import quote

from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError
from monolith.table.arguments import check_number
from monolith.table.base import BaseTable
from monolith.table.config import NUM_PARTITIONS
from monolith.table.disk.call_arguments import (
    checked_partitions,
    checked_path,
    checked_progress,
    checked_tables,
    checked_threads,
)
from monolith.table.disk.folder import Folder, open_folder
from monolith.table.disk.ranges import Run, runs_of
from monolith.table.disk.remote.remote_save import Place
from monolith.table.disk.table_files import NameOfFile, SaveJob, TableFiles
from monolith.table.disk.table_manifest import MANIFEST, Manifest, parse_manifest
from monolith.table.disk.workers import ProgressCallback, Work, run_all
from monolith.table.disk.writer import Throttle
from monolith.table.snapshot import Snapshot


def save_tables(
    tables: "BaseTable | Snapshot | Sequence[BaseTable | Snapshot]",
    path: "str | os.PathLike[str]",
    *,
    partitions: Iterable[int] | None = None,
    num_threads: int | None = None,
    max_bytes_per_second: float | None = None,
    progress: ProgressCallback | None = None,
) -> None:
    """Write tables into a folder, each as of a cut (`Table.cut`). Safe with every verb but `clear`.

    The save is complete or invisible: an earlier save at the same path stays until this one is
    complete, also if this one fails or is killed. Rows that are expired at the largest update time
    of their table are left out.

    Args:
        tables: one table, or several with different names. An open cut can replace a table; the cut
            stays open and complete.
        path: folder, created if missing; a scheme such as s3:// uses fsspec.
        partitions: partitions of the key space to save; None means all.
        num_threads: number of writing threads; None means torch.get_num_threads().
        max_bytes_per_second: largest write rate.
        progress: called with a `Progress` after each batch, on the writing threads.

    Raises:
        OSError: the folder cannot be written, for example because the disk is full.
        InvalidArgumentError: the folder has a manifest of another program or of a newer version.
        FailedPreconditionError: another save into the folder is running, or a cut is closed.

    Example:
        >>> import tempfile, torch
        >>> from monolith.table import Segment, Table, TableConfig
        >>> from monolith.table.disk import load_table, save_tables
        >>> table = Table(TableConfig("user", Segment(2)))
        >>> table.assign(torch.tensor([7]), torch.tensor([[1.0, 2.0]]))
        >>> with tempfile.TemporaryDirectory() as path:
        ...     save_tables(table, path)
        ...     load_table(path).lookup(torch.tensor([7]))
        tensor([[1., 2.]])
    """
    sources = checked_tables("[save_tables]", tables, Snapshot)
    threads = checked_threads("[save_tables]", num_threads)
    rate = checked_rate("[save_tables]", max_bytes_per_second)
    checked_progress("[save_tables]", progress)
    numbers = checked_partitions("[save_tables]", partitions)
    runs = runs_of(range(NUM_PARTITIONS) if numbers is None else numbers)
    folder = open_folder(checked_path("[save_tables]", path))
    try:
        with folder.writing(), ExitStack() as stack:
            cuts = [source for source in sources if isinstance(source, Snapshot)]
            snapshots = [
                source if source in cuts else stack.enter_context(source.cut())
                for source in sources
            ]
            work = Work(sum(map(len, snapshots)), progress)
            stack.callback(work.close)
            throttle = Throttle(rate, wait=work.wait)
            place = Place(folder, lambda name: name)
            job = SaveJob(
                folder.create, runs, throttle, work, cuts, place=place, num_threads=threads
            )
            _save(folder, job, snapshots, threads)
    except OSError as error:
        if error.errno is None:
            raise
        text = f"[save_tables] expected to write to {folder.path}, got {error.strerror}"
        raise OSError(error.errno, text) from error


def checked_rate(where: str, rate: float | None) -> float | None:
    """Return the rate in bytes per second; None means no bound."""
    if rate is not None:
        check_number(where, "max_bytes_per_second", rate)
        if not rate > 0:
            raise ValueError(f"{where} expected max_bytes_per_second > 0, got {rate}")
    return rate


def _save(folder: Folder, job: SaveJob, snapshots: list[Snapshot], num_threads: int) -> None:
    previous = _kept_folders(folder)
    if previous is not None:
        folder.remove_data_but(previous)  # left by killed saves
    subfolder = f"data-{uuid.uuid4().hex[:12]}"
    try:
        parts = [TableFiles(job, s, _names(subfolder, i, s)) for i, s in enumerate(snapshots)]
        run_all(job.work, [task for part in parts for task in part.tasks()], num_threads)
        job.work.finish()
        manifest = Manifest(tuple(part.entry() for part in parts))
        folder.commit(subfolder, manifest.to_json())
    except BaseException:
        visible = _kept_folders(folder)  # the new save, if only the last sync failed
        if previous is not None and visible is not None:
            folder.remove_data_but(previous | visible)
        raise
    folder.remove_data_but({subfolder})


def _kept_folders(folder: Folder) -> set[str] | None:
    """Return the folders of the present save; None for a damaged manifest, to keep all folders."""
    try:
        return parse_manifest(folder.read(MANIFEST), folder.where(MANIFEST)).data_folders()
    except NotFoundError:
        return set()
    except DataLossError:
        return None
    except InvalidArgumentError as error:
        text = str(error).removeprefix("[load_tables]")
        raise InvalidArgumentError(f"[save_tables]{text}; choose another folder") from error


def _names(subfolder: str, index: int, snapshot: Snapshot) -> NameOfFile:
    stem = f"{subfolder}/{index}-{quote(snapshot.config.name, safe='')[:80]}"

    def name_of(kind: str, number: tuple[int, int], runs: tuple[Run, ...]) -> str:
        return f"{stem}.{kind}-{runs[0][0]:04d}-{runs[-1][1]:04d}.arrow"

    return name_of
