"""Loading of saved tables, into whole tables or into shards."""

import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar, Union

from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError
from monolith.table.base import BaseTable
from monolith.table.calls import Clock, wall_clock
from monolith.table.disk.call_arguments import (
    checked_names,
    checked_partitions,
    checked_paths,
    checked_progress,
    checked_shards,
    checked_tables,
    checked_threads,
    told_as,
)
from monolith.table.disk.config_json import config_from_json, config_to_json
from monolith.table.disk.fill import add_notes, fill, get_notes, refill, verify
from monolith.table.disk.plan import Plan, Save, TablePlan, plan_tables
from monolith.table.disk.workers import ProgressCallback

if TYPE_CHECKING:
    from typing_extensions import Self

    from monolith.table.native import Table


class Parts:
    """Tables or shards to fill, with the parts of their plans.

    Args:
        tables: tables by name.
        plans: plans by the same names.
        shards: numbers of the shards to fill; None fills each table as a whole.

    Attributes:
        pairs: plans and tables that are filled together, by name.
        tables: all tables to fill, by their names in messages.
        wholes: sharded tables of these shards.
    """

    def __init__(
        self,
        tables: Mapping[str, Any],
        plans: Mapping[str, TablePlan],
        shards: Sequence[int] | None,
    ) -> None:
        self.pairs: list[tuple[dict[str, TablePlan], dict[str, BaseTable]]] = []
        self.tables: dict[str, BaseTable] = {}
        self.wholes = [] if shards is None else list(tables.values())
        self._by_name = dict(tables)
        if shards is None:
            self.pairs.append((dict(plans), dict(tables)))
            self.tables.update(tables)
        for number in shards or ():
            targets = {name: table.shards()[number] for name, table in tables.items()}
            parts = {
                name: plan.of_shard(tables[name].routing, number, tables[name].config)
                for name, plan in plans.items()
            }
            self.pairs.append((parts, targets))
            self.tables.update({f"{name} (shard {number})": targets[name] for name in targets})

    def copy_call_numbers(self) -> None:
        """Copy the call number of each table to its filled shards, as if they had seen all calls.

        Random numbers depend on the call number, and rows must not depend on their shard.
        """
        for _, targets in self.pairs:
            for name, table in targets.items():
                table.num_update_calls = self._by_name[name].num_update_calls


T = TypeVar("T")

Place = Union[str, "os.PathLike[str]", Save]
"""Folder of a save, or another place with tables."""

# Largest number of plans of one load: a new plan is made if a new save replaced the old one.
_MAX_PLANS = 5


def load_tables(
    path: "Place | Sequence[Place]",
    *,
    names: Iterable[str] | None = None,
    partitions: Iterable[int] | None = None,
    num_threads: int | None = None,
    progress: ProgressCallback | None = None,
    clock: Clock = wall_clock,
) -> "dict[str, Table]":
    """Create tables with the configs, rows, candidates and counters of a save.

    Args:
        path: folder of a save, or several with different partitions of the same tables.
        names: names of the tables to load; None means all.
        partitions: partitions of the key space to load; None means all.
        num_threads: number of reading threads; None means torch.get_num_threads().
        progress: called with a `Progress` after each batch, on the reading threads; begins at 0
            again if a new save replaced the files.
        clock: clock of the new tables.

    Returns:
        Tables by name, in the order of the save.

    Raises:
        NotFoundError: the save, a file, a named table or a requested partition is missing.
        DataLossError: a file is damaged, truncated or of another save.
        InvalidArgumentError: the format is unknown or its version too new; or a learning rate was a
            function.
        FailedPreconditionError: a budget that refuses new rows has too little room.

    Warns:
        RuntimeWarning: rows made room for others at the budget, or candidates found no room;
            `Table.stats` has the counts too.
    """
    from monolith.table.native import Table  # late, because it imports this module

    where = "[load_tables]"
    threads = checked_threads(where, num_threads)
    checked_progress(where, progress)
    request = _Request.checked(where, path, names, partitions)

    def load(plan: Plan) -> "dict[str, Table]":
        request.check_found(plan)
        plans = plan.tables
        configs = {name: config_from_json(plan.config, plan.where) for name, plan in plans.items()}
        tables: dict[str, Any] = {}
        try:
            for name, config in configs.items():
                tables[name] = Table(config, clock=clock)
            fill(where, plans, tables, threads, progress)
        except BaseException:
            for table in tables.values():
                table.close()
            raise
        return tables

    return _use_plan(request, load)


