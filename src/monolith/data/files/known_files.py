"""The files that a state knows, and how the files that are there now differ from them."""

import posixpath
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from monolith.data.cursor import State
from monolith.data.files.file_source import FileSource
from monolith.data.files.listing import DataFile
from monolith.errors import FailedPreconditionError

WHERE = "[Pipeline.resume]"
ANEW = (
    "or read all files from their beginning with iter(pipeline), which the source of a task may "
    "return"
)
_SHOWN = 5  # names of files in a message


@dataclass(frozen=True)
class KnownFiles:
    """Files of a source in the order of their arrivals.

    Args:
        files: files with their sizes.
        num_read: number of files of earlier arrivals, which are read.
    """

    files: Sequence[DataFile]
    num_read: int = 0

    @property
    def current(self) -> Sequence[DataFile]:
        """Files of the last arrival."""
        return self.files[self.num_read :]

    def to_state(self) -> State:
        """Return the files as JSON; the folder that all of them share is written once."""
        paths = [file.path for file in self.files]
        folder = posixpath.commonprefix(paths).rpartition("/")[0]
        start = len(folder) + 1 if folder else 0
        return {
            "folder": folder,
            "names": [path[start:] for path in paths],
            "sizes": [file.size for file in self.files],
            "num_read": self.num_read,
        }

    @classmethod
    def from_state(cls, state: State, source: FileSource) -> "KnownFiles":
        """Return the files of a state of a source; files that are gone lie where others are."""
        systems = {file.path: file.system for file in source.files}
        start = f"{state['folder']}/" if state["folder"] else ""
        paths = [start + name for name in state["names"]]
        files = [
            DataFile(systems.get(path, source.files[0].system), path, size)
            for path, size in zip(paths, state["sizes"], strict=True)
        ]
        return cls(files, state["num_read"])


@dataclass(frozen=True)
class FileChanges:
    """Known files that are there and that are gone, and files that are new."""

    kept: list[DataFile]
    gone: list[DataFile]
    new: list[DataFile]

    @classmethod
    def of(cls, known: KnownFiles, source: FileSource) -> "FileChanges":
        """Compare known files with those of a source.

        Raises:
            FailedPreconditionError: a file has another size, or all files were moved.
        """
        sizes = {file.path: file.size for file in source.files}
        for file in known.files:
            if sizes.get(file.path, file.size) != file.size:
                raise FailedPreconditionError(
                    f"{WHERE} expected file {file.path!r} of {file.size} bytes, as when the state "
                    f"was taken, got {sizes[file.path]}; put the file of then back, {ANEW}"
                )
        kept = [file for file in known.files if file.path in sizes]
        gone = [file for file in known.files if file.path not in sizes]
        counts = Counter(file.path for file in known.files)  # a file may be listed several times
        new = []
        for file in source.files:
            counts[file.path] -= 1
            if counts[file.path] < 0:
                new.append(file)
        if not kept and {_twin(file) for file in gone} <= {_twin(file) for file in new}:
            raise FailedPreconditionError(
                f"{WHERE} expected the files of the state, such as {gone[0].path!r}, got files of "
                f"the same names and sizes at another place, such as {new[0].path!r}; give the "
                f"path of then, which may be a link, {ANEW}"
            )
        return cls(kept, gone, new)


def _twin(file: DataFile) -> tuple[str, int]:
    return posixpath.basename(file.path), file.size


def words_of_changes(changes: Sequence[FileChanges]) -> str:
    """Return which files are new and which are gone, for errors."""
    new = [file for each in changes for file in each.new]
    gone = [file for each in changes for file in each.gone]
    words = [f"{len(new):,} new ({first_paths(new)})"] if new else []
    return " and ".join([*words, *([f"{len(gone):,} gone ({first_paths(gone)})"] if gone else [])])


def first_paths(files: Sequence[DataFile]) -> str:
    """Return the first paths, for messages.

    Example:
        >>> first_paths([DataFile(None, f"{i}.csv", 0) for i in range(7)])
        '0.csv, 1.csv, 2.csv, 3.csv, 4.csv, ...'
    """
    paths = [file.path for file in files[:_SHOWN]]
    return ", ".join([*paths, "..."] if len(files) > _SHOWN else paths)
