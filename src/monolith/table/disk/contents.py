"""Contents of a save without loading its tables: summaries, single rows, a check of every byte."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from monolith.errors import DataLossError, NotFoundError
from monolith.table.codecs import decode
from monolith.table.config import TableConfig, segment_name, segments_of, storage_of
from monolith.table.disk.block_reader import FileReader
from monolith.table.disk.buffers import Buffers
from monolith.table.disk.call_arguments import told_as
from monolith.table.disk.config_json import config_from_json
from monolith.table.disk.layers import Layers
from monolith.table.disk.plan import FolderSave, Save, Source, TablePlan, plan_tables
from monolith.table.disk.ranges import partitions_of_runs
from monolith.table.disk.table_manifest import TableEntry
from monolith.table.initializers import partitions_of
from monolith.table.rows import Rows
from monolith.table.rules import NUM_SLOTS
from monolith.util.stores import Store, open_store

_WHERE = "[inspect]"
_MAX_SLOTS = 4096  # keys with more slots are hashes, not fids

Advance = Callable[[int], None]


@dataclass(frozen=True)
class TableContents:
    """Summary of a table of a save.

    Args:
        name: name of the table.
        num_rows: number of saved rows.
        num_candidates: number of candidates of admission.
        num_files: number of files of rows and candidates.
        num_bytes: size of these files.
        num_expired: number of expired rows that the save left out.
        num_update_calls: apply-call number.
        latest_time: largest update time that the table had seen.
        oldest_time: smallest update time of a row; None without rows.
        newest_time: largest update time of a row; None without rows.
        slots: slot -> number of rows, the largest first; empty if keys do not look like fids.
        config: config as JSON.
    """

    name: str
    num_rows: int
    num_candidates: int
    num_files: int
    num_bytes: int
    num_expired: int
    num_update_calls: int
    latest_time: int
    oldest_time: int | None
    newest_time: int | None
    slots: dict[int, int]
    config: dict[str, Any]


@dataclass(frozen=True)
class RowContents:
    """A row of a table of a save.

    Args:
        table: name of the table.
        key: key of the row.
        time: time of the last update.
        columns: `weight/<segment>` decoded, and `state/<segment>/<name>`, as lists of numbers.
    """

    table: str
    key: int
    time: int
    columns: dict[str, list[float]]


def describe_save(
    path: "str | os.PathLike[str] | Save", *, names: Sequence[str] | None = None
) -> list[TableContents]:
    """Return summaries of saved tables, from the manifest and the keys and times of rows.

    Raises:
        NotFoundError: the save does not exist, or has no table of a name.
        DataLossError: a file is damaged.
    """
    with open_plans(path, names) as plans:
        save = _save(path)
        tables = [table for table in save.tables(save.read()) if table.entry.name in plans]
        return [_contents_of(table.entry, plans[table.entry.name]) for table in tables]


def find_key(
    path: "str | os.PathLike[str] | Save", key: int, *, names: Sequence[str] | None = None
) -> list[RowContents]:
    """Return the rows of a key in all tables; checks the files that may contain the key.

    Args:
        path: path of the save.
        key: signed key, or unsigned key as in records.
        names: names of the tables to search; None means all.
    """
    key = key - (1 << 64) if key >= 1 << 63 else key
    partition = int(partitions_of(np.array([key], np.int64))[0])
    found: list[RowContents] = []
    with open_plans(path, names) as plans:
        for plan in plans.values():
            config = config_of(plan)
            layers = Layers(plan, FileReader(plan, config, Buffers()))
            for source in layers.files:
                if any(first <= partition <= last for first, last in source.file.partitions):
                    for rows in layers.rows(source):
                        found += rows_of_key(key, config, rows)
    return found


def verify_save(
    path: "str | os.PathLike[str] | Save",
    *,
    names: Sequence[str] | None = None,
    advance: Advance = lambda num_bytes: None,
) -> None:
    """Read every byte of a save: sizes, checksums, columns, numbers, partitions, distinct keys.

    Args:
        path: path of the save.
        names: names of the tables to check; None means all.
        advance: function that receives the number of bytes that were read.

    Raises:
        NotFoundError: a file is missing.
        DataLossError: a file is damaged.
    """
    num_bytes, buffers = 0, Buffers()
    with open_plans(path, names) as plans:
        for plan in plans.values():
            reader = FileReader(plan, config_of(plan), buffers)
            for source in plan.sources:
                if source.file.kind == "candidates":
                    reader.candidates(source)
                elif source.file.kind == "tombstones":
                    _check_keys(source, [reader.tombstones(source).numpy()])
                else:
                    _check_keys(source, [rows.keys.numpy().copy() for rows in reader.rows(source)])
                num_bytes += source.file.num_bytes
                advance(num_bytes)


@contextmanager
def open_plans(
    path: "str | os.PathLike[str] | Save", names: Sequence[str] | None
) -> Iterator[dict[str, TablePlan]]:
    """Return the plans of the tables of a save, whose files stay for the duration of the block."""
    with told_as(_WHERE):
        plan = plan_tables([save := _save(path)], names, None)
        for name in names or ():
            if name not in plan.tables:
                raise NotFoundError(
                    f"{_WHERE} expected one of the tables {plan.names}, got {name!r} ({save.where})"
                )
        with plan.holding():
            yield plan.tables


def _save(path: "str | os.PathLike[str] | Save") -> Save:
    return path if isinstance(path, Save) else FolderSave(os.fspath(path))


def _contents_of(entry: TableEntry, plan: TablePlan) -> TableContents:
    counts, times = np.zeros(NUM_SLOTS, np.int64), []
    is_signed = False
    for keys, updated in _live_keys_and_times(plan):
        if len(keys):
            counts += np.bincount((keys >> 48) & (NUM_SLOTS - 1), minlength=NUM_SLOTS)
            is_signed = is_signed or bool(keys.min() < 0)
            times += [int(updated.min()), int(updated.max())]
    used = np.flatnonzero(counts)
    has_slots = not is_signed and used.any() and len(used) <= _MAX_SLOTS
    order = used[np.argsort(-counts[used], kind="stable")] if has_slots else used[:0]
    return TableContents(
        name=entry.name,
        num_rows=plan.num_final_rows,
        num_candidates=sum(source.file.num_rows for source in plan.sources_of("candidates")),
        num_files=len(plan.sources),
        num_bytes=sum(source.file.num_bytes for source in plan.sources),
        num_expired=entry.num_expired,
        num_update_calls=entry.num_update_calls,
        latest_time=entry.latest_time,
        oldest_time=min(times, default=None),
        newest_time=max(times, default=None),
        slots={int(slot): int(counts[slot]) for slot in order},
        config=entry.config,
    )


def _live_keys_and_times(
    plan: TablePlan,
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield keys and times of the rows over all layers; newer layers hide rows of older ones."""
    hidden, reader = np.empty(0, np.int64), FileReader(plan, config_of(plan), Buffers())
    for layer in reversed(range(plan.num_layers)):
        keys_here = [reader.tombstones(s).numpy() for s in plan.sources_of("tombstones", layer)]
        for source in plan.sources_of("rows", layer):
            for keys, updated in _keys_and_times(source):
                is_newest = ~np.isin(keys, hidden) if len(hidden) else slice(None)
                yield keys[is_newest], updated[is_newest]
                if layer:
                    keys_here.append(keys.copy())
        hidden = np.unique(np.concatenate([hidden, *keys_here]))


