"""`monolith import reference`: make a checkpoint of a task from dumps of the reference system."""

import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from monolith.checkpoint.reference_dump import (
    FILTER_REASON,
    NOT_IN_DUMPS,
    Choice,
    DumpFolder,
    DumpImport,
    ImportOptions,
    TableImport,
    import_dumps,
    open_dumps,
)
from monolith.cli.console import byte_progress, emit_json, fail, say, told_of_interrupt
from monolith.cli.inspection.inspect_save import time_text
from monolith.cli.progress import save_with_progress
from monolith.cli.tasks.task_file import load_task_class, resolve_settings
from monolith.table.config import segments_of
from monolith.table.optimizers import BatchSoftmax
from monolith.train.imported_rows import ImportCounts, ImportTarget, open_target

_CHOICE = re.compile(r"(?P<dump>[^=]+?)(:(?P<slot>\d{1,5}))?=(?P<table>.+)")


def reference(
    dumps: Annotated[
        str, typer.Argument(metavar="DUMPS", help="Model directory, checkpoint, or its .assets.")
    ],
    task: Annotated[str, typer.Option(metavar="TASK", help="Task file, or FILE.py:CLASS.")],
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="Folder of checkpoints.")],
    tables: Annotated[
        list[str] | None,
        typer.Option("--table", metavar="DUMP[:SLOT]=TABLE", help="Table for a dumped table."),
    ] = None,
    weights_only: Annotated[
        bool, typer.Option("--weights-only", help="Begin with new optimizer state.")
    ] = False,
    allow_unused: Annotated[
        bool, typer.Option("--allow-unused", help="Leave out dumps that no table takes.")
    ] = False,
    skip_non_finite: Annotated[
        bool, typer.Option("--skip-non-finite", help="Leave out rows with NaN or infinity.")
    ] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--settings", metavar="FILE", help="Read settings from this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Import the tables of a checkpoint of the reference system."""
    choices = [_parse_choice(text) for text in tables or ()]
    folder = open_dumps(dumps)
    task_class = load_task_class(task)
    resolved, how = resolve_settings(task_class, file, settings or ())
    with (
        told_of_interrupt(f"{to} is as it was"),
        open_target(task_class.from_settings(resolved.value), to, how) as target,
    ):
        options = ImportOptions(
            choices=[Choice(c.dump, target.table(c.table).name, c.slot) for c in choices],
            with_state=not weights_only,
            allows_unused=allow_unused,
            skips_non_finite=skip_non_finite,
        )
        start = time.perf_counter()
        result = _import(folder, target, options)
        seconds = time.perf_counter() - start
        prefix = save_with_progress(target)
        say("\n".join(_lines(target, result, seconds)))
        if as_json:
            emit_json(_summary(folder, target, result) | {"checkpoint": prefix, "seconds": seconds})
    words = ["train", task, *(word for text in settings or () for word in ("--set", text))]
    words += [] if file is None else ["--settings", file]
    say(
        f"saved {prefix}; next: {shlex.join(['monolith', *words, '--checkpoints', to, '--resume'])}"
    )


def _parse_choice(text: str) -> Choice:
    match = _CHOICE.fullmatch(text)
    if match is None:
        fail(f"expected --table DUMP=TABLE or DUMP:SLOT=TABLE, got {text!r}", status=2)
    slot = match["slot"]
    return Choice(match["dump"], match["table"], None if slot is None else int(slot))


def _import(folder: DumpFolder, target: ImportTarget, options: ImportOptions) -> DumpImport:
    tables = [target.table(name) for name in target.table_names]
    num_bytes = sum(dumps.num_bytes for dumps in folder.sets if dumps.kind != "filter")
    with byte_progress(f"importing {folder.path}", num_bytes) as advance:
        result = import_dumps(folder, tables, options, put=target.import_rows, advance=advance)
    if not any(table.num_rows for table in result.tables):
        filters = f"; {FILTER_REASON}" if result.filters else ""
        fail(
            f"[import] expected rows for a table of task {target.trainer.task.name!r}, got none at "
            f"{folder.path}{filters}"
        )
    return result


def _lines(target: ImportTarget, result: DumpImport, seconds: float) -> list[str]:
    """Say what became of the dumps, and what is new."""
    lines = [_words_of(target, table) for table in result.tables if table.num_rows]
    num_rows = sum(table.num_rows for table in result.tables)
    lines.append(
        f"{num_rows:,} rows in {seconds:.1f} s ({num_rows / max(seconds, 1e-9):,.0f} rows/s)"
    )
    empty = [table.table for table in result.tables if not table.num_rows]
    lines += [f"without rows in the dumps: {', '.join(empty)}"] if empty else []
    unused = [f"{name} ({count:,} rows)" for name, count in result.unused.items()]
    lines += [f"left out, because no table takes them: {', '.join(unused)}"] if unused else []
    if result.num_non_finite:
        lines.append(f"left out, because of NaN or infinity: {result.num_non_finite:,} rows")
    if result.filters:
        lines.append(f"left out: {', '.join(result.filters)}; {FILTER_REASON}")
    origin = "new" if target.checkpoint is None else f"those of {target.checkpoint.prefix}"
    lines.append(f"not in dumps, so {origin}: {'; '.join(NOT_IN_DUMPS)}")
    return lines


def _words_of(target: ImportTarget, table: TableImport) -> str:
    count = target.counts[table.table]
    words = [f"{count.num_new:,} new"]
    words += [f"{count.num_replaced:,} replaced"] if count.num_replaced else []
    words += [f"{count.num_without_room:,} without room"] if count.num_without_room else []
    words += [f"{table.num_without_time:,} without a time"] if table.num_without_time else []
    if table.oldest_time is not None:
        words.append(f"updated {time_text(table.oldest_time)} to {time_text(table.newest_time)}")
    optimizers = [segment.optimizer for segment in segments_of(target.table(table.table).config)]
    if any(isinstance(optimizer, BatchSoftmax) for optimizer in optimizers):
        words.append("BatchSoftmax has the steps of the old run, and this one begins at its own")
    return (
        f"{table.num_rows:,} rows of {', '.join(table.dumps)} into table {table.table!r}: "
        f"{', '.join(words)}"
    )


def _summary(folder: DumpFolder, target: ImportTarget, result: DumpImport) -> dict[str, Any]:
    tables: Sequence[dict[str, Any]] = [
        {**asdict(target.counts.get(table.table, ImportCounts())), **asdict(table)}
        for table in result.tables
    ]
    return {
        "dumps": folder.path,
        "dumped_step": folder.step,
        "tables": tables,
        "unused": result.unused,
        "num_non_finite": result.num_non_finite,
        "filters": result.filters,
        "not_in_dumps": NOT_IN_DUMPS,
        "restored": None if target.checkpoint is None else target.checkpoint.prefix,
    }
