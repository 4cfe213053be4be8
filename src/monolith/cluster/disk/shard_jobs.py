"""`ShardJobs`: a shard writes and reads files on threads of its own."""

import contextlib
import functools
import json
import os
import posixpath
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from monolith.checkpoint.storage import delete, storage_errors
from monolith.errors import FailedPreconditionError, NotFoundError, OpError
from monolith.table.calls import TableCalls
from monolith.table.config import NUM_PARTITIONS
from monolith.table.disk.contents import config_of
from monolith.table.disk.fill import check_files, take_files
from monolith.table.disk.folder import Folder, open_folder
from monolith.table.disk.new_file import NewFile
from monolith.table.disk.plan import Source, TablePlan
from monolith.table.disk.ranges import partitions_of_runs
from monolith.table.disk.remote.remote_jobs import JobState
from monolith.table.disk.remote.remote_save import FileRequest, PartResult, TableFacts
from monolith.table.disk.table_files import PartFiles, SaveJob
from monolith.table.disk.table_manifest import FileEntry
from monolith.table.disk.workers import Work, WriteControl, run_all
from monolith.table.disk.writer import Throttle
from monolith.table.routing import FloorModRouting, PartitionRouting
from monolith.table.snapshot import Snapshot
from monolith.util.stores import local_path

_STOP_SECONDS = 0.25  # that a call waits for the end of a job


