"""Save a checkpoint: tables and dense tensors in parallel, the manifest last."""

import functools
import os
import posixpath
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from monolith.checkpoint.commit import CheckpointFiles
from monolith.checkpoint.cut import CheckpointSnapshot, Contents, Tensors
from monolith.checkpoint.dense_tensors import facts_of, parts_of_file, pieces_of
from monolith.checkpoint.manifest import Base, CheckpointManifest, DenseFile, FileFact
from monolith.checkpoint.retention import Retention
from monolith.checkpoint.storage import make_folder, storage_errors
from monolith.table.config import NUM_PARTITIONS
from monolith.table.disk.buffers import crc32c
from monolith.table.disk.call_arguments import checked_path, checked_progress, checked_threads
from monolith.table.disk.ranges import Run
from monolith.table.disk.remote.remote_save import Place
from monolith.table.disk.table_files import NameOfFile, SaveJob, TableFiles
from monolith.table.disk.table_save import checked_rate
from monolith.table.disk.workers import ProgressCallback, Work, WriteControl, run_all
from monolith.table.disk.writer import ArrowFile, Throttle
from monolith.table.rows import Touched

if TYPE_CHECKING:
    from monolith.table.disk.table_manifest import TableEntry


BASE_NAME = "model.ckpt"
"""`save` names checkpoints `<directory>/model.ckpt-<step>`."""

_MAX_STEM = 100


@dataclass(frozen=True)
class WriteOptions:
    """How to write a checkpoint.

    Args:
        num_threads: threads to write with, torch.get_num_threads() if None.
        max_bytes_per_second: bound on the rate of writing.
        progress: called with a `Progress` after each batch of rows and each dense file, from the
            writing threads; may raise to stop.
        clock: seconds since 1970, for the manifest and the state file.
        control: lets other threads stop the write or lift its rate limit.
        keeps_cut: whether a snapshot stays whole, so that the same snapshot can be written again
            after an error. Otherwise its rows are freed as they are written.
    """

    num_threads: int | None = None
    max_bytes_per_second: float | None = None
    progress: ProgressCallback | None = None
    clock: Callable[[], float] = time.time
    control: WriteControl | None = None
    keeps_cut: bool = False


_DEFAULTS = WriteOptions()


def save(
    contents: Contents | CheckpointSnapshot,
    directory: "str | os.PathLike[str]",
    *,
    name: str | None = None,
    keep: "int | Retention | None" = 5,
    options: WriteOptions = _DEFAULTS,
) -> str:
    """Write `<directory>/model.ckpt-<step>`, name it in the state file, and remove older ones.

    Complete or invisible: see `write`. Without a snapshot, call it between two steps.

    Args:
        contents: what the checkpoint holds, or a snapshot of it; see `write`.
        directory: made if missing; with a scheme such as s3:// through fsspec.
        name: another name of the checkpoint; None means `model.ckpt-<step>`.
        keep: number of checkpoints that stay, besides those that `monolith_checkpoint` exempts; 0
            keeps all. A caller that saves often passes the `Retention` of the directory.
        options: threads, rate, progress, clock and control.

    Returns:
        The prefix of the checkpoint.

    Raises:
        ValueError: `contents` has no step, or `keep` is negative.
        OpError: the directory cannot be written; older checkpoints are as they were.
        FailedPreconditionError: another save writes into the directory, or a snapshot is closed.

    Example:
        >>> import tempfile, torch
        >>> from monolith.checkpoint import Contents, save
        >>> with tempfile.TemporaryDirectory() as path:
        ...     prefix = save(Contents(dense={"weight": torch.ones(2)}, step=7), path)
        ...     prefix.removeprefix(path)
        '/model.ckpt-7'
    """
    folder = checked_path("[checkpoint.save]", directory)
    if contents.step is None:
        raise ValueError(
            "[checkpoint.save] expected contents with a step, got None; a step names the "
            "checkpoint, or choose a name and call checkpoint.write"
        )
    prefix = posixpath.join(folder, name or f"{BASE_NAME}-{contents.step}")
    make_folder(folder)
    if not isinstance(keep, Retention):
        keep = Retention.of_directory(folder, keep, options.clock)
    write(contents, prefix, options)
    keep.add(prefix)
    return prefix


@dataclass(frozen=True)
class Link:
    """What makes a save a link of a chain.

    Args:
        base: the checkpoint that the link continues, in the same directory.
        changes: what changed in each table since the base, up to the cut, by name.
    """

    base: Base
    changes: Mapping[str, Touched]