def load_table(
    path: "Place | Sequence[Place]",
    *,
    name: str | None = None,
    partitions: Iterable[int] | None = None,
    num_threads: int | None = None,
    progress: ProgressCallback | None = None,
    clock: Clock = wall_clock,
) -> "Table":
    """Create one table: the only table of a save, or the named one. See `load_tables`."""
    if name is None:
        partitions = checked_partitions("[load_tables]", partitions)
        path = checked_paths("[load_tables]", path)
        table_names = plan_tables(path, None, partitions).names
        if len(table_names) != 1:
            raise ValueError(
                f"[load_table] expected a name, one of the tables {table_names}, got None"
            )
        name = table_names[0]
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
    tables: "BaseTable | Sequence[BaseTable]",
    path: "Place | Sequence[Place]",
    *,
    partitions: Iterable[int] | None = None,
    shards: Iterable[int] | None = None,
    allow_missing: bool = False,
    num_threads: int | None = None,
    progress: ProgressCallback | None = None,
) -> list[str]:
    """Replace the content of tables by that of a save. Not safe with writers.

    Every file is checked before a table changes. Other tables of the save are ignored. Configs must
    be equal, except for learning rates and the budget. After an error in a later phase, the tables
    are empty and a note of the exception says so.

    A table is found under its name or one of its `restore_names`; then a seed that came from the
    saved name counts as equal to one that came from the table's name.

    Args:
        tables: one table, or several with different names.
        path: folder of a save, or several with different partitions of the same tables.
        partitions: partitions of the key space to load; None means all.
        shards: numbers of the shards to fill of sharded tables (`ShardedTable`); other shards stay
            unchanged.
        allow_missing: whether to skip tables that the save does not have, instead of raising.
        num_threads: number of reading threads; None means torch.get_num_threads().
        progress: called with a `Progress` after each batch, on the reading threads; begins at 0
            again for each of `shards`, and if a new save replaced the files.

    Returns:
        Names of the tables that the save does not have.

    Raises:
        InvalidArgumentError: a config differs; the message names the field. Or the save has two
            names of one table, or one name of two tables. Other reasons are those of `load_tables`.
        FailedPreconditionError: a cut of a table is open, for example of a save, or the table is
            being restored.
        TypeError: shards are named for a table without shards.
        ValueError: a table has fewer shards.
    """
    where = "[restore_tables]"
    by_name = {table.name: table for table in checked_tables(where, tables)}
    numbers = checked_shards(where, shards, by_name.values())
    threads = checked_threads(where, num_threads)
    checked_progress(where, progress)
    names = {name: _names_of(where, table, by_name) for name, table in by_name.items()}
    request = _Request.checked(where, path, list(chain(*names.values())), partitions)

    def restore(plan: Plan) -> list[str]:
        table_plans = _plans_by_name(plan, names)
        missing = [name for name in by_name if name not in table_plans]
        if missing and not allow_missing:
            raise _not_found(names[missing[0]], plan)
        for name, table_plan in table_plans.items():
            table_plan.check_config(config_to_json(by_name[name].config))
        parts = Parts({name: by_name[name] for name in table_plans}, table_plans, numbers)
        for plans, targets in parts.pairs:
            verify(plans, targets, threads)
        with refill(where, parts.tables, parts.wholes):
            for plans, targets in parts.pairs:
                fill(where, plans, targets, threads, progress)
            parts.copy_call_numbers()
        return missing

    with told_as(where):
        return _use_plan(request, restore)


def _names_of(where: str, table: BaseTable, tables: Container[str]) -> list[str]:
    """Return the names under which a save may have a table; those of other tables are theirs."""
    others = checked_names(where, table.restore_names)
    assert others is not None
    return [table.name, *(name for name in dict.fromkeys(others) if name not in tables)]


def _plans_by_name(plan: Plan, names: Mapping[str, Sequence[str]]) -> dict[str, TablePlan]:
    """Return the plan of each table that the save has, in the order of the tables.

    Args:
        plan: tables of the save.
        names: table -> the names under which the save may have the table.
    """
    plans: dict[str, TablePlan] = {}
    users: dict[str, str] = {}
    for name, options in names.items():
        saved = [option for option in options if option in plan.tables]
        if len(saved) > 1:
            raise InvalidArgumentError(
                f"[load_tables] expected one of the names {list(options)} of table {name!r} in "
                f"{plan.where}, got {saved}; clear the table's restore_names that are not meant"
            )
        for old in saved:
            if old in users:
                raise InvalidArgumentError(
                    f"[load_tables] expected a saved table for each table, got {old!r} of "
                    f"{plan.where} for both {users[old]!r} and {name!r}; clear the restore_names "
                    "of one of the two"
                )
            users[old] = name
            plans[name] = plan.tables[old].renamed(name)
    return plans


def _not_found(names: Sequence[str], plan: Plan) -> NotFoundError:
    others = f" or {' or '.join(map(repr, names[1:]))}" if len(names) > 1 else ""
    return NotFoundError(
        f"[load_tables] expected table {names[0]!r}{others} in {plan.where}, "
        f"got tables {plan.names}"
    )


@dataclass(frozen=True)
class _Request:
    """Tables and partitions that a caller loads; None means all."""

    paths: list[str | Save]
    names: list[str] | None
    partitions: list[int] | None

    @classmethod
    def checked(cls, where: str, path: Any, names: Any, partitions: Any) -> "Self":
        return cls(
            checked_paths(where, path),
            checked_names(where, names),
            checked_partitions(where, partitions),
        )

    def plan(self) -> Plan:
        return plan_tables(self.paths, self.names, self.partitions)

    def check_found(self, plan: Plan) -> None:
        for name in self.names or []:
            if name not in plan.tables:
                raise _not_found([name], plan)


def _use_plan(request: _Request, use: Callable[[Plan], T]) -> T:
    """Make a plan and use it; repeats this if a new save replaced the files."""
    notes: list[str] = []
    for num_left in reversed(range(_MAX_PLANS)):
        plan = None
        try:
            plan = request.plan()
            with plan.holding():
                return use(plan)
        except BaseException as error:
            add_notes(error, notes)
            is_lost = isinstance(error, NotFoundError | DataLossError)
            if not (is_lost and num_left and plan is not None and plan.is_replaced()):
                raise
            notes = get_notes(error)
    raise AssertionError("the last plan returns or raises")
