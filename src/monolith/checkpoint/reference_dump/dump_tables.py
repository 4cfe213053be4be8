"""Decide which table of a task takes the rows of which table of a dump."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from monolith.checkpoint.reference_dump.dump_files import DumpFolder, DumpSet
from monolith.checkpoint.reference_dump.dump_metadata import read_runs
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError
from monolith.table.base import BaseTable
from monolith.table.config import segments_of

FILTER_REASON = (
    "a filter counts hashes that only the process that wrote it could compute, so it has no ids"
)
"""Why filters are not imported."""


@dataclass(frozen=True)
class Choice:
    """A table that takes the rows of a table of the dumps, whatever the names are.

    Args:
        dump: name of the table in the dumps.
        table: name of the table.
        slot: slot of the ids whose rows are taken, the upper bits of a fid v2; None takes all rows.
    """

    dump: str
    table: str
    slot: int | None = None


@dataclass(frozen=True)
class DumpTable:
    """A table in the dumps of a checkpoint.

    Args:
        name: its name.
        sets: dumps that hold its rows, of all parameter servers.
        num_rows: number of its rows by the metadata; None for dumps of one table, which have none.
    """

    name: str
    sets: tuple[DumpSet, ...]
    num_rows: int | None


@dataclass(frozen=True)
class Matches:
    """Which table takes the rows of which table of the dumps.

    Args:
        dumps: tables of the dumps by name.
        choices: name of a table of the dumps -> who takes its rows; unused tables are missing.
    """

    dumps: Mapping[str, DumpTable]
    choices: Mapping[str, Sequence[Choice]]

    @property
    def unused(self) -> list[DumpTable]:
        """Tables of the dumps whose rows no table takes."""
        return [dump for name, dump in self.dumps.items() if name not in self.choices]


def match_tables(
    folder: DumpFolder, tables: Sequence[BaseTable], choices: Sequence[Choice] = ()
) -> Matches:
    """Find the table for each table of the dumps.

    A table takes the dump of its name, else that of the first of its `restore_names` that is there,
    else the same for the MD5 of these names, which the reference system gives to merged tables. A
    table that a choice names takes the dumps of its choices alone.

    Args:
        folder: dumps of a checkpoint.
        tables: tables that may take rows.
        choices: choices of the user, with the names of tables.

    Raises:
        NotFoundError: the dumps have no table of a choice.
        DataLossError: a shard or the dump of a parameter server is missing.
        InvalidArgumentError: a name stands for two tables, or a choice names a filter.
    """
    folder.check(dump for dump in folder.sets if dump.kind != "filter")
    aliases = {table.name: _aliases(table) for table in tables}
    dumps = _dump_tables(folder, aliases, {choice.dump for choice in choices})
    filters = {dump.name for dump in folder.sets if dump.kind == "filter"}
    for choice in choices:
        if choice.dump in filters:
            raise InvalidArgumentError(
                f"[reference dump] expected a table of the dumps, got the filter {choice.dump!r}; "
                f"{FILTER_REASON}"
            )
        if choice.dump not in dumps:
            near = get_close_matches(choice.dump, dumps, 3) or sorted(dumps)[:5]
            raise NotFoundError(
                f"[reference dump] expected a table of the dumps, got {choice.dump!r}; the dumps "
                f"have {', '.join(near)}"
            )
    matched: dict[str, list[Choice]] = defaultdict(list)
    for choice in choices:
        matched[choice.dump].append(choice)
    served = {choice.table for choice in choices}
    free = {_file_name(name): name for name in dumps if name not in matched}
    for num_names in (1, None):  # the name of one table may be an older name of another
        for table, names in aliases.items():
            found = next(
                (name for name in map(_file_name, names[:num_names]) if name in free), None
            )
            if found is not None and table not in served:
                served.add(table)
                dump = free.pop(found)
                matched[dump].append(Choice(dump, table))
    return Matches(dumps, {name: matched[name] for name in dumps if name in matched})


def merged_tables(name: str, tables: Sequence[BaseTable]) -> list[str]:
    """Return the tables that a dump with an MD5 name merges; empty if they are not known.

    The reference system merges tables of equal configs, and names the result after all of them.
    """
    groups = defaultdict(list)
    for table in tables:
        groups[repr(segments_of(table.config))].append(table.name)
    return next((group for group in groups.values() if _md5(",".join(sorted(group))) == name), [])


def _dump_tables(
    folder: DumpFolder, aliases: Mapping[str, Sequence[str]], chosen: set[str]
) -> dict[str, DumpTable]:
    known = {_file_name(alias) for names in aliases.values() for alias in names}
    sets: dict[str, list[DumpSet]] = defaultdict(list)
    counts: dict[str, int] = {}
    by_server: dict[str, dict[int, str]] = defaultdict(dict)  # beginning of names -> its servers
    for dump in folder.sets:
        name = dump.stem
        if dump.kind == "table":
            name = _name_of(dump, known, chosen)
            sets[name].append(dump)
        for metadata in dump.metadata:
            for table, count in read_runs(folder, metadata):
                counts[table] = counts.get(table, 0) + count
                if dump not in sets[table]:
                    sets[table].append(dump)
        if dump.server is not None and name == dump.stem:
            by_server[dump.name.removesuffix(str(dump.server))][dump.server] = dump.name
    _check_servers(folder, by_server)
    return {name: DumpTable(name, tuple(found), counts.get(name)) for name, found in sets.items()}


def _name_of(dump: DumpSet, known: set[str], chosen: set[str]) -> str:
    """Return the table of a dump of one table: the suffix, or its stem on a parameter server.

    Raises:
        InvalidArgumentError: there are tables of both names.
    """
    names = list(dict.fromkeys([dump.suffix, dump.stem]))
    for among in (chosen, known):
        found = [name for name in names if name in among]
        if len(found) > 1:
            raise InvalidArgumentError(
                f"[reference dump] expected one table for {dump.name}, got {found[0]!r} and "
                f"{found[1]!r} of parameter server {dump.server}; choose one: "
                f"--table {found[0]}={found[0]} or --table {found[1]}={found[1]}"
            )
        if found:
            return found[0]
    return dump.suffix


def _check_servers(folder: DumpFolder, by_server: Mapping[str, Mapping[int, str]]) -> None:
    """Refuse dumps that a parameter server lacks although another one, or its filter, is there."""
    num_servers = 1 + max((max(servers) for servers in by_server.values()), default=-1)
    for begin, servers in by_server.items():
        missing = [f"{begin}{i}" for i in range(num_servers) if i not in servers]
        if missing and not begin.startswith("hash_filter_"):
            raise DataLossError(
                f"[reference dump] expected {begin}* of {num_servers} parameter servers, got "
                f"{len(servers)}; missing: {', '.join(missing)} ({folder.path})"
            )


def _aliases(table: BaseTable) -> list[str]:
    names = [table.name, *table.restore_names]
    return [*names, *map(_md5, names)]


def _md5(name: str) -> str:
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()


def _file_name(table: str) -> str:
    """Return a table's name as the names of files have it."""
    return table.replace(":", "-").replace("/", "-")
