"""Read a checkpoint: into new tables and tensors, or into those that exist."""

import dataclasses
import functools
import json
import mmap
import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from monolith.checkpoint.commit import split_prefix
from monolith.checkpoint.dense_tensors import check_tensors, from_memory
from monolith.checkpoint.manifest import (
    MANIFEST_SUFFIX,
    CheckpointManifest,
    FileFact,
    TensorFact,
    parse_checkpoint_manifest,
)
from monolith.checkpoint.state_tree import STATES, Stateful, unflatten_state
from monolith.checkpoint.storage import storage_errors
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError
from monolith.table.base import BaseTable
from monolith.table.disk import load_tables, restore_tables
from monolith.table.disk.buffers import crc32c, new_memory
from monolith.table.disk.call_arguments import checked_path, checked_threads, told_as
from monolith.table.disk.folder import open_folder
from monolith.table.disk.plan import Save, SavedTable
from monolith.table.disk.table_manifest import TableEntry
from monolith.table.disk.workers import Work, run_all

if TYPE_CHECKING:
    from monolith.table.native import Table


_CHUNK_BYTES = 1 << 22


def open_checkpoint(prefix: "str | os.PathLike[str]") -> "Checkpoint":
    """Open the checkpoint of a prefix: read its manifest.

    Raises:
        NotFoundError: there is no such checkpoint.
        InvalidArgumentError: the checkpoint has another format or a newer version.
        DataLossError: the manifest is damaged.
    """
    return Checkpoint(checked_path("[open_checkpoint]", prefix))


