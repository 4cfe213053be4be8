"""Filling of tables from the files of a plan."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from monolith.errors import DataLossError, FailedPreconditionError
from monolith.table.base import BaseTable
from monolith.table.calls import TableCalls
from monolith.table.disk.block_reader import FileReader
from monolith.table.disk.buffers import Buffers
from monolith.table.disk.plan import Source, TablePlan
from monolith.table.disk.remote.remote_load import RemoteLoader, read_remotely
from monolith.table.disk.workers import ProgressCallback, Work, run_all
from monolith.table.eviction import candidate_columns

# In this order a layer of changes never needs more room than the save had, and candidates get the
# room that rows leave.
_ROW_KINDS = ("tombstones", "rows")


@contextlib.contextmanager
def refill(
    where: str, tables: Mapping[str, BaseTable], wholes: Sequence[BaseTable] = ()
) -> Iterator[None]:
    """Empty tables and refuse their cuts until the block has filled them.

    After an error the tables are empty again, and a note of the exception says so.

    Args:
        where: begin of the messages.
        tables: tables by their names in the note.
        wholes: sharded tables whose shards are in `tables`; their cuts are refused too.

    Raises:
        FailedPreconditionError: a cut of a table is open, or the table is being filled. No table
            has changed then.
    """
    locked = [*wholes, *tables.values()]
    _begin(where, locked)
    try:
        for table in tables.values():
            table.clear()
        yield
    except BaseException as error:
        for table in tables.values():
            with contextlib.suppress(FailedPreconditionError):  # the table was closed meanwhile
                table.clear()
        add_notes(error, [f"loading had begun, so the tables {list(tables)} are empty now"])
        raise
    finally:
        for table in locked:
            table._is_loading = False


def get_notes(error: BaseException) -> list[str]:
    """Return the notes of an exception."""
    notes: list[str] = getattr(error, "__notes__", [])
    return notes


def add_notes(error: BaseException, notes: list[str]) -> None:
    """Add notes as `add_note` of Python 3.11 does, but each text once."""
    if notes:
        vars(error)["__notes__"] = list(dict.fromkeys([*get_notes(error), *notes]))


def _begin(where: str, tables: Sequence[BaseTable]) -> None:
    with contextlib.ExitStack() as locks:
        for table in sorted(tables, key=id):  # in one order, so that two loads never deadlock
            locks.enter_context(table._cut_lock)
        for table in tables:
            table._check_not_loading(where)
            if table._has_cut():
                raise table._cut_error(where)
        for table in tables:
            table._is_loading = True


def verify(plans: dict[str, TablePlan], tables: dict[str, BaseTable], num_threads: int) -> None:
    """Read and check all files without a change, here or where the tables are."""
    local, remote = _by_place(plans, tables)
    work = Work(0, None)
    if remote:
        read_remotely(list(remote.values()), num_threads, work, is_check=True)
    check_files(local, tables, num_threads, work)


def fill(
    where: str,
    plans: dict[str, TablePlan],
    tables: dict[str, Any],
    num_threads: int,
    progress: ProgressCallback | None,
) -> None:
    """Fill empty tables, layer by layer, here or where the tables are.

    Raises:
        FailedPreconditionError: the budget of a table refused rows.
        DataLossError: the files contain a key twice.
    """
    work = Work(sum(plan.num_rows for plan in plans.values()), progress)
    before = {name: tables[name].stats() for name in plans}
    local, remote = _by_place(plans, tables)
    num_taken: dict[str, int] = {}
    if remote:
        numbers = read_remotely(list(remote.values()), num_threads, work, is_check=False)
        num_taken.update(zip(remote, numbers, strict=True))
    num_taken.update(take_files(local, tables, num_threads, work))
    for name, plan in plans.items():
        _check_num_rows(where, plan, tables[name], num_taken[name], before[name])
        tables[name].num_update_calls = plan.num_update_calls
        tables[name].latest_time = plan.latest_time


def _by_place(
    plans: dict[str, TablePlan], tables: Mapping[str, BaseTable]
) -> tuple[dict[str, TablePlan], dict[str, tuple[TablePlan, RemoteLoader]]]:
    """Return the plans of tables in this process, and plans and loaders of the others."""
    loaders = {name: tables[name]._remote_loader() for name in plans}
    local = {name: plan for name, plan in plans.items() if loaders[name] is None}
    remote = {name: (plans[name], loader) for name, loader in loaders.items() if loader is not None}
    return local, remote


def check_files(
    plans: dict[str, TablePlan], tables: Mapping[str, TableCalls], num_threads: int, work: Work
) -> None:
    """Read and check the files of plans without a change, in this process."""

    def check(reader: FileReader, source: Source, table: TableCalls) -> None:
        if source.file.kind == "candidates":
            reader.candidates(source)
        elif source.file.kind == "tombstones":
            reader.tombstones(source)
        else:
            for _ in reader.rows(source):
                work.report(0, 0)

    for kind in (*_ROW_KINDS, "candidates"):
        tasks = _tasks(plans, tables, kind, check, is_read_again=True)
        run_all(work, tasks, num_threads)


def take_files(
    plans: dict[str, TablePlan], tables: Mapping[str, TableCalls], num_threads: int, work: Work
) -> dict[str, int]:
    """Read the files of plans into tables in this process; return the numbers of rows by table."""
    num_taken: dict[str, list[int]] = {name: [] for name in plans}

    def take(reader: FileReader, source: Source, table: TableCalls) -> None:
        if source.file.kind == "candidates":
            names = candidate_columns(table.config)  # a shard has no column of shards
            columns = reader.candidates(source)
            table._import_candidates({name: columns[name] for name in names})
        elif source.file.kind == "tombstones":
            table._erase(reader.tombstones(source))
        else:
            for rows in reader.rows(source):
                table._fill_rows(rows)  # the reader has checked the rows
                num_taken[table.name].append(len(rows))
                work.report(len(rows), 0)
        work.report(0, source.file.num_bytes)

    for name, plan in plans.items():
        if plan.wants_everything:
            tables[name]._expect_rows(min(plan.num_rows, _most_rows(plan)))
    # One more thread, because one of the threads waits for the disk most of the time.
    num_workers = num_threads + (num_threads > 1)
    for layer in range(max((plan.num_layers for plan in plans.values()), default=0)):
        for kind in _ROW_KINDS:
            run_all(work, _tasks(plans, tables, kind, take, layer=layer), num_workers)
    run_all(work, _tasks(plans, tables, "candidates", take), num_workers)
    return {name: sum(numbers) for name, numbers in num_taken.items()}


def _most_rows(plan: TablePlan) -> int:
    """Return the largest number of rows in the files by their sizes: each has a key and a time."""
    sources = [source for source in plan.sources if source.file.kind == "rows"]
    return sum(source.folder.size(source.file.path) for source in sources) // 16


def _check_num_rows(
    where: str, plan: TablePlan, table: BaseTable, num_rows: int, before: dict[str, int]
) -> None:
    """Raise an error or warn if rows or candidates found no room."""
    stats = table.stats()
    num_refused, num_evicted, num_dropped = (
        stats[name] - before[name]
        for name in ("num_refused", "num_evicted_for_budget", "num_dropped_candidates")
    )
    is_layered = plan.num_layers > 1
    has_room = not num_refused + num_evicted
    if is_layered and plan.wants_everything and has_room and len(table) != plan.num_final_rows:
        raise DataLossError(
            f"{where} expected {plan.num_final_rows} rows after {plan.num_layers - 1} links, got "
            f"{len(table)} (table {table.name!r} in {plan.where}); a link is not of this chain"
        )
    if not is_layered and len(table) + num_refused + num_evicted != num_rows:
        raise DataLossError(
            f"{where} expected {num_rows} different keys, got {len(table)} "
            f"(table {table.name!r} in {plan.where}); the files hold a key twice"
        )
    if not num_refused + num_evicted + num_dropped:
        return
    budget = table.config.budget
    text = (
        f"{where} expected room for {num_rows} rows and their candidates, got none for "
        f"{num_refused + num_evicted} rows and {num_dropped} candidates under {budget} (table "
        f"{table.name!r} in {plan.where}); make a table with a larger one and use restore_tables"
    )
    if budget and budget.policy == "refuse":
        raise FailedPreconditionError(text)
    warnings.warn(text, RuntimeWarning, stacklevel=2)


def _tasks(
    plans: dict[str, TablePlan],
    tables: Mapping[str, TableCalls],
    kind: str,
    use: Callable[[FileReader, Source, TableCalls], None],
    *,
    layer: int | None = None,
    is_read_again: bool = False,
) -> list["functools.partial[None]"]:
    """Return a call for each file of a kind, of all layers or of one."""
    buffers = Buffers()
    files = [(plan, source) for plan in plans.values() for source in plan.sources_of(kind, layer)]
    return [
        functools.partial(
            use,
            FileReader(plan, tables[plan.name].config, buffers, is_read_again=is_read_again),
            source,
            tables[plan.name],
        )
        for plan, source in files
    ]
