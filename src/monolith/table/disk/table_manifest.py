"""Manifest of a save: its tables, its files, and the checksum of each file.

```
path/manifest.json                                 replaced as a whole by a complete new save
path/data-<id>/0-user.rows-0000-2047.arrow         partitions 0 to 2047 of the table 'user'
path/data-<id>/0-user.candidates-0000-2047.arrow   what admission remembers of them
```
"""

import json
import re
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from monolith.errors import DataLossError, InvalidArgumentError
from monolith.table._checks import MAX_TIME
from monolith.table.config import NUM_PARTITIONS
from monolith.table.disk.buffers import crc32c
from monolith.table.disk.ranges import Run, join_runs, partitions_of_runs, runs_of, text_of

MANIFEST = "manifest.json"
FORMAT = "monolith-tables"
VERSION = 1
"""Version of the written files."""

_PATH = re.compile(r"data-[0-9a-f]+/[A-Za-z0-9%_~.-]+\.arrow")
_DATA_FOLDER = re.compile(r"data-[0-9a-f]{12}")
_DATA_FILE = re.compile(r"\d+-[A-Za-z0-9%_~.-]*\.(rows|candidates)-\d{4}-\d{4}\.arrow")
_KINDS = ("rows", "candidates", "tombstones")
_MAX_INT = (1 << 63) - 1

T = TypeVar("T")


@dataclass(frozen=True)
class FileEntry:
    """A file of a table.

    Args:
        path: path relative to the manifest.
        kind: "rows", "candidates", or "tombstones" (keys of removed rows).
        partitions: runs of partitions in the file.
        num_rows: number of rows in all its batches.
        num_bytes: size of the file.
        crc32c: CRC-32C of the file as 8 hexadecimal digits.
    """

    path: str
    kind: str
    partitions: tuple[Run, ...]
    num_rows: int
    num_bytes: int
    crc32c: str


@dataclass(frozen=True)
class TableEntry:
    """A table of a save.

    Args:
        name: name of the table.
        config: config as JSON (`config_json.py`).
        seed: seed of initial values and rounding; also in the config.
        num_update_calls: apply-call number.
        latest_time: largest update time that the table had seen.
        partitions: runs of saved partitions.
        num_rows: number of rows in all files.
        num_expired: number of expired rows that the save left out.
        files: files of rows first, ascending by partition.
    """

    name: str
    config: Any
    seed: int
    num_update_calls: int
    latest_time: int
    partitions: tuple[Run, ...]
    num_rows: int
    num_expired: int
    files: tuple[FileEntry, ...]


@dataclass(frozen=True)
class Manifest:
    """Content of a manifest file."""

    tables: tuple[TableEntry, ...]

    def to_json(self) -> bytes:
        """Return the bytes of the file; the last field is the checksum of the others."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        content["crc32c"] = checksum(content)
        return json.dumps(content, indent=1).encode() + b"\n"

    def data_folders(self) -> set[str]:
        """Return the names of the folders with the files."""
        return {file.path.split("/")[0] for table in self.tables for file in table.files}


def checksum(content: Any) -> str:
    """Return the CRC-32C of a JSON value, independent of the order of its keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"{crc32c(text.encode()):08x}"


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Return the manifest in the bytes of a file.

    Args:
        data: bytes of the file.
        where: path of the file, for messages.

    Raises:
        InvalidArgumentError: the format is unknown, or its version too new.
        DataLossError: the manifest is damaged.
    """
    content = parse_document(data, where, FORMAT, VERSION)
    check_sum(content, where)
    return Manifest(parse_tables(content, where, _PATH))


def parse_tables(content: Any, where: str, path: "re.Pattern[str]") -> tuple[TableEntry, ...]:
    """Return the tables of the field "tables"; the paths of their files match the pattern.

    Raises:
        DataLossError: the field is damaged.
    """
    tables = get_field(content, "tables", list, where)
    return tuple(_table(table, where, path) for table in tables)


def is_data_folder(name: str) -> bool:
    """Whether a save may have created a folder of this name.

    Example:
        >>> is_data_folder("data-0123456789ab"), is_data_folder("data-raw")
        (True, False)
    """
    return _DATA_FOLDER.fullmatch(name) is not None


def is_data_file(name: str) -> bool:
    """Whether a save may have created a file of this name in its folder.

    Example:
        >>> is_data_file("0-user.rows-0000-4095.arrow"), is_data_file("notes.arrow")
        (True, False)
    """
    return _DATA_FILE.fullmatch(name) is not None


def is_readable(version: int, newest: int | None = None) -> bool:
    """Whether this package reads a version: the newest one (`VERSION`) and the previous one."""
    newest = VERSION if newest is None else newest
    return max(1, newest - 1) <= version <= newest


def parse_document(data: bytes, where: str, form: str, version: int) -> dict[str, Any]:
    """Return a JSON document of a format, of its version or the previous one.

    Raises:
        InvalidArgumentError: the format is unknown, or its version too new.
        DataLossError: the document is damaged.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataLossError(f"[load_tables] expected JSON, got {error} ({where})") from error
    format_name = content.get("format") if isinstance(content, dict) else None
    if format_name != form:
        raise InvalidArgumentError(
            f"[load_tables] expected a file of format {form!r}, got {format_name!r} ({where})"
        )
    got = get_field(content, "version", int, where)
    if not is_readable(got, version):
        hint = "; a newer monolith-torch wrote it" if got > version else ""
        raise InvalidArgumentError(
            f"[load_tables] expected version {version} or the one before, got {got} ({where}){hint}"
        )
    assert isinstance(content, dict)
    return content


