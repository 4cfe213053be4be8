"""Find the dumps in a checkpoint of the reference system by the names of their files."""

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from monolith.checkpoint.state import read_checkpoint_state
from monolith.checkpoint.storage import list_names, storage_errors
from monolith.errors import DataLossError, NotFoundError
from monolith.table.disk.folder import open_folder

_SHARD = re.compile(r"(.+)-(\d{5,})-of-(\d{5,})")
_TABLE_OF_SERVER, _SERVER = re.compile(r"(.+)_(\d+)"), re.compile(r"()(\d+)")
_NUM_MISSING = 3  # shards that a message names
_ASSETS = ".assets"
_METADATA = ".meta"
_KINDS = MappingProxyType(
    {
        "table": "MonolithHashTable_",
        "tables": "MonolithMultiHashTable_",
        "filter": "hash_filter_",
    }
)


@dataclass(frozen=True)
class DumpSet:
    """The files of one dump, one file for each shard.

    Args:
        kind: "table" for the rows of one table, "tables" for the rows of many tables, one after the
            other, "filter" for the counters of an admission filter.
        name: beginning of the file names, before the number of the shard.
        suffix: part of the name after its kind: the table, the parameter server, or both.
        stem: the suffix without a parameter server at its end.
        server: parameter server at the end of the suffix; None if there is no number. The name of a
            table may end like this too.
        files: names of the files in the order of the shards.
        metadata: of kind "tables", names of the files that count the rows of each table.
        num_bytes: size of all files.
        problem: expected and actual shards, if the set is not complete; otherwise empty.
    """

    kind: str
    name: str
    suffix: str
    stem: str
    server: int | None
    files: Sequence[str]
    metadata: Sequence[str]
    num_bytes: int
    problem: str


class DumpFolder:
    """The folder with the dumps of one checkpoint.

    Args:
        path: path of the folder.

    Attributes:
        sets: dumps that the folder has, sorted by kind, name and parameter server.
        step: global step of the checkpoint, from the folder's name; None if the name has none.
    """

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/")
        self._folder = open_folder(self.path)
        self.step = _step_of(self.path)
        names = list_names(self.path)
        self.sets = sorted((self._set(*dump, names) for dump in _dump_names(names)), key=_order)

    def where(self, file: str) -> str:
        """Return the path of a file, for messages."""
        return self._folder.where(file)

    def size(self, file: str) -> int:
        """Return the size of a file; raises NotFoundError if it was removed."""
        with storage_errors("reference dump", f"read {self.where(file)}"):
            return self._folder.size(file)

    def chunks(self, file: str, num_bytes: int) -> Iterator[bytes]:
        """Yield the bytes of a file in parts of at most `num_bytes`."""
        with storage_errors("reference dump", f"read {self.where(file)}"):
            yield from self._folder.read_chunks(file, num_bytes)

    def check(self, dumps: Iterable[DumpSet]) -> None:
        """Refuse dumps of which a shard is missing.

        Raises:
            DataLossError: the error names the dump and its missing shards.
        """
        for dump in dumps:
            if dump.problem:
                raise DataLossError(f"[reference dump] {dump.problem} ({self.where(dump.name)})")

    def _set(self, kind: str, name: str, names: Sequence[str]) -> DumpSet:
        files, problem = shards_of(name, names)
        metadata: list[str] = []
        if kind == "tables":
            metadata, problem_of_metadata = shards_of(name + _METADATA, names)
            problem = problem or problem_of_metadata
            if not problem and len(files) != len(metadata):
                problem = f"expected {len(files)} files {name}{_METADATA}-*, got {len(metadata)}"
        num_bytes = sum(map(self.size, [*files, *metadata]))
        suffix = name.removeprefix(_KINDS[kind])
        match = (_TABLE_OF_SERVER if kind == "table" else _SERVER).fullmatch(suffix)
        stem, server = (suffix, None) if match is None else (match[1], int(match[2]))
        return DumpSet(kind, name, suffix, stem, server, files, metadata, num_bytes, problem)


