"""Loading tables: into new ones, or into those that exist."""

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from monolith.embedding.calls import Clock, wall_clock
from monolith.embedding.disk.arguments import checked_tables, checked_threads
from monolith.embedding.disk.config_json import config_from_json, config_to_json
from monolith.embedding.disk.plan import Source, TablePlan, plan_tables
from monolith.embedding.disk.reader import Buffers, FileReader
from monolith.embedding.disk.workers import ProgressCallback, Work, run_all
from monolith.embedding.verbs import TableVerbs
from monolith.errors import DataLossError, NotFoundError

if TYPE_CHECKING:
    from monolith.embedding import Table

__all__ = ["load_table", "load_tables", "restore_tables"]


def load_tables(
    path: "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]",
    *,
    names: Iterable[str] | None = None,
    partitions: Iterable[int] | None = None,
    num_threads: int | None = None,
    progress: ProgressCallback | None = None,
    clock: Clock = wall_clock,
) -> "dict[str, Table]":
    """New tables with the configs, rows, candidates and counters of a save.

    Args:
        path: folder of a save, or several that hold different partitions of the same tables.
        names: only these tables.
        partitions: only these partitions of the key space.
        num_threads: threads to read with, torch.get_num_threads() if None.
        progress: called with a `Progress` after each batch, from the reading threads.
        clock: of the new tables.

    Returns:
        The tables by name, in the order of the save.

    Raises:
        NotFoundError: the save, a file, a named table or a wanted partition is missing.
        DataLossError: a file is damaged, truncated or not of this save.
        InvalidArgumentError: another format or a newer version; or a learning rate was a function.
    """
    from monolith.embedding import Table  # late: it imports this module

    threads = checked_threads("[load_tables]", num_threads)
    wanted = None if names is None else list(names)
    plans = plan_tables(path, wanted, partitions)
    _check_found(plans, wanted or [], path)
    configs = {name: config_from_json(plan.config, plan.where) for name, plan in plans.items()}
    tables: dict[str, Any] = {}
    try:
        for name, config in configs.items():
            tables[name] = Table(config, clock=clock)
        _import(plans, tables, threads, progress)
    except BaseException:
        for table in tables.values():
            table.close()
        raise
    return tables


def load_table(
    path: "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]",
    *,
    name: str | None = None,
    partitions: Iterable[int] | None = None,
    num_threads: int | None = None,
    progress: ProgressCallback | None = None,
    clock: Clock = wall_clock,
) -> "Table":
    """One new table: the only one of a save, or the one that is named. See `load_tables`."""
    if name is None:
        found = list(plan_tables(path, None, partitions))
        if len(found) != 1:
            raise ValueError(f"[load_table] expected a name, one of the tables {found}, got None")
        name = found[0]
    tables = load_tables(
        path,
        names=[name],
        partitions=partitions,
        num_threads=num_threads,
        progress=progress,
        clock=clock,
    )
    return tables[name]


def restore_tables(
    tables: "TableVerbs | Sequence[TableVerbs]",
    path: "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]",
    *,
    partitions: Iterable[int] | None = None,
    allow_missing: bool = False,
    num_threads: int | None = None,
    progress: ProgressCallback | None = None,
) -> list[str]:
    """Give tables that exist the content of a save; what they held is gone. Not beside writers.

    Every file is checked before a table changes. Tables of the save that are not named here are
    left out. Configs must be equal, but for learning rates.

    Args:
        tables: one table, or several of different names.
        path: folder of a save, or several that hold different partitions of the same tables.
        partitions: only these partitions of the key space.
        allow_missing: leave tables alone that the save does not have, instead of raising.
        num_threads: threads to read with, torch.get_num_threads() if None.
        progress: called with a `Progress` after each batch, from the reading threads.

    Returns:
        Names of the tables that the save does not have.

    Raises:
        InvalidArgumentError: a config differs; the message names the field. Otherwise as
            `load_tables`.
        FailedPreconditionError: a cut of a table is open; a save, for example.
    """
    by_name = {table.name: table for table in checked_tables("[restore_tables]", tables)}
    threads = checked_threads("[restore_tables]", num_threads)
    plans = plan_tables(path, by_name, partitions)
    missing = [name for name in by_name if name not in plans]
    if not allow_missing:
        _check_found(plans, by_name, path)
    for name, plan in plans.items():
        plan.check_config(config_to_json(by_name[name].config))
    _verify(plans, by_name, threads)
    for name in plans:
        if by_name[name]._has_cut():
            raise by_name[name]._cut_error("[restore_tables]")
    try:
        for name in plans:
            by_name[name].clear()
        _import(plans, by_name, threads, progress)
    except (OSError, DataLossError, MemoryError) as error:
        for name in plans:
            by_name[name].clear()
        raise DataLossError(
            f"{error}; loading had begun, so the tables {list(plans)} are empty now"
        ) from error
    return missing


def _check_found(plans: dict[str, TablePlan], names: Iterable[str], path: Any) -> None:
    for name in names:
        if name not in plans:
            raise NotFoundError(
                f"[load_tables] expected table {name!r} in {path}, got tables {list(plans)}"
            )


def _verify(plans: dict[str, TablePlan], tables: dict[str, TableVerbs], num_threads: int) -> None:
    """Read everything once and change nothing."""
    work = Work(0, None)

    def check(reader: FileReader, source: Source, table: TableVerbs) -> None:
        if source.file.kind == "candidates":
            reader.candidates(source)
            return
        for _ in reader.rows(source):
            work.report(0, 0)

    run_all(work, _tasks(plans, tables, check, num_threads), num_threads)


def _import(
    plans: dict[str, TablePlan],
    tables: dict[str, Any],
    num_threads: int,
    progress: ProgressCallback | None,
) -> None:
    """Fill empty tables."""
    work = Work(sum(plan.num_rows for plan in plans.values()), progress)

    def take(reader: FileReader, source: Source, table: TableVerbs) -> None:
        if source.file.kind == "candidates":
            table.import_candidates(reader.candidates(source))
        else:
            for rows in reader.rows(source):
                table.import_rows(rows, num_threads=1)
                work.report(len(rows), 0)
        work.report(0, source.file.num_bytes)

    # One more, because one of them waits for the disk most of the time.
    num_workers = num_threads + (num_threads > 1)
    run_all(work, _tasks(plans, tables, take, num_workers), num_workers)
    for name, plan in plans.items():
        tables[name].num_update_calls = plan.num_update_calls
        tables[name].latest_time = plan.latest_time


def _tasks(
    plans: dict[str, TablePlan],
    tables: dict[str, Any],
    use: Callable[[FileReader, Source, TableVerbs], None],
    num_threads: int,
) -> list["functools.partial[None]"]:
    """A call for each file."""
    buffers = Buffers()
    sources = [source for plan in plans.values() for source in plan.sources]
    following = iter([*sources[num_threads:], *[None] * num_threads])

    def task(reader: FileReader, source: Source, table: TableVerbs, ahead: Source | None) -> None:
        if ahead is not None:
            ahead.folder.will_read(ahead.file.path)
        use(reader, source, table)

    return [
        functools.partial(
            task,
            FileReader(plan, tables[name].config, buffers),
            source,
            tables[name],
            next(following),
        )
        for name, plan in plans.items()
        for source in plan.sources
    ]
