"""Files of a save that other processes write: those that hold the rows, such as servers."""

import posixpath
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from monolith.errors import NotFoundError
from monolith.table.disk.config_json import config_to_json
from monolith.table.disk.folder import Folder
from monolith.table.disk.ranges import Run
from monolith.table.disk.remote.remote_jobs import RemoteJobs
from monolith.table.disk.table_manifest import FileEntry
from monolith.table.disk.workers import Work
from monolith.table.snapshot import Snapshot


class FileRequest(NamedTuple):
    """A file to write: its name, its kind as of `FileEntry`, and its partitions."""

    name: str
    kind: str
    runs: tuple[Run, ...]


class Place(NamedTuple):
    """Place of the files of a save.

    Attributes:
        folder: folder of the save, which every writing process sees under the same path.
        reserve: function that returns the name of a file, relative to the folder, until all files
            are written.
    """

    folder: Folder
    reserve: Callable[[str], str]


@dataclass(frozen=True)
class TableFacts:
    """What the files of a table say about the whole table at the cut.

    Args:
        config: config as JSON.
        num_update_calls: apply-call number.
        latest_time: largest update time that the table had seen.
    """

    config: Any
    num_update_calls: int
    latest_time: int

    @classmethod
    def of(cls, snapshot: Snapshot) -> "TableFacts":
        """Return the facts at a cut."""
        config = config_to_json(snapshot.config)
        return cls(config, snapshot.num_update_calls, snapshot.latest_time)


@dataclass(frozen=True)
class WriteRequest:
    """How all parts of a table write their files.

    Args:
        place: place of the files.
        facts: facts about the table.
        is_link: whether to write only the changes since the cursor's read before the cut.
        with_expired: whether to write expired rows too.
        keeps_cut: whether the rows of the cut stay after they are written.
        rate: largest number of bytes per second of all parts together; None means no bound.
        num_threads: number of writing threads of each part.
    """

    place: Place
    facts: TableFacts
    is_link: bool
    with_expired: bool
    keeps_cut: bool
    rate: float | None
    num_threads: int


class Written(NamedTuple):
    """Files that were written, and for each file of rows how many expired rows were left out."""

    files: list[FileEntry]
    num_expired: list[int]


class PartResult(NamedTuple):
    """Result of a part that has written its files.

    Attributes:
        num_expired: number of expired rows that were left out.
        files: number of rows, number of bytes and checksum of each file, as requested.
    """

    num_expired: int
    files: list[tuple[int, int, str]]


class Part(NamedTuple):
    """A part of a cut.

    Attributes:
        runs: partitions of the part.
        num_rows: number of rows.
        label: name of the process that holds the rows, for messages.
    """

    runs: list[Run]
    num_rows: int
    label: str


class RemoteFiles(RemoteJobs):
    """The parts of a cut whose files are written by other processes. For one thread.

    The result of a job is a `PartResult`.

    Attributes:
        parts: parts of the cut, in the order of their partitions.
    """

    parts: Sequence[Part]

    @abstractmethod
    def start(self, request: WriteRequest, files: Sequence[Sequence[FileRequest]]) -> None:
        """Let each part write its files in the background; parts without files do nothing."""


def write_remotely(
    remote: RemoteFiles,
    request: WriteRequest,
    parts: Sequence[Sequence[FileRequest]],
    work: Work,
) -> list[Written]:
    """Let the parts of a cut write their files, and wait for them.

    Args:
        remote: parts of the cut.
        request: how to write.
        parts: files of each part; the names are those of the complete save.
        work: receives the progress, and says whether to continue.

    Raises:
        NotFoundError: this process does not see a file that a part has written.
    """
    reserve = request.place.reserve
    files = [[file._replace(name=reserve(file.name)) for file in part] for part in parts]
    try:
        remote.start(request, files)
        results = [PartResult(*state.result) for state in remote.wait(work)]
        for part, requests, result in zip(remote.parts, files, results, strict=True):
            _check_visible(request.place.folder, part, requests, result)
    except BaseException:
        remote.end()
        raise
    return [_written(part, result) for part, result in zip(parts, results, strict=True)]


def _check_visible(
    folder: Folder, part: Part, requests: Sequence[FileRequest], result: PartResult
) -> None:
    for request, (_, num_bytes, _) in zip(requests, result.files, strict=True):
        try:
            got: int | None = folder.size(request.name)
        except NotFoundError:
            got = None
        if got != num_bytes:
            raise NotFoundError(
                f"[save_tables] expected {posixpath.basename(request.name)} with {num_bytes} bytes "
                f"of {part.label} in {folder.path}, got {'none' if got is None else got}; servers "
                "need the same path to one folder"
            )


def _written(requests: Sequence[FileRequest], result: PartResult) -> Written:
    entries = [
        FileEntry(name, kind, runs, num_rows, num_bytes, crc)
        for (name, kind, runs), (num_rows, num_bytes, crc) in zip(
            requests, result.files, strict=True
        )
    ]
    return Written(entries, [result.num_expired])
