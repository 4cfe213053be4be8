"""Saving a checkpoint: tables and dense tensors in parallel, the manifest last."""

import functools
import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from monolith.checkpoint.cut import CheckpointCut, Tensors
from monolith.checkpoint.files import CheckpointFiles
from monolith.checkpoint.manifest import CheckpointManifest, DenseFile, FileFact
from monolith.checkpoint.storage import storage_errors
from monolith.checkpoint.tensors import facts_of, parts_of_file, pieces_of
from monolith.table.config import NUM_PARTITIONS
from monolith.table.disk.buffers import crc32c
from monolith.table.disk.call_arguments import checked_path, checked_progress, checked_threads
from monolith.table.disk.ranges import Run
from monolith.table.disk.table_files import NameOfFile, SaveJob, TableFiles
from monolith.table.disk.table_save import checked_rate
from monolith.table.disk.workers import ProgressCallback, Work, run_all
from monolith.table.disk.writer import ArrowFile, Throttle

if TYPE_CHECKING:
    from monolith.table.disk.table_manifest import TableEntry


_MAX_STEM = 100


def save_checkpoint(
    prefix: "str | os.PathLike[str]",
    cut: CheckpointCut,
    *,
    num_threads: int | None = None,
    max_bytes_per_second: float | None = None,
    progress: ProgressCallback | None = None,
    clock: Callable[[], float] = time.time,
) -> None:
    """Write a checkpoint: complete or invisible. Safe with every verb of its tables but `clear`.

    An older checkpoint of the same prefix stays until all new files are written. State files are
    not changed: see `PartialRecoverySaver`.

    Args:
        prefix: `<directory>/<name>`, usually with the step at the end; with a scheme such as s3://
            through fsspec.
        cut: what is written; it stays open, but its own cuts of tables are used up.
        num_threads: threads to write with, torch.get_num_threads() if None.
        max_bytes_per_second: bound on the rate of writing.
        progress: called with a `Progress` after each batch of rows and each dense file, from the
            writing threads; may raise to stop.
        clock: seconds since 1970, for the manifest.

    Raises:
        OpError: the directory cannot be written; a full disk for example.
        FailedPreconditionError: another save writes into the directory, or a cut is closed.

    Example:
        >>> import tempfile, torch
        >>> from monolith.checkpoint import open_checkpoint, save_checkpoint, take_cut
        >>> with tempfile.TemporaryDirectory() as path:
        ...     with take_cut(dense={"weight": torch.ones(2)}, step=7) as cut:
        ...         save_checkpoint(f"{path}/model.ckpt-7", cut)
        ...     open_checkpoint(f"{path}/model.ckpt-7").read_dense()
        {'weight': tensor([1., 1.])}
    """
    where = "[save_checkpoint]"
    path = checked_path(where, prefix)
    threads = checked_threads(where, num_threads)
    rate = checked_rate(where, max_bytes_per_second)
    checked_progress(where, progress)
    files = CheckpointFiles(path)
    with storage_errors("save_checkpoint", f"write {path}"), files.writing():
        work = Work(sum(map(len, cut.snapshots)), progress)
        try:
            job = _Save(files, cut, Throttle(rate, wait=work.wait), work)
            run_all(work, job.tasks(), threads)
            work.finish()
        finally:
            work.close()
        files.commit(job.manifest(clock()).to_json())


class _Save:
    """One save: a task per file, and what the manifest says of them."""

    def __init__(
        self, files: CheckpointFiles, cut: CheckpointCut, throttle: Throttle, work: Work
    ) -> None:
        self._files, self._cut, self._throttle, self._work = files, cut, throttle, work
        self._dense = [piece for group in cut.dense for piece in pieces_of(group)]
        self._dense_files: dict[int, DenseFile] = {}
        self._documents: dict[str, FileFact] = {}
        runs: list[Run] = [(0, NUM_PARTITIONS - 1)]
        job = SaveJob(
            files.create, runs, throttle, work, list(cut.given), with_expired=cut.with_expired
        )
        self._tables = [TableFiles(job, each, _names(each.config.name)) for each in cut.snapshots]

    def tasks(self) -> list["functools.partial[None]"]:
        """A call for each file."""
        tasks = [functools.partial(self._write_dense, i) for i in range(len(self._dense))]
        tasks += [task for table in self._tables for task in table.tasks()]
        return tasks + [functools.partial(self._write_json, name) for name in self._cut.documents]

    def manifest(self, now: float) -> CheckpointManifest:
        """What all files are, when all tasks are done."""
        tables: list[TableEntry] = [table.entry() for table in self._tables]
        return CheckpointManifest(
            self._cut.step,
            [self._dense_files[i] for i in range(len(self._dense))],
            sorted(tables, key=lambda table: table.name),
            self._documents,
            {"saved": now},
        )

    def _write_dense(self, index: int) -> None:
        tensors: Tensors = self._dense[index]
        suffix = f".dense-{index:05d}-of-{len(self._dense):05d}.safetensors"
        fact = self._write(suffix, parts_of_file(tensors))
        self._dense_files[index] = DenseFile(
            fact.path, fact.num_bytes, fact.crc32c, facts_of(tensors)
        )

    def _write_json(self, name: str) -> None:
        self._documents[name] = self._write(f".{name}.json", [self._cut.documents[name]])

    def _write(self, suffix: str, parts: Iterable[Any]) -> FileFact:
        file = self._files.create(suffix)
        sink = ArrowFile(file, self._throttle)
        try:
            for part in parts:
                before = sink.num_bytes
                sink.write(part)
                self._work.report(0, sink.num_bytes - before)
        except BaseException:
            file.close()
            raise
        self._work.later(file.close)  # the disk is waited for while other files are written
        return FileFact(suffix, sink.num_bytes, f"{sink.crc32c:08x}")


def _names(table: str) -> NameOfFile:
    stem = quote(table, safe="")
    if len(stem) > _MAX_STEM:  # file names have a limit, and no two tables may share one
        stem = f"{stem[:_MAX_STEM]}~{crc32c(table.encode()):08x}"

    def name_of(kind: str, number: tuple[int, int], runs: tuple[Run, ...]) -> str:
        end = "" if kind == "rows" else f".{kind}"
        return f".assets/{stem}-{number[0]:05d}-of-{number[1]:05d}{end}.arrow"

    return name_of
