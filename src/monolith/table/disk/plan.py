"""Plan of a load: the files of one save, or of several with parts of the same tables."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.table.config import NUM_PARTITIONS, TableConfig, name_seed
from monolith.table.disk.config_json import first_difference
from monolith.table.disk.folder import Folder, open_folder
from monolith.table.disk.ranges import runs_of, text_of
from monolith.table.disk.table_manifest import MANIFEST, FileEntry, TableEntry, parse_manifest
from monolith.table.initializers import partitions_of
from monolith.table.routing import Routing


@dataclass(frozen=True)
class SavedTable:
    """A table of a save, in layers: all rows of a moment, then the changes since, oldest first.

    Args:
        layers: entry of the table in each layer; files of candidates count in the last one alone.
        num_rows: number of rows that all layers together give; None means those of the only layer.
    """

    layers: tuple[TableEntry, ...]
    num_rows: int | None = None

    @property
    def entry(self) -> TableEntry:
        """Entry of the newest layer, which has the counters of the table."""
        return self.layers[-1]


class Save(ABC):
    """A place with tables.

    Args:
        folder: folder of the files' relative paths.
        where: description of the place, for messages.
    """

    def __init__(self, folder: Folder, where: str) -> None:
        self.folder, self.where = folder, where

    @abstractmethod
    def read(self) -> bytes:
        """Return the manifest; raises NotFoundError if there is no manifest."""

    @abstractmethod
    def tables(self, data: bytes) -> Sequence["SavedTable"]:
        """Return the tables of a manifest."""


class FolderSave(Save):
    """Save of `save_tables` in a folder."""

    def __init__(self, path: str) -> None:
        super().__init__(open_folder(path), path)

    def read(self) -> bytes:
        """Return the manifest of the folder."""
        return self.folder.read(MANIFEST)

    def tables(self, data: bytes) -> Sequence[SavedTable]:
        """Return the tables of the manifest."""
        manifest = parse_manifest(data, self.folder.where(MANIFEST))
        return [SavedTable((entry,)) for entry in manifest.tables]


@dataclass(frozen=True)
class Source:
    """A file to read.

    Args:
        folder: folder of the save.
        file: entry of the file in the manifest.
        layer: number of the layer, from the oldest one.
    """

    folder: Folder
    file: FileEntry
    layer: int = 0

    @property
    def where(self) -> str:
        """Path of the file, for messages."""
        return self.folder.where(self.file.path)


@dataclass(frozen=True)
class TablePlan:
    """Rows and candidates to load into a table.

    Args:
        name: name of the table.
        config: config as JSON.
        num_update_calls: apply-call number.
        latest_time: largest update time that the table had seen.
        is_wanted: whether to load each partition, bool (4096,).
        sources: files with partitions to load.
        where: the saves, for messages.
        num_final_rows: number of rows after all layers, if the plan includes every partition.
        shard: routing and number of the shard whose keys are loaded; None means all keys.
        table_config: config of the whole table, if that of the filled table differs.
    """

    name: str
    config: Any
    num_update_calls: int
    latest_time: int
    is_wanted: NDArray[np.bool_]
    sources: tuple[Source, ...]
    where: str
    num_final_rows: int
    shard: tuple[Routing, int] | None = None
    table_config: TableConfig | None = None

    def sources_of(self, kind: str, layer: int | None = None) -> list[Source]:
        """Return the files of a kind, of all layers or of one."""
        return [
            source
            for source in self.sources
            if source.file.kind == kind and layer in (None, source.layer)
        ]

    @property
    def num_layers(self) -> int:
        """Number of layers with files to load."""
        return 1 + max((source.layer for source in self.sources), default=0)

    @property
    def num_rows(self) -> int:
        """Number of rows of all files."""
        return sum(source.file.num_rows for source in self.sources_of("rows"))

    @property
    def wants_everything(self) -> bool:
        """Whether the plan includes every row."""
        return self.shard is None and bool(self.is_wanted.all())

    def wants_all(self, file: FileEntry) -> bool:
        """Whether the plan includes the whole file."""
        return self.shard is None and all(
            self.is_wanted[first : last + 1].all() for first, last in file.partitions
        )

    def wants(self, keys: torch.Tensor) -> torch.Tensor:
        """Return whether the plan includes each key: int64 (n,) -> bool (n,)."""
        is_included = torch.from_numpy(self.is_wanted[partitions_of(keys.numpy())])
        if self.shard is None:
            return is_included
        routing, number = self.shard
        return is_included & (routing.shard_of(keys) == number)

    def of_shard(self, routing: Routing, number: int, config: TableConfig) -> "TablePlan":
        """Return the plan of one shard of the table.

        Args:
            routing: of the table.
            number: of the shard.
            config: of the whole table.
        """
        is_wanted = np.zeros(NUM_PARTITIONS, np.bool_)
        is_wanted[list(routing.partitions_of(number))] = True
        is_wanted &= self.is_wanted
        sources = tuple(source for source in self.sources if _is_in(source.file, is_wanted))
        shard = routing, number
        return replace(self, is_wanted=is_wanted, sources=sources, shard=shard, table_config=config)

    def with_table_config(self, config: TableConfig) -> "TablePlan":
        """Return the plan for files of a whole table of this config."""
        return replace(self, table_config=config)

    def renamed(self, name: str) -> "TablePlan":
        """Return the plan for a table of another name; a seed that came from the name follows."""
        if name == self.name or not isinstance(self.config, dict):
            return self
        config = {**self.config, "name": name}
        if config.get("seed") == name_seed(self.name):
            config["seed"] = name_seed(name)
        return replace(self, name=name, config=config)

    def check_config(self, config: Any) -> None:
        """Refuse a config (as JSON) that differs from that of the save."""
        difference = first_difference(self.config, config)
        if difference:
            field, expected, got = difference
            if field == "admission.num_shards":
                raise InvalidArgumentError(
                    f"[load_tables] expected filters of {expected or 1} shards as in {self.where}, "
                    f"got those of {got or 1} (table {self.name!r}); a filter has no keys, so it "
                    "cannot be divided or joined: restore into the same number of shards with "
                    "FloorModRouting, or move rows alone with export and import_rows"
                )
            raise InvalidArgumentError(
                f"[load_tables] expected {field} {expected!r} as in {self.where}, got {got!r} "
                f"(table {self.name!r})"
            )


@dataclass(frozen=True)
class Plan:
    """Tables to load.

    Args:
        tables: plan of each table by name, in the order of the saves.
        names: names of all tables of the saves.
        manifests: saves with the bytes of their manifests.
    """

    tables: dict[str, TablePlan]
    names: list[str]
    manifests: list[tuple[Save, bytes]]

    @property
    def where(self) -> str:
        """The saves, for messages."""
        return ", ".join(save.where for save, _ in self.manifests)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Keep saves from removing the files, if the file system has locks."""
        sources = [source for plan in self.tables.values() for source in plan.sources]
        with ExitStack() as stack:
            for save, _ in self.manifests:
                paths = {s.file.path for s in sources if s.folder is save.folder}
                stack.enter_context(save.folder.holding({path.split("/")[0] for path in paths}))
            yield

    def is_replaced(self) -> bool:
        """Whether a new save has replaced one of these saves."""
        try:
            return any(save.read() != data for save, data in self.manifests)
        except NotFoundError:
            return False