class ShardJobs:
    """The jobs of a shard. Any thread may call at any time.

    Args:
        name: name of the table, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: dict[int, _Job] = {}
        self._lock = threading.Lock()

    def start(self, number: int, job: "_Job") -> None:
        """Run a job on a thread of its own.

        Args:
            number: number of the job, which the caller has chosen.
            job: the job.

        Raises:
            FailedPreconditionError: the number is taken.
        """
        with self._lock:
            if number in self._jobs:
                raise FailedPreconditionError(
                    f"[{job.where}] expected a new number of a job, got {number} (table "
                    f"{self._name!r})"
                )
            self._jobs[number] = job
        run, name = functools.partial(self._run, number, job), f"monolith-job-{number}"
        threading.Thread(target=run, name=name, daemon=True).start()

    def _run(self, number: int, job: "_Job") -> None:
        job.run()
        with self._lock:
            if job.is_forgotten:
                self._jobs.pop(number, None)

    def state(self, number: int) -> JobState:
        """Return the state of a job, or raise its error."""
        job = self._jobs.get(number)
        if job is None:
            raise FailedPreconditionError(
                f"[ShardHost.job_state] expected the number of a job that was started and not "
                f"stopped, got {number} (table {self._name!r})"
            )
        return job.state()

    def hurry(self, number: int) -> None:
        """Lift the rate limit of a job; an unknown one is fine."""
        if (job := self._jobs.get(number)) is not None:
            job.control.lift_rate()

    def stop(self, number: int) -> bool:
        """Stop a job and remove its files; return whether the job is gone. Call it until then."""
        job = self._jobs.get(number)
        if job is not None:
            job.control.stop()
            if not job.is_over.wait(_STOP_SECONDS):
                return False
            job.undo()
            self._jobs.pop(number, None)
        return True

    def forget(self, snapshots: Iterable[Snapshot]) -> None:
        """Forget the saves of cuts that are being closed; stop those that run."""
        closing = list(snapshots)
        self._forget(lambda job: job.snapshot in closing)

    def close(self) -> None:
        """Stop and forget all jobs."""
        self._forget(lambda job: True)

    def _forget(self, is_meant: "Callable[[_Job], bool]") -> None:
        with self._lock:
            for number, job in list(self._jobs.items()):
                if is_meant(job):
                    job.is_forgotten = True  # at its end, if that is not yet here
                    job.control.stop()
                    if job.is_over.is_set():
                        del self._jobs[number]


class _Job(ABC):
    """Work on files.

    Args:
        where: verb that starts it, for messages.
        what: what the job does, for messages.
        total_rows: number of all rows.
        snapshot: cut with which the job ends; None if there is none.

    Attributes:
        control: stops the job or lifts its rate limit.
        is_over: event of the end.
        is_forgotten: whether nobody asks for the job any more.
    """

    def __init__(
        self, where: str, what: str, total_rows: int, snapshot: Snapshot | None = None
    ) -> None:
        self.where, self._what, self.snapshot = where, what, snapshot
        self.control, self.is_over = WriteControl(), threading.Event()
        self._work = Work(total_rows, None, self.control)
        self.is_forgotten = False
        self._result: Any = None
        self._error: Exception | None = None

    def state(self) -> JobState:
        is_over = self.is_over.is_set()
        if self._error is not None:
            raise self._error
        progress = self._work.progress
        return JobState(is_over, progress.num_rows, progress.num_bytes, self._result)

    def run(self) -> None:
        try:
            with storage_errors(self.where, self._what):
                try:
                    self._result = self._do()
                finally:
                    self._work.close()
        except Exception as error:
            self.undo()
            self._error = error.with_traceback(None)  # which would keep the cut
        finally:
            self.is_over.set()

    def undo(self) -> None:  # noqa: B027 - a load has nothing to remove
        """Remove what the job has written."""

    @abstractmethod
    def _do(self) -> Any:
        """Return the result."""


class _SaveJob(_Job):
    """Writes files of a cut."""

    def __init__(self, snapshot: Snapshot, request: dict[str, Any]) -> None:
        where, path = "ShardHost.start_save", request["folder"]
        super().__init__(where, f"write into {path}", len(snapshot), snapshot)
        self._cut, self._request = snapshot, request
        self._files = [FileRequest(*file) for file in request["files"]]
        self._folder = _folder_of(where, path)
        self._created: list[str] = []

    def undo(self) -> None:
        for name in self._created:
            with contextlib.suppress(OSError, OpError):  # the disk may be the reason
                delete(posixpath.join(self._folder.path, name))

    def _do(self) -> PartResult:
        request, work = self._request, self._work
        job = SaveJob(
            self._create,
            [],
            Throttle(request["rate"], wait=work.wait),
            work,
            [self._cut] if request["keeps_cut"] else [],
            with_expired=request["with_expired"],
        )
        config = json.loads(request["config"])
        facts = TableFacts(config, request["num_update_calls"], request["latest_time"])
        changes = self._cut.changes() if request["is_link"] else None
        writer = PartFiles(job, self._cut, facts, self._files, changes)
        run_all(work, writer.tasks(), request["num_threads"])
        work.finish()
        by_name = {file.path: file for file in writer.written.files}
        files = [by_name[file.name] for file in self._files]
        file_facts = [(file.num_rows, file.num_bytes, file.crc32c) for file in files]
        return PartResult(sum(writer.written.num_expired), file_facts)

    def _create(self, name: str) -> NewFile:
        file = self._folder.create(name)
        self._created.append(name)
        return file


class _LoadJob(_Job):
    """Reads rows of files, into the table or only to check them."""

    def __init__(self, table: TableCalls, request: dict[str, Any]) -> None:
        plan = _plan_of(table, request)
        super().__init__("ShardHost.start_load", f"read {plan.where}", plan.num_rows)
        self._plans, self._tables = {table.name: plan}, {table.name: table}
        self._is_check, self._num_threads = request["is_check"], request["num_threads"]

    def _do(self) -> tuple[()]:
        use = check_files if self._is_check else take_files
        use(self._plans, self._tables, self._num_threads, self._work)
        return ()


def _plan_of(table: TableCalls, request: dict[str, Any]) -> TablePlan:
    folders: dict[str, Folder] = {}
    sources = []
    for path, name, kind, runs, num_rows, num_bytes, crc, layer in request["sources"]:
        if path not in folders:
            folders[path] = _folder_of("ShardHost.start_load", path)
        entry = FileEntry(name, kind, tuple(map(tuple, runs)), num_rows, num_bytes, crc)
        sources.append(Source(folders[path], entry, layer))
    is_wanted = np.zeros(NUM_PARTITIONS, np.bool_)
    is_wanted[partitions_of_runs(request["partitions"])] = True
    shard = None
    if request["shard"] is not None:
        kind, num_shards, number = request["shard"]
        routings = {routing.__name__: routing for routing in (PartitionRouting, FloorModRouting)}
        shard = routings[kind](num_shards), number
    config = json.loads(request["config"])
    where = request["where"]
    plan = TablePlan(table.name, config, 0, 0, is_wanted, tuple(sources), where, 0, shard)
    return plan.with_table_config(config_of(plan))


def _folder_of(where: str, path: str) -> Folder:
    local = local_path(path)
    if local is not None and not os.path.isdir(local):
        raise NotFoundError(
            f"[{where}] expected the folder of the save, got none at {path}; servers need the "
            "same path to one folder"
        )
    return open_folder(path)


class JobVerbs(ABC):
    """The verbs of a `ShardHost` for saves and loads."""

    table: TableCalls
    _jobs: ShardJobs

    @abstractmethod
    def _cut(self, verb: str, number: int) -> Snapshot:
        """Return the open cut of a number."""

    def _do_start_save(self, number: int, cut: int, request: dict[str, Any]) -> None:
        self._jobs.start(number, _SaveJob(self._cut("start_save", cut), request))

    def _do_start_load(self, number: int, request: dict[str, Any]) -> None:
        self._jobs.start(number, _LoadJob(self.table, request))

    def _do_job_state(self, number: int) -> tuple[Any, ...]:
        state = self._jobs.state(number)
        result = tuple(state.result) if state.is_over else None
        return state.is_over, state.num_rows, state.num_bytes, result

    def _do_hurry_job(self, number: int) -> None:
        self._jobs.hurry(number)

    def _do_stop_job(self, number: int) -> bool:
        return self._jobs.stop(number)
