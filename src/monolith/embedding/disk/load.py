"""Loading tables: into new ones, or into those that exist."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from monolith.embedding.calls import Clock, wall_clock
from monolith.embedding.disk.arguments import checked_tables, checked_threads
from monolith.embedding.disk.config_json import config_from_json, config_to_json
from monolith.embedding.disk.fill import add_notes, emptied, fill, get_notes, verify
from monolith.embedding.disk.plan import Plan, plan_tables
from monolith.embedding.disk.workers import ProgressCallback
from monolith.embedding.verbs import TableVerbs
from monolith.errors import DataLossError, NotFoundError

if TYPE_CHECKING:
    from monolith.embedding import Table

__all__ = ["load_table", "load_tables", "restore_tables"]

T = TypeVar("T")

_MAX_PLANS = 5  # of one load; each but the first because of a save that was completed meanwhile


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
        progress: called with a `Progress` after each batch, from the reading threads; from 0 again
            where a save replaced what was being read.
        clock: of the new tables.

    Returns:
        The tables by name, in the order of the save.

    Raises:
        NotFoundError: the save, a file, a named table or a wanted partition is missing.
        DataLossError: a file is damaged, truncated or not of this save.
        InvalidArgumentError: another format or a newer version; or a learning rate was a function.
        FailedPreconditionError: a budget that refuses new rows has no room for all.

    Warns:
        RuntimeWarning: rows made room for others at the budget, or candidates found none; the
            counts are also in `Table.stats`.
    """
    from monolith.embedding import Table  # late: it imports this module

    threads = checked_threads("[load_tables]", num_threads)
    wanted = None if names is None else list(names)

    def load(plan: Plan) -> "dict[str, Table]":
        _check_found(plan, wanted or [], path)
        plans = plan.tables
        configs = {name: config_from_json(plan.config, plan.where) for name, plan in plans.items()}
        tables: dict[str, Any] = {}
        try:
            for name, config in configs.items():
                tables[name] = Table(config, clock=clock)
            fill(plans, tables, threads, progress)
        except BaseException:
            for table in tables.values():
                table.close()
            raise
        return tables

    return _planned((path, wanted, partitions), load)


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
        found = list(plan_tables(path, None, partitions).tables)
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
    left out. Configs must be equal, but for learning rates and the budget. Where it ends early
    after that check, whatever the reason, the tables are empty and a note of the exception says so.

    Args:
        tables: one table, or several of different names.
        path: folder of a save, or several that hold different partitions of the same tables.
        partitions: only these partitions of the key space.
        allow_missing: leave tables alone that the save does not have, instead of raising.
        num_threads: threads to read with, torch.get_num_threads() if None.
        progress: called with a `Progress` after each batch, from the reading threads; from 0 again
            where a save replaced what was being read.

    Returns:
        Names of the tables that the save does not have.

    Raises:
        InvalidArgumentError: a config differs; the message names the field. Otherwise as
            `load_tables`.
        FailedPreconditionError: a cut of a table is open, of a save for example, or the table is
            being restored.
    """
    by_name = {table.name: table for table in checked_tables("[restore_tables]", tables)}
    threads = checked_threads("[restore_tables]", num_threads)

    def restore(plan: Plan) -> list[str]:
        if not allow_missing:
            _check_found(plan, by_name, path)
        for name, each in plan.tables.items():
            each.check_config(config_to_json(by_name[name].config))
        verify(plan.tables, by_name, threads)
        with emptied("[restore_tables]", [by_name[name] for name in plan.tables]):
            fill(plan.tables, by_name, threads, progress)
        return [name for name in by_name if name not in plan.tables]

    return _planned((path, by_name, partitions), restore)


def _planned(arguments: tuple[Any, Any, Any], use: Callable[[Plan], T]) -> T:
    """Make a plan and use it, anew where a save replaced what it was reading."""
    notes: list[str] = []
    for num_left in reversed(range(_MAX_PLANS)):
        plan = None
        try:
            plan = plan_tables(*arguments)
            with plan.holding():
                return use(plan)
        except BaseException as error:
            add_notes(error, notes)
            is_lost = isinstance(error, NotFoundError | DataLossError)
            if not (is_lost and num_left and plan is not None and plan.is_replaced()):
                raise
            notes = get_notes(error)
    raise AssertionError("the last plan returns or raises")


def _check_found(plan: Plan, names: Iterable[str], path: Any) -> None:
    for name in names:
        if name not in plan.tables:
            raise NotFoundError(
                f"[load_tables] expected table {name!r} in {path}, got tables {plan.names}"
            )
