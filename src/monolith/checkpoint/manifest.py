"""Write and parse the manifest of a checkpoint: `<prefix>.manifest.json`, the last file of a save.

Its paths are the parts after the prefix, so that a checkpoint may be moved or renamed.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from monolith.errors import DataLossError
from monolith.table.disk.table_manifest import (
    TableEntry,
    check_sum,
    checksum,
    get_field,
    parse_document,
    parse_tables,
)

MANIFEST_SUFFIX = ".manifest.json"
"""A checkpoint exists if the file `<prefix>.manifest.json` does."""
FORMAT = "monolith-checkpoint"
VERSION = 2
"""Version of the checkpoints that are written. Version 1 had no ids and no bases."""

_DENSE_PATH = re.compile(r"\.dense-[0-9]{5}-of-[0-9]{5}\.safetensors")
_TABLE_PATH = re.compile(
    r"\.assets/[A-Za-z0-9%_~.-]+-[0-9]{5}-of-[0-9]{5}(\.candidates|\.delta|\.tombstones)?\.arrow"
)
_NAME = re.compile(r"[^/\0]+")
_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class FileFact:
    """A file of a checkpoint.

    Args:
        path: what follows the prefix.
        num_bytes: its size.
        crc32c: of all its bytes, 8 hexadecimal digits.
    """

    path: str
    num_bytes: int
    crc32c: str


@dataclass(frozen=True)
class TensorFact:
    """A dense tensor: its dtype by torch's name, and its shape."""

    dtype: str
    shape: Sequence[int]


@dataclass(frozen=True)
class DenseFile(FileFact):
    """A file of dense tensors, with dtype and shape of each tensor by name."""

    tensors: Mapping[str, TensorFact]


@dataclass(frozen=True)
class Base:
    """The checkpoint that a link of a chain continues; both are in one directory.

    Args:
        name: name of the checkpoint, the last part of its prefix.
        id: its `CheckpointManifest.id`.
        num_rows: number of rows of each table of the link, with those of the base that stay.
    """

    name: str
    id: str
    num_rows: Mapping[str, int]


@dataclass(frozen=True)
class CheckpointManifest:
    """A checkpoint: a full one, or a link, which has the changes of tables since its base.

    Args:
        step: the global step; None if steps are not counted.
        dense: files of dense tensors.
        tables: with their files; those of a link have changed rows, and keys of removed rows.
        documents: the JSON files, by what they hold: "meta", "trainer".
        times: by name, in seconds since 1970.
        id: hash of content and times at the save, 16 hexadecimal digits, by which links name their
            base; empty in version 1. It stays when a link is made a full checkpoint.
        base: what a link continues; None for a full checkpoint.
    """

    step: int | None
    dense: Sequence[DenseFile] = ()
    tables: Sequence[TableEntry] = ()
    documents: Mapping[str, FileFact] = dataclasses.field(default_factory=dict)
    times: Mapping[str, float] = dataclasses.field(default_factory=dict)
    id: str = ""
    base: Base | None = None

    @property
    def num_rows(self) -> dict[str, int]:
        """Number of rows of each table by name; of a link, with the rows of its base that stay."""
        return {
            table.name: table.num_rows if self.base is None else self.base.num_rows[table.name]
            for table in self.tables
        }

    @property
    def files(self) -> list[FileFact]:
        """Every file except the manifest."""
        return [
            *self.dense,
            *self._table_files("candidates"),
            *self.row_files,
            *self.documents.values(),
        ]

    @property
    def row_files(self) -> list[FileFact]:
        """Files of rows, and of the keys of removed rows, which links after this one need too."""
        return self._table_files("rows", "tombstones")

    def _table_files(self, *kinds: str) -> list[FileFact]:
        return [
            FileFact(file.path, file.num_bytes, file.crc32c)
            for table in self.tables
            for file in table.files
            if file.kind in kinds
        ]

    def with_id(self) -> "CheckpointManifest":
        """Return the manifest of a new save, with its `id`."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return dataclasses.replace(self, id=hashlib.sha256(text.encode()).hexdigest()[:16])

    def to_json(self) -> bytes:
        """Return the bytes of the file; those of equal content and times are equal."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        times = content.pop("times")
        content["crc32c"] = checksum(content)
        content["times"] = {**times, "crc32c": checksum(times)}
        return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"


def parse_checkpoint_manifest(data: bytes, where: str) -> CheckpointManifest:
    """Read the manifest in the bytes of a file.

    Args:
        data: bytes of the file.
        where: its path, for messages.

    Raises:
        InvalidArgumentError: the file has another format or a newer version.
        DataLossError: the file is damaged.
    """
    content = parse_document(data, where, FORMAT, VERSION)
    times = dict(get_field(content, "times", dict, where))
    check_sum(times, where)
    check_sum({name: value for name, value in content.items() if name != "times"}, where)
    step = None if content.get("step") is None else get_field(content, "step", int, where)
    documents = get_field(content, "documents", dict, where)
    tables = parse_tables(content, where, _TABLE_PATH)
    has_id = content["version"] > 1
    base = _base(content, where) if has_id else None
    _check_base(base, tables, where)
    return CheckpointManifest(
        step,
        tuple(_dense(item, where) for item in get_field(content, "dense", list, where)),
        tables,
        {name: _document(name, item, where) for name, item in documents.items()},
        {name: value for name, value in times.items() if name != "crc32c"},
        _text(content, "id", _ID, where) if has_id else "",
        base,
    )


def _base(content: Any, where: str) -> Base | None:
    if content.get("base") is None:
        return None
    base = get_field(content, "base", dict, where)
    counts = get_field(base, "num_rows", dict, where)
    num_rows = {name: get_field(counts, name, int, where) for name in counts}
    return Base(_text(base, "name", _NAME, where), _text(base, "id", _ID, where), num_rows)


def _check_base(base: Base | None, tables: Sequence[TableEntry], where: str) -> None:
    """Refuse a link that does not count the rows of a table, and removed rows in a full save."""
    for table in tables:
        has_removed = any(file.kind == "tombstones" for file in table.files)
        if base is None and has_removed:
            expected, got = "a base", "none"
        elif base is not None and table.name not in base.num_rows:
            expected, got = "a number of rows", f"those of {sorted(base.num_rows)}"
        else:
            continue
        raise DataLossError(
            f"[load_tables] expected {expected} for the link's table {table.name!r}, got {got} "
            f"({where})"
        )


def _text(content: Any, name: str, pattern: "re.Pattern[str]", where: str) -> str:
    text = get_field(content, name, str, where)
    if not pattern.fullmatch(text):
        raise DataLossError(f"[load_tables] expected field {name!r}, got {text!r} ({where})")
    return text


def _fact(content: Any, where: str, pattern: "re.Pattern[str]") -> FileFact:
    path = get_field(content, "path", str, where)
    if not pattern.fullmatch(path):
        raise DataLossError(f"[load_tables] expected a file of it, got {path!r} ({where})")
    return FileFact(
        path,
        get_field(content, "num_bytes", int, where),
        get_field(content, "crc32c", str, where),
    )


def _document(name: str, content: Any, where: str) -> FileFact:
    return _fact(content, where, re.compile(rf"\.{re.escape(name)}\.json"))


def _dense(content: Any, where: str) -> DenseFile:
    fact = _fact(content, where, _DENSE_PATH)
    tensors = {
        name: TensorFact(
            get_field(item, "dtype", str, where), tuple(get_field(item, "shape", list, where))
        )
        for name, item in get_field(content, "tensors", dict, where).items()
    }
    return DenseFile(fact.path, fact.num_bytes, fact.crc32c, tensors)