def write(
    contents: Contents | CheckpointSnapshot,
    prefix: "str | os.PathLike[str]",
    options: WriteOptions = _DEFAULTS,
    *,
    link: Link | None = None,
) -> CheckpointManifest:
    """Write a checkpoint: complete or invisible. State files stay as they are.

    An older checkpoint of the same prefix stays until all new files are written. Safe with every
    verb of its tables but `clear`.

    Args:
        contents: what the checkpoint holds; or a snapshot of it, which stays open, but whose tables
            are used up without `WriteOptions.keeps_cut`.
        prefix: `<directory>/<name>`, usually with the step at the end; with a scheme such as s3://
            through fsspec.
        options: threads, rate, progress, clock and control.
        link: the base and the changes of a link (`Chain`); None writes a full checkpoint.

    Returns:
        The manifest.

    Raises:
        CancelledError: `WriteOptions.control` was stopped; nothing is left of the checkpoint.
        TypeError: `contents` has something that is no table, tensor, state or JSON.
        OpError: the directory cannot be written; a full disk for example.
        FailedPreconditionError: another save writes into the directory, or a snapshot is closed.
    """
    where = "[checkpoint.write]"
    path = checked_path(where, prefix)
    threads = checked_threads(where, options.num_threads)
    rate = checked_rate(where, options.max_bytes_per_second)
    checked_progress(where, options.progress)
    files = CheckpointFiles(path)
    with (
        (
            nullcontext(contents) if isinstance(contents, CheckpointSnapshot) else contents.cut()
        ) as snapshot,
        storage_errors("checkpoint.write", f"write {path}"),
        files.writing(),
    ):
        work = Work(sum(map(len, snapshot.tables)), options.progress, options.control)
        try:
            whole = snapshot.tables if options.keeps_cut else snapshot.foreign
            job = SaveJob(
                files.create,
                [(0, NUM_PARTITIONS - 1)],
                Throttle(rate, wait=work.wait),
                work,
                list(whole),
                with_expired=snapshot.with_expired,
                place=Place(files.folder, files.reserve),
                num_threads=threads,
            )
            all_files = _Save(files, snapshot, job, link)
            run_all(work, all_files.tasks(), threads)
            work.finish()
        finally:
            work.close()
        manifest = all_files.manifest(options.clock())
        files.commit(manifest.to_json())
        return manifest


class _Save:
    """Has a task per file, and makes the manifest when the tasks are done."""

    def __init__(
        self,
        files: CheckpointFiles,
        snapshot: CheckpointSnapshot,
        job: SaveJob,
        link: Link | None,
    ) -> None:
        self._files, self._job = files, job
        self._snapshot, self._base = snapshot, None if link is None else link.base
        self._dense = [piece for group in snapshot.dense for piece in pieces_of(group)]
        self._dense_files: dict[int, DenseFile] = {}
        self._documents: dict[str, FileFact] = {}
        changes: Mapping[str, Touched] = {} if link is None else link.changes
        self._tables = [
            TableFiles(
                job,
                table,
                names_of_files(table.config.name, is_link=link is not None),
                changes.get(table.config.name),
            )
            for table in snapshot.tables
        ]

    def tasks(self) -> list[Callable[[], None]]:
        """Return a call for each file, or for all files of a table that others write."""
        tasks: list[Callable[[], None]] = [
            functools.partial(self._write_dense, i) for i in range(len(self._dense))
        ]
        tasks += [task for table in self._tables for task in table.tasks()]
        return tasks + [
            functools.partial(self._write_json, name) for name in self._snapshot.documents
        ]

    def manifest(self, now: float) -> CheckpointManifest:
        """Return the manifest; all tasks are done."""
        tables: list[TableEntry] = [table.entry() for table in self._tables]
        manifest = CheckpointManifest(
            self._snapshot.step,
            [self._dense_files[i] for i in range(len(self._dense))],
            sorted(tables, key=lambda table: table.name),
            self._documents,
            {"saved": now},
            base=self._base,
        )
        return manifest.with_id()

    def _write_dense(self, index: int) -> None:
        tensors: Tensors = self._dense[index]
        suffix = f".dense-{index:05d}-of-{len(self._dense):05d}.safetensors"
        fact = self._write(suffix, parts_of_file(tensors))
        self._dense_files[index] = DenseFile(
            fact.path, fact.num_bytes, fact.crc32c, facts_of(tensors)
        )

    def _write_json(self, name: str) -> None:
        self._documents[name] = self._write(f".{name}.json", [self._snapshot.documents[name]])

    def _write(self, suffix: str, parts: Iterable[Any]) -> FileFact:
        file = self._files.create(suffix)
        sink = ArrowFile(file, self._job.throttle)
        try:
            for part in parts:
                before = sink.num_bytes
                sink.write(part)
                self._job.work.report(0, sink.num_bytes - before)
        except BaseException:
            file.discard()
            raise
        self._job.work.later(file.close)  # the disk is waited for while other files are written
        return FileFact(suffix, sink.num_bytes, f"{sink.crc32c:08x}")


def names_of_files(table: str, *, is_link: bool = False) -> NameOfFile:
    """Return the function that names the files of a table.

    Rows of a link have names of their own, so that a full checkpoint can replace the link.
    """
    stem = quote(table, safe="")
    if len(stem) > _MAX_STEM:  # file names have a limit, and no two tables may share one
        stem = f"{stem[:_MAX_STEM]}~{crc32c(table.encode()):08x}"
    ends = {"rows": ".delta" if is_link else ""}

    def name_of(kind: str, number: tuple[int, int], runs: tuple[Run, ...]) -> str:
        end = ends.get(kind, f".{kind}")
        return f".assets/{stem}-{number[0]:05d}-of-{number[1]:05d}{end}.arrow"

    return name_of