def _keys_and_times(source: Source) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the keys and times of each batch; other columns are not read."""
    size = source.folder.size(source.file.path)
    if size != source.file.num_bytes:
        raise _damage(source, f"{source.file.num_bytes} bytes", str(size))
    options = pa.ipc.IpcReadOptions(included_fields=[0, 1])
    system, path = open_store(source.where)
    file = system.open(path) if isinstance(system, Store) else pa.memory_map(path)
    try:
        with file, pa.ipc.open_file(file, options=options) as reader:
            for i in range(reader.num_record_batches):
                batch = reader.get_batch(i)
                batch.validate()
                if batch.schema.types != [pa.int64()] * 2:
                    raise pa.ArrowInvalid(f"{batch.schema.types}")
                if batch.num_rows:
                    yield tuple(batch.column(name).to_numpy() for name in ("key", "time"))
    except (pa.ArrowException, KeyError, OSError) as error:
        if getattr(error, "errno", None) is not None:  # of the store; Arrow gives no number
            raise
        raise _damage(source, "an Arrow file with key and time as int64", f"{error}") from error


def _damage(source: Source, expected: str, got: str) -> DataLossError:
    return DataLossError(
        f"{_WHERE} expected {expected}, got {got} ({source.where}); it is damaged or foreign"
    )


def config_of(plan: TablePlan) -> TableConfig:
    """Return the config without learning rates that were functions: rows do not need them."""
    return config_from_json(_drop_functions(plan.config), plan.where)


def _drop_functions(value: Any) -> Any:
    if isinstance(value, list):
        return [_drop_functions(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("class") == "schedule":
        return 0.0
    return {name: _drop_functions(item) for name, item in value.items()}


def rows_of_key(key: int, config: TableConfig, rows: Rows) -> list[RowContents]:
    """Return the rows of a key among rows of a table, with decoded weights."""
    places = (rows.keys == key).nonzero()[:, 0].tolist()
    storages = {
        f"weight/{segment_name(config, i)}": (storage_of(config, i), segment.dim)
        for i, segment in enumerate(segments_of(config))
    }
    contents = []
    for place in places:
        columns = {}
        for name, column in rows.columns.items():
            values = column[place : place + 1]
            if name in storages:
                values = decode(values.contiguous(), *storages[name])
            columns[name] = values[0].tolist()
        contents.append(RowContents(config.name, key, int(rows.times[place]), columns))
    return contents


def _check_keys(source: Source, batches: list[NDArray[np.int64]]) -> None:
    keys = np.concatenate([np.empty(0, np.int64), *batches])
    is_here = np.isin(partitions_of(keys), partitions_of_runs(source.file.partitions))
    if not is_here.all():
        wrong = keys[~is_here][0]
        raise _damage(source, "keys of its partitions", f"key {wrong} of another one")
    num_distinct = len(np.unique(keys))
    if num_distinct != len(keys):
        raise _damage(source, f"{len(keys)} different keys", str(num_distinct))