def check_sum(content: dict[str, Any], where: str) -> None:
    """Remove the checksum from a document, and refuse a checksum that differs from the content.

    Raises:
        DataLossError: the document is damaged.
    """
    expected = content.pop("crc32c", None)
    got = checksum(content)
    if got != expected:
        raise DataLossError(
            f"[load_tables] expected checksum {expected!r}, got {got!r} ({where}); it is damaged"
        )


def get_field(content: Any, name: str, kind: type[T], where: str) -> T:
    """Return a field of a JSON object; raises `DataLossError` for a missing or invalid field."""
    value = content.get(name) if isinstance(content, dict) else None
    is_number = kind is int and isinstance(value, int) and not 0 <= value <= _MAX_INT
    if not isinstance(value, kind) or isinstance(value, bool) or is_number:
        raise _damage(f"field {name!r} as {kind.__name__}", repr(value), where)
    return value


def _damage(expected: str, got: str, where: str) -> DataLossError:
    return DataLossError(f"[load_tables] expected {expected}, got {got} ({where})")


def _table(content: Any, where: str, path: "re.Pattern[str]") -> TableEntry:
    name = get_field(content, "name", str, where)
    runs = _runs(content, where)
    files = tuple(_file(file, where, path) for file in get_field(content, "files", list, where))
    _check_cover(name, runs, files, where)
    config = get_field(content, "config", dict, where)
    seed = config.get("seed")
    if not isinstance(seed, int) or content.get("seed") != seed or config.get("name") != name:
        raise _damage(f"the name and seed of table {name!r} in its config", repr(seed), where)
    num_rows = sum(file.num_rows for file in files if file.kind == "rows")
    if get_field(content, "num_rows", int, where) != num_rows:
        raise _damage(f"{content['num_rows']} rows of table {name!r}", str(num_rows), where)
    latest_time = get_field(content, "latest_time", int, where)
    if latest_time > MAX_TIME:
        raise _damage(f"a time in [0, {MAX_TIME}]", str(latest_time), where)
    return TableEntry(
        name,
        config,
        seed,
        get_field(content, "num_update_calls", int, where),
        latest_time,
        runs,
        num_rows,
        get_field(content, "num_expired", int, where),
        files,
    )


def _runs(content: Any, where: str) -> tuple[Run, ...]:
    return tuple(_run(run, where) for run in get_field(content, "partitions", list, where))


def _run(content: Any, where: str) -> Run:
    is_pair = isinstance(content, list) and [type(number) for number in content] == [int, int]
    if not is_pair or not 0 <= content[0] <= content[1] < NUM_PARTITIONS:
        raise _damage(f"first and last partition below {NUM_PARTITIONS}", repr(content), where)
    return content[0], content[1]


def _file(content: Any, where: str, pattern: "re.Pattern[str]") -> FileEntry:
    path, kind = get_field(content, "path", str, where), get_field(content, "kind", str, where)
    if not pattern.fullmatch(path):
        raise _damage("a file of the save", repr(path), where)
    if kind not in _KINDS:
        raise _damage(f"a file of kind {' or '.join(map(repr, _KINDS))}", repr(kind), where)
    return FileEntry(
        path,
        kind,
        _runs(content, where),
        get_field(content, "num_rows", int, where),
        get_field(content, "num_bytes", int, where),
        get_field(content, "crc32c", str, where),
    )


def _check_cover(
    name: str, runs: tuple[Run, ...], files: tuple[FileEntry, ...], where: str
) -> None:
    """Check that files of rows cover each partition of the table exactly once."""
    row_runs = [run for file in files if file.kind == "rows" for run in file.partitions]
    if join_runs(row_runs) != list(runs):
        covered = sorted(set(partitions_of_runs(row_runs)))
        raise _damage(
            f"files of the partitions {text_of(runs)} of table {name!r}",
            text_of(runs_of(covered)),
            where,
        )
