"""Write and parse the manifest of a checkpoint: `<prefix>.manifest.json`, the last file of a save.

Its paths are the parts after the prefix, so that a checkpoint may be moved or renamed.
"""

import dataclasses
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
VERSION = 1
"""Version of the checkpoints that are written."""

_DENSE_PATH = re.compile(r"\.dense-[0-9]{5}-of-[0-9]{5}\.safetensors")
_TABLE_PATH = re.compile(r"\.assets/[A-Za-z0-9%_~.-]+-[0-9]{5}-of-[0-9]{5}(\.candidates)?\.arrow")


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
class CheckpointManifest:
    """A checkpoint.

    Args:
        step: the global step; None if steps are not counted.
        dense: files of dense tensors.
        tables: with their files.
        documents: the JSON files, by what they hold: "meta", "trainer".
        times: by name, in seconds since 1970.
    """

    step: int | None
    dense: Sequence[DenseFile] = ()
    tables: Sequence[TableEntry] = ()
    documents: Mapping[str, FileFact] = dataclasses.field(default_factory=dict)
    times: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def files(self) -> list[FileFact]:
        """Every file except the manifest."""
        of_tables = [
            FileFact(file.path, file.num_bytes, file.crc32c)
            for table in self.tables
            for file in table.files
        ]
        return [*self.dense, *of_tables, *self.documents.values()]

    def to_json(self) -> bytes:
        """Return the bytes of the file; those of equal checkpoints differ in "times" only."""
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
    return CheckpointManifest(
        step,
        tuple(_dense(item, where) for item in get_field(content, "dense", list, where)),
        parse_tables(content, where, _TABLE_PATH),
        {name: _document(name, item, where) for name, item in documents.items()},
        {name: value for name, value in times.items() if name != "crc32c"},
    )


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
