"""`ShardSaves`: a shard writes files of its cuts on threads of its own."""

import contextlib
import json
import os
import posixpath
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from monolith.checkpoint.storage import delete, storage_errors
from monolith.errors import FailedPreconditionError, NotFoundError, OpError
from monolith.table.disk.folder import open_folder
from monolith.table.disk.new_file import NewFile
from monolith.table.disk.remote.remote_save import FileRequest, PartState, TableFacts, Written
from monolith.table.disk.table_files import PartFiles, SaveJob
from monolith.table.disk.workers import Work, WriteControl, run_all
from monolith.table.disk.writer import Throttle
from monolith.table.snapshot import Snapshot
from monolith.util.stores import local_path

_WHERE = "ShardHost.start_save"
_STOP_SECONDS = 0.25  # that a call waits for the end of a save


class ShardSaves:
    """The saves that a shard writes in the background. Any thread may call at any time.

    Args:
        name: name of the table, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._saves: dict[int, _ShardSave] = {}
        self._lock = threading.Lock()

    def start(self, number: int, snapshot: Snapshot, request: dict[str, Any]) -> None:
        """Write files of a cut from now on.

        Args:
            number: number of the save, which the caller has chosen.
            snapshot: the cut.
            request: how and which files to write, as `host_verbs.py` says.

        Raises:
            NotFoundError: this process does not see the folder of the save.
            FailedPreconditionError: the number is taken.
        """
        _check_folder(request["folder"])
        with self._lock:
            if number in self._saves:
                raise FailedPreconditionError(
                    f"[{_WHERE}] expected a new number of a save, got {number} (table "
                    f"{self._name!r})"
                )
            self._saves[number] = _ShardSave(snapshot, request)

    def state(self, number: int) -> PartState:
        """Return the state of a save, or raise its error."""
        save = self._saves.get(number)
        if save is None:
            raise FailedPreconditionError(
                f"[ShardHost.save_state] expected the number of a save that was started and not "
                f"stopped, got {number} (table {self._name!r})"
            )
        return save.state()

    def hurry(self, number: int) -> None:
        """Lift the rate limit of a save; an unknown one is fine."""
        if (save := self._saves.get(number)) is not None:
            save.control.lift_rate()

    def stop(self, number: int) -> bool:
        """Stop a save and remove its files; return whether the save is gone. Call it until then."""
        save = self._saves.get(number)
        if save is not None:
            save.control.stop()
            if not save.is_over.wait(_STOP_SECONDS):
                return False
            save.remove_files()
            self._saves.pop(number, None)
        return True

    def forget(self, snapshots: Iterable[Snapshot]) -> None:
        """Forget the saves of cuts that are being closed; stop those that run."""
        closing = list(snapshots)
        with self._lock:
            numbers = [i for i, save in self._saves.items() if save.snapshot in closing]
            saves = [self._saves.pop(number) for number in numbers]
        for save in saves:
            save.control.stop()


class SaveVerbs(ABC):
    """The verbs of a `ShardHost` for saves."""

    _saves: ShardSaves

    @abstractmethod
    def _cut(self, verb: str, number: int) -> Snapshot:
        """Return the open cut of a number."""

    def _do_start_save(self, number: int, cut: int, request: dict[str, Any]) -> None:
        self._saves.start(number, self._cut("start_save", cut), request)

    def _do_save_state(self, number: int) -> tuple[Any, ...]:
        return tuple(self._saves.state(number))

    def _do_hurry_save(self, number: int) -> None:
        self._saves.hurry(number)

    def _do_stop_save(self, number: int) -> bool:
        return self._saves.stop(number)


class _ShardSave:
    """A save on a thread of its own, which starts at once."""

    def __init__(self, snapshot: Snapshot, request: dict[str, Any]) -> None:
        self.snapshot, self._request = snapshot, request
        self.control, self.is_over = WriteControl(), threading.Event()
        self._files = [FileRequest(*file) for file in request["files"]]
        self._work = Work(len(snapshot), None, self.control)
        self._created: list[str] = []
        self._folder = open_folder(request["folder"])
        self._result: Written | None = None
        self._error: Exception | None = None
        threading.Thread(target=self._run, name="monolith-shard-save", daemon=True).start()

    def state(self) -> PartState:
        if self._error is not None:
            raise self._error
        progress, written = self._work.progress, self._result
        if written is None:
            return PartState(False, progress.num_rows, progress.num_bytes, 0, [])
        by_name = {file.path: file for file in written.files}
        files = [by_name[file.name] for file in self._files]
        facts = [(file.num_rows, file.num_bytes, file.crc32c) for file in files]
        num_expired = sum(written.num_expired)
        return PartState(True, progress.num_rows, progress.num_bytes, num_expired, facts)

    def remove_files(self) -> None:
        for name in self._created:
            with contextlib.suppress(OSError, OpError):  # the disk may be the reason
                delete(posixpath.join(self._folder.path, name))

    def _run(self) -> None:
        try:
            with storage_errors(_WHERE, f"write into {self._folder.path}"):
                self._result = self._write()
        except Exception as error:
            self.remove_files()
            self._error = error.with_traceback(None)  # which would keep the cut
        finally:
            self.is_over.set()

    def _write(self) -> Written:
        request, work = self._request, self._work
        cuts = [self.snapshot] if request["keeps_cut"] else []
        job = SaveJob(
            self._create,
            [],
            Throttle(request["rate"], wait=work.wait),
            work,
            cuts,
            with_expired=request["with_expired"],
        )
        facts = TableFacts(
            json.loads(request["config"]), request["num_update_calls"], request["latest_time"]
        )
        try:
            changes = self.snapshot.changes() if request["is_link"] else None
            writer = PartFiles(job, self.snapshot, facts, self._files, changes)
            run_all(work, writer.tasks(), request["num_threads"])
            work.finish()
        finally:
            work.close()
        return writer.written

    def _create(self, name: str) -> NewFile:
        file = self._folder.create(name)
        self._created.append(name)
        return file


def _check_folder(path: str) -> None:
    local = local_path(path)
    if local is not None and not os.path.isdir(local):
        raise NotFoundError(
            f"[{_WHERE}] expected the folder of the save, got none at {path}; servers need the "
            "same path to one folder"
        )