def plan_tables(
    paths: "Sequence[str | Save]", names: Sequence[str] | None, partitions: Sequence[int] | None
) -> Plan:
    """Return a plan of each table of the saves, or of the named tables.

    Raises:
        NotFoundError: a save does not exist.
        InvalidArgumentError: the saves contain a partition twice, or lack a requested partition.
    """
    tables_by_name: dict[str, list[tuple[Save, SavedTable]]] = {}
    saves = [FolderSave(path) if isinstance(path, str) else path for path in paths]
    manifests = [(save, save.read()) for save in saves]
    for save, data in manifests:
        for table in save.tables(data):
            tables_by_name.setdefault(table.entry.name, []).append((save, table))
    is_included = None
    if partitions is not None:
        is_included = np.zeros(NUM_PARTITIONS, np.bool_)
        is_included[list(partitions)] = True
    selected = set(tables_by_name if names is None else names)
    tables = {
        name: _plan(saved, is_included)
        for name, saved in tables_by_name.items()
        if name in selected
    }
    return Plan(tables, list(tables_by_name), manifests)


def _plan(
    tables: list[tuple[Save, SavedTable]], is_included: NDArray[np.bool_] | None
) -> TablePlan:
    entries = [(save, table.entry) for save, table in tables]
    name, where = entries[0][1].name, ", ".join(save.where for save, _ in entries)
    count = np.zeros(NUM_PARTITIONS, np.int64)
    for _, entry in entries:
        for first, last in entry.partitions:
            count[first : last + 1] += 1
    if (count > 1).any():
        text = text_of(runs_of(np.flatnonzero(count > 1).tolist()))
        raise InvalidArgumentError(
            f"[load_tables] expected each partition of table {name!r} once, got {text} more often "
            f"(in {where})"
        )
    is_wanted = count > 0 if is_included is None else is_included
    missing = is_wanted & (count == 0)
    if missing.any():
        text = text_of(runs_of(np.flatnonzero(missing).tolist()))
        raise NotFoundError(
            f"[load_tables] expected the wanted partitions of table {name!r} in {where}, "
            f"got none of {text}"
        )
    plan = TablePlan(
        name=name,
        config=entries[0][1].config,
        num_update_calls=max(entry.num_update_calls for _, entry in entries),
        latest_time=max(entry.latest_time for _, entry in entries),
        is_wanted=is_wanted,
        sources=tuple(
            Source(save.folder, file, layer)
            for save, table in tables
            for layer, entry in enumerate(table.layers)
            for file in entry.files
            if _is_in(file, is_wanted) and (file.kind != "candidates" or entry is table.entry)
        ),
        where=where,
        num_final_rows=sum(
            table.entry.num_rows if table.num_rows is None else table.num_rows
            for _, table in tables
        ),
    )
    for _, entry in entries[1:]:
        plan.check_config(entry.config)
    return plan


def _is_in(file: FileEntry, is_wanted: NDArray[np.bool_]) -> bool:
    """Whether a file contains a requested partition."""
    return any(is_wanted[first : last + 1].any() for first, last in file.partitions)