class Checkpoint(Save):
    """Reads a checkpoint on disk, each file when a method needs its content. Thread-safe.

    Args:
        prefix: `<directory>/<name>`.

    Attributes:
        prefix: the same.
        name: its last part.
        manifest: the step, files, tables and tensors.
    """

    def __init__(self, prefix: str) -> None:
        directory, self.name = split_prefix(prefix)
        super().__init__(open_folder(directory), prefix)
        self.prefix = prefix
        with told_as("[open_checkpoint]"), storage_errors("open_checkpoint", f"read {prefix}"):
            self.manifest = self._parse(self.read())

    def __repr__(self) -> str:
        return f"Checkpoint({self.prefix!r})"

    @property
    def step(self) -> int | None:
        """The global step."""
        return self.manifest.step

    @property
    def tensors(self) -> dict[str, TensorFact]:
        """Dtype and shape of each dense tensor, by name."""
        return {name: fact for file in self.manifest.dense for name, fact in file.tensors.items()}

    @property
    def table_names(self) -> list[str]:
        """Names of the tables, sorted."""
        return [table.name for table in self.manifest.tables]

    def older_names(self, tables: Iterable[BaseTable]) -> dict[str, str]:
        """Return the saved names of the tables that the checkpoint has under a restore name.

        Returns:
            Saved name -> name of the table.
        """
        saved = set(self.table_names)
        return {
            old: table.name
            for table in tables
            for old in table.restore_names
            if table.name not in saved and old in saved
        }

    def read(self) -> bytes:
        """Return the bytes of the manifest."""
        return self.folder.read(self.name + MANIFEST_SUFFIX)

    def tables(self, data: bytes) -> Sequence[SavedTable]:
        """Return the tables of a manifest, with paths relative to the directory.

        Raises:
            NotFoundError: a checkpoint that the link continues is missing.
            DataLossError: another checkpoint has its place, or lacks the table.
        """
        newest = self._parse(data)
        older = [
            {table.name: _renamed(table, base.name) for table in base.manifest.tables}
            for base in self._bases(newest)
        ]
        return [
            SavedTable(
                (*(tables[entry.name] for tables in older), _renamed(entry, self.name)),
                newest.num_rows[entry.name],
            )
            for entry in newest.tables
        ]

    @property
    def chain(self) -> list["Checkpoint"]:
        """The checkpoints that this one continues, a full one first; empty for a full one.

        Raises:
            NotFoundError: one of them is missing.
            DataLossError: another checkpoint has the place of one of them.
        """
        return self._bases(self.manifest)

    def _bases(self, manifest: CheckpointManifest) -> list["Checkpoint"]:
        bases: list[Checkpoint] = []
        base, names = manifest.base, [table.name for table in manifest.tables]
        while base is not None:
            prefix = posixpath.join(posixpath.dirname(self.prefix), base.name)
            what = f"link {base.name!r} of {self.prefix}"
            hint = "restore an older checkpoint, for example with fallback (--fallback)"
            try:
                checkpoint = Checkpoint(prefix)
            except NotFoundError as error:
                raise NotFoundError(f"[load_tables] expected {what}, got none; {hint}") from error
            here = checkpoint.manifest
            if here.id != base.id or [table.name for table in here.tables] != names:
                raise DataLossError(
                    f"[load_tables] expected {what} with id {base.id} and tables {names}, got id "
                    f"{here.id} and {[table.name for table in here.tables]}; {hint}"
                )
            if any(other.prefix == prefix for other in bases):
                raise DataLossError(f"[load_tables] expected {what}, got it twice; {hint}")
            bases.insert(0, checkpoint)
            base = here.base
        return bases

    def _parse(self, data: bytes) -> CheckpointManifest:
        return parse_checkpoint_manifest(data, self.folder.where(self.name + MANIFEST_SUFFIX))

    def read_trainer(self) -> Any:
        """Return the state of the trainer as JSON, or None without one."""
        return self._read_json("trainer")

    def read_meta(self) -> Any:
        """Return the description of the model, or None without one."""
        return self._read_json("meta")

    def _read_json(self, name: str) -> Any:
        fact = self.manifest.documents.get(name)
        if fact is None:
            return None
        with (
            told_as(f"[Checkpoint.read_{name}]"),
            storage_errors("Checkpoint", f"read {self.prefix}"),
        ):
            data = self._read_checked(fact)
            try:
                return json.loads(data)
            except (ValueError, RecursionError) as error:
                where = self.folder.where(self.name + fact.path)
                raise DataLossError(
                    f"[load_tables] expected JSON, got {error} ({where})"
                ) from error

    def _read_checked(self, fact: FileFact) -> bytes:
        data = self.folder.read(self.name + fact.path)
        self._check(fact, len(data), crc32c(data) if data else 0)
        return data

    def _read_memory(self, fact: FileFact) -> mmap.mmap:
        name = self.name + fact.path
        if self.folder.size(name) != fact.num_bytes:
            self._verify(fact)
        memory = new_memory(fact.num_bytes)
        self._check(fact, *self.folder.read_into(name, memory))
        return memory

    def _check(self, fact: FileFact, num_bytes: int, crc: int) -> None:
        expected = f"{fact.num_bytes} bytes with checksum {fact.crc32c}"
        got = f"{num_bytes} with {crc:08x}"
        if (num_bytes, f"{crc:08x}") != (fact.num_bytes, fact.crc32c):
            raise DataLossError(
                f"[load_tables] expected {expected}, got {got} "
                f"({self.folder.where(self.name + fact.path)}); it is damaged or foreign"
            )

    def read_dense(
        self, names: Iterable[str] | None = None, *, num_threads: int | None = None
    ) -> dict[str, torch.Tensor]:
        """Return dense tensors by name, in new memory.

        Args:
            names: names of tensors; None reads all. Files without one of these are not read.
            num_threads: threads to read with, torch.get_num_threads() if None.

        Raises:
            NotFoundError: the checkpoint has no tensor of a name, or a file is missing.
            DataLossError: a file is damaged, truncated or not of this checkpoint.
        """
        where = "[Checkpoint.read_dense]"
        threads = checked_threads(where, num_threads)
        wanted = set(self.tensors if names is None else names)
        if missing := wanted - set(self.tensors):
            raise NotFoundError(
                f"{where} expected tensor {min(missing)!r} in {self.prefix}, got none of that name"
            )
        files = [file for file in self.manifest.dense if wanted & set(file.tensors)]
        values: dict[str, torch.Tensor] = {}

        def take(index: int) -> None:
            file = files[index]
            path = self.folder.where(self.name + file.path)
            tensors = from_memory(self._read_memory(file), file.tensors, path)
            values.update({name: tensors[name] for name in wanted & set(tensors)})

        with told_as(where), storage_errors("Checkpoint.read_dense", f"read {self.prefix}"):
            tasks = [functools.partial(take, i) for i in range(len(files))]
            run_all(Work(0, None), tasks, threads)
        return {name: values[name] for name in sorted(values)}

    def read_parts(
        self,
        where: str,
        dense: Iterable[str],
        states: Iterable[str],
        num_threads: int | None = None,
    ) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return dense tensors and states of objects by name; each file is read once.

        Args:
            where: begins the messages.
            dense: names of tensors; the first result may have more.
            states: names of objects.
            num_threads: threads to read with, torch.get_num_threads() if None.

        Raises:
            NotFoundError: a name is not in the checkpoint, or a file is missing.
            DataLossError: a file is damaged, truncated or not of this checkpoint.
        """
        dense, states = set(dense), set(states)
        trees = (self.read_trainer() or {}).get(STATES, {}) if states else {}
        if missing := (dense - set(self.tensors)) | (states - set(trees)):
            raise NotFoundError(
                f"{where} expected {min(missing)!r} of the model in {self.prefix}, got a "
                "checkpoint without it; the model has changed since it was saved, or it is of "
                "another model"
            )
        starts = tuple(f"{name}/" for name in states)
        names = dense | {name for name in self.tensors if name.startswith(starts)}
        values = self.read_dense(names, num_threads=num_threads)
        return values, {name: unflatten_state(trees[name], values) for name in states}

    def load_tables(self, names: Iterable[str] | None = None, **options: Any) -> "dict[str, Table]":
        """Make new tables; options are those of `monolith.table.disk.load_tables`."""
        with (
            told_as("[Checkpoint.load_tables]"),
            storage_errors("Checkpoint", f"read {self.prefix}"),
        ):
            return load_tables(self, names=names, **options)

    def restore_tables(
        self, tables: "BaseTable | Sequence[BaseTable]", **options: Any
    ) -> list[str]:
        """Replace the content of tables; options are those of `monolith.table.disk.restore_tables`.

        Returns:
            Names of the tables that the checkpoint does not have, with `allow_missing`.
        """
        with storage_errors("Checkpoint.restore_tables", f"read {self.prefix}"):
            return restore_tables(tables, self, **options)

    def restore(
        self,
        *,
        tables: "BaseTable | Sequence[BaseTable]" = (),
        dense: Mapping[str, torch.Tensor] | None = None,
        states: Mapping[str, Stateful] | None = None,
        num_threads: int | None = None,
    ) -> None:
        """Give tables, tensors and objects the content of the checkpoint; no step runs meanwhile.

        Every value is read and checked before a table changes, each file of a table before the
        table does, and tensors and objects change last.

        Args:
            tables: one table or several; any number of shards.
            dense: tensors by name; they are written in place.
            states: objects by name, as `Contents` has them.
            num_threads: threads to read with, torch.get_num_threads() if None.

        Raises:
            NotFoundError: a table, a tensor or an object is not in the checkpoint.
            InvalidArgumentError: a config, shape or dtype differs.
            DataLossError: a file is damaged.
        """
        where, dense, states = "[Checkpoint.restore]", dense or {}, states or {}
        check_tensors(where, dense)
        values, trees = self.read_parts(where, dense, states, num_threads)
        pairs = matched(where, self.prefix, dense, values)
        if isinstance(tables, BaseTable) or tables:
            self.restore_tables(tables, num_threads=num_threads)
        copy_tensors(pairs)
        for name, target in states.items():
            target.load_state_dict(trees[name])

    def verify(self, *, num_threads: int | None = None) -> int:
        """Read every byte and compare checksums, of a link also those of its chain's rows.

        Returns:
            Number of bytes.

        Raises:
            NotFoundError: a file is missing.
            DataLossError: a file is damaged, truncated or foreign.
        """
        threads = checked_threads("[Checkpoint.verify]", num_threads)
        with (
            told_as("[Checkpoint.verify]"),
            storage_errors("Checkpoint.verify", f"read {self.prefix}"),
        ):
            facts = [(self, fact) for fact in self.manifest.files]
            facts += [(base, fact) for base in self.chain for fact in base.manifest.row_files]
            tasks = [functools.partial(owner._verify, fact) for owner, fact in facts]
            run_all(Work(0, None), tasks, threads)
        return sum(fact.num_bytes for _, fact in facts)

    def _verify(self, fact: FileFact) -> None:
        crc = num_bytes = 0
        for data in self.folder.read_chunks(self.name + fact.path, _CHUNK_BYTES):
            num_bytes += len(data)
            crc = crc32c(data, crc)
        self._check(fact, num_bytes, crc)


def _renamed(table: TableEntry, name: str) -> TableEntry:
    """Return an entry whose paths begin with the name of the checkpoint."""
    files = tuple(dataclasses.replace(file, path=name + file.path) for file in table.files)
    return dataclasses.replace(table, files=files)


def matched(
    where: str,
    prefix: str,
    targets: Mapping[str, torch.Tensor],
    values: Mapping[str, torch.Tensor],
    *,
    reshape: bool = False,
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return pairs of a tensor and its new value; nothing changes yet.

    Args:
        where: begins the messages.
        prefix: prefix of the checkpoint, for messages.
        targets: tensors by name.
        values: new values by name; other names are left out.
        reshape: whether a value may have another shape of the same size.

    Raises:
        InvalidArgumentError: a shape or dtype differs; the message names the tensor.
    """
    pairs = []
    for name, target in sorted(targets.items()):
        value = values[name]
        if reshape and value.numel() == target.numel():
            value = value.reshape(target.shape)
        expected = tuple(target.shape), target.dtype
        if (tuple(value.shape), value.dtype) != expected:
            raise InvalidArgumentError(
                f"{where} expected tensor {name!r} with shape {expected[0]} and {expected[1]} as "
                f"in the model, got {tuple(value.shape)} and {value.dtype} in {prefix}"
            )
        pairs.append((target, value))
    return pairs


def copy_tensors(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Write values into tensors in place."""
    with torch.no_grad():
        for target, value in pairs:
            target.copy_(value)
