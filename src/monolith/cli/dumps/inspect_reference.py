"""`monolith inspect` of a checkpoint of the reference system: its dumps of tables and filters."""

from dataclasses import asdict
from types import MappingProxyType

from monolith.checkpoint.reference_dump import (
    DumpFolder,
    DumpSummary,
    describe_dumps,
    num_cells,
)
from monolith.cli.console import byte_progress, emit_json, emit_table, fail, say
from monolith.cli.inspection.inspect_save import time_text

_NUM_SLOTS = 10  # that are named
_KINDS = MappingProxyType({"table": "one table", "tables": "many tables", "filter": "filter"})


def inspect_dumps(folder: DumpFolder, table: str | None, as_json: bool) -> None:
    """Print the dumps of a checkpoint; reads every row.

    Args:
        folder: folder with the dumps.
        table: name of the only table to print.
        as_json: whether to print JSON lines.
    """
    with byte_progress("reading", sum(dumps.num_bytes for dumps in folder.sets)) as advance:
        tables = describe_dumps(folder, advance=advance)
    if table is not None:
        tables = [summary for summary in tables if summary.name == table]
        if not tables:
            fail(f"[inspect] expected a table of the dumps at {folder.path}, got {table!r}")
    else:
        _show_files(folder, as_json)
    if as_json:
        for summary in tables:
            slots = {str(slot): count for slot, count in list(summary.slots.items())[:_NUM_SLOTS]}
            emit_json({**asdict(summary), "slots": slots, "num_slots": len(summary.slots)})
    elif tables:
        _show_tables(tables)
    incomplete = [dumps.name for dumps in folder.sets if dumps.problem]
    missing = f"; not read, because files are missing: {', '.join(incomplete)}" * bool(incomplete)
    rows = sum(summary.num_rows for summary in tables)
    count = f"{len(tables)} table{'s' if len(tables) != 1 else ''}"
    say(
        f"{count}, {rows:,} rows at {folder.path}{missing}; next: monolith import reference "
        f"{folder.path} --task FILE --to DIR"
    )


def _show_files(folder: DumpFolder, as_json: bool) -> None:
    rows: list[list[object]] = []
    for dumps in folder.sets:
        num_files = len(dumps.files) + len(dumps.metadata)
        cells = num_cells(folder, dumps) if dumps.kind == "filter" and not dumps.problem else None
        if as_json:
            emit_json(
                {
                    "dump": dumps.name,
                    "kind": dumps.kind,
                    "num_files": num_files,
                    "num_bytes": dumps.num_bytes,
                    "num_cells": cells,
                    "problem": dumps.problem or None,
                }
            )
        state = dumps.problem or ("complete" if cells is None else f"{cells:,} used cells")
        rows.append([dumps.name, _KINDS[dumps.kind], num_files, f"{dumps.num_bytes:,}", state])
    if not as_json:
        emit_table(("dump", "kind", "files", "bytes", "state"), rows)


def _show_tables(tables: list[DumpSummary]) -> None:
    head = ("table", "rows", "without time", "oldest update", "newest update")
    emit_table(head, [_times(table) for table in tables])
    segments = [
        [table.name, i, segment.optimizer or "-", "-" if segment.dim is None else segment.dim]
        for table in tables
        for i, segment in enumerate(table.segments)
    ]
    if segments:
        emit_table(("table", "segment of the first row", "optimizer", "dim"), segments)
    slots = [
        [table.name, slot, f"{count:,}", f"{count / table.num_rows:.1%}"]
        for table in tables
        for slot, count in list(table.slots.items())[:_NUM_SLOTS]
    ]
    if slots:
        emit_table(("table", "slot", "rows", "share"), slots)


def _times(table: DumpSummary) -> list[object]:
    counts = (f"{number:,}" for number in (table.num_rows, table.num_without_time))
    return [table.name, *counts, time_text(table.oldest_time), time_text(table.newest_time)]