def shards_of(base: str, names: Iterable[str]) -> tuple[list[str], str]:
    """Return the shards of a base name, and what is wrong with them.

    A shard is called `<base>-<i>-of-<n>`, both numbers with five digits; other names, such as those
    of unfinished files, are ignored. The shards are complete if all have one n, and each i below n
    is there.

    Returns:
        The names of the shards in order, and expected and actual shards or an empty text.

    Example:
        >>> shards_of("a", ["a-00001-of-00002", "a-00000-of-00002", "a-00000-of-00002-tmp-7"])
        (['a-00000-of-00002', 'a-00001-of-00002'], '')
        >>> shards_of("a", ["a-00000-of-00002"])[1]
        'expected 2 shards, got 1 of them; missing: a-00001-of-00002'
    """
    matches = [match for name in names if (match := _SHARD.fullmatch(name)) and match[1] == base]
    shards = sorted((int(match[3]), int(match[2]), match[0]) for match in matches)
    files = [name for _, _, name in shards]
    counts = sorted({count for count, _, _ in shards})
    if not shards:
        return [], f"expected shards {base}-00000-of-*, got none"
    if len(counts) > 1:
        listed = " and of ".join(map(str, counts))
        return files, f"expected shards of one save, got shards of {listed} ({base}-*)"
    count, indices = counts[0], {index for _, index, _ in shards}
    beyond = [name for _, index, name in shards if index >= count]
    if beyond:
        return files, f"expected shards 0 to {count - 1} of {count}, got {beyond[0]}"
    missing = [i for i in range(min(count, len(files) + _NUM_MISSING)) if i not in indices]
    if missing:
        names = [f"{base}-{index:05}-of-{count:05}" for index in missing[:_NUM_MISSING]]
        return files, (
            f"expected {count} shards, got {len(files)} of them; missing: {', '.join(names)}"
            + (" and others" if count - len(files) > len(names) else "")
        )
    return files, ""


def open_dumps(path: "str | os.PathLike[str]") -> DumpFolder:
    """Open the dumps of a checkpoint of the reference system.

    Args:
        path: folder with dumps (`model.ckpt-700.assets`), prefix of a checkpoint
            (`model.ckpt-700`), or model directory, whose current checkpoint is taken.

    Raises:
        NotFoundError: there are no dumps.
    """
    place = os.fspath(path).rstrip("/") or "/"
    folder = find_dumps(place)
    if folder is None:
        current = _asset_folders(place)
        got = f"{current[0]} without any" if current else "no such file"
        raise NotFoundError(
            "[reference dump] expected a folder with files MonolithHashTable_* or "
            f"MonolithMultiHashTable_*, or a model directory whose checkpoint has one, got {got} "
            f"at {place!r}"
        )
    return folder


def find_dumps(path: "str | os.PathLike[str]") -> DumpFolder | None:
    """Open dumps as `open_dumps` does; None if there are no dumps."""
    place = os.fspath(path).rstrip("/") or "/"
    for folder in (place, place + _ASSETS, *_asset_folders(place)):
        if _dump_names(list_names(folder)):
            return DumpFolder(folder)
    return None


def _asset_folders(directory: str) -> list[str]:
    """Return where a directory's current checkpoint has its dumps; without a state, the newest."""
    state = read_checkpoint_state(directory)
    if state is not None:
        saved = state.model_checkpoint_path + _ASSETS
        # The state may have the path of another machine.
        return list(dict.fromkeys([saved, posixpath.join(directory, posixpath.basename(saved))]))
    names = [name for name in list_names(directory) if name.endswith(_ASSETS)]
    names = [name for name in names if _dump_names(list_names(posixpath.join(directory, name)))]
    newest = max(names, key=lambda name: (_step_of(name) or 0, name), default=None)
    return [] if newest is None else [posixpath.join(directory, newest)]


def _step_of(folder: str) -> int | None:
    number = re.search(rf"-(\d+){re.escape(_ASSETS)}\Z", folder)
    return None if number is None else int(number[1])


def _dump_names(names: Iterable[str]) -> set[tuple[str, str]]:
    """Return kind and name of the dumps that some files belong to."""
    dumps = set()
    for match in filter(None, map(_SHARD.fullmatch, names)):
        for kind, begin in _KINDS.items():
            if match[1].startswith(begin):
                name = match[1].removesuffix(_METADATA) if kind == "tables" else match[1]
                dumps.add((kind, name))
    return dumps


def _order(dump: DumpSet) -> tuple[str, str, int, str]:
    return dump.kind, dump.stem, -1 if dump.server is None else dump.server, dump.name
