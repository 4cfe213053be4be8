"""`monolith data`: print samples, count ids, convert files."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

from monolith.cli.console import byte_progress, emit_json, emit_table, fail, say
from monolith.data.files.tabular import FORMAT_NAMES, RawFiles, format_name_of, write_rows
from monolith.data.summary import ColumnSummary, summarize

app = typer.Typer(
    help="Example: monolith data stats logs/\n\nPrint samples, count ids, convert files.",
    short_help="Print samples, count ids, convert files.",
    no_args_is_help=True,
    add_completion=False,
)

_MAX_COLUMNS = 24  # columns of a printed table, unless they are named

_Paths = Annotated[list[str], typer.Argument(help="Files, globs or folders; any path of fsspec.")]
_Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help=f"Format of the files: {', '.join(FORMAT_NAMES)}. Default: by the names of the files.",
    ),
]
_Columns = Annotated[
    list[str] | None,
    typer.Option("--columns", metavar="NAMES", help="Columns to read, such as user,item."),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON lines on stdout.")]


@app.command(
    help="Example: monolith data head logs/ -n 3\n\nPrint the first samples.",
    short_help="Print the first samples.",
)
def head(
    paths: _Paths,
    num: Annotated[int, typer.Option("--num", "-n", min=1, help="Number of samples to print.")] = 5,
    columns: _Columns = None,
    file_format: _Format = None,
    as_json: _Json = False,
) -> None:
    """Print the first samples."""
    files = _open(paths, file_format, columns, preview=num)
    if columns is None and not as_json:
        files.select(files.schema.names[:_MAX_COLUMNS])
    rows = [row for batch in _first(files, num) for row in batch.to_pylist()]
    if as_json:
        for row in rows:
            emit_json(row)
        return
    emit_table(files.schema.names, [[_short(cell) for cell in row.values()] for row in rows])
    if columns is None and files.num_columns > _MAX_COLUMNS:
        say(f"{_MAX_COLUMNS} of {files.num_columns:,} columns; others: --columns NAMES, or --json")
    say(f"first {len(rows)} samples of {_summary(files)}; next: monolith data stats ...")


def _open(
    paths: list[str], file_format: str | None, columns: list[str] | None, preview: int | None = None
) -> RawFiles:
    """Open the files, and choose the columns of `--columns`, which may be given several times."""
    files = RawFiles(paths, file_format, preview)
    if columns is not None:
        files.select([name.strip() for names in columns for name in names.split(",")])
    return files


def _first(files: RawFiles, num: int) -> Iterator[pa.RecordBatch]:
    for batch in files:
        yield batch.slice(0, num)
        num -= batch.num_rows
        if num <= 0:
            return


def _short(cell: object, width: int = 40) -> str:
    text = str(cell)
    return text if len(text) <= width else text[: width - 3] + "..."


def _summary(files: RawFiles) -> str:
    count = len(files.files)
    return f"{count} {files.format_name} file{'s' if count > 1 else ''} ({files.total_bytes:,} B)"


@app.command(
    help="Example: monolith data stats logs/\n\nCount samples, values and ids of each column.",
    short_help="Count samples, values and ids of each column.",
)
def stats(
    paths: _Paths,
    top: Annotated[int, typer.Option(min=0, help="Number of frequent values per column.")] = 3,
    columns: _Columns = None,
    file_format: _Format = None,
    as_json: _Json = False,
) -> None:
    """Count samples, values and ids of each column."""
    files = _open(paths, file_format, columns)
    summaries = summarize(files.schema)
    with byte_progress("reading", files.total_bytes) as advance:
        for batch in files:
            for name, summary in summaries.items():
                summary.add(batch.column(name))
            advance(files.num_bytes)
    if as_json:
        for summary in summaries.values():
            emit_json(summary.as_dict(top))
        return
    names = ("column", "type", "missing", "values", "max length", "distinct", "range or top")
    emit_table(names, [_row(summary, top) for summary in summaries.values()])
    num_samples = next((summary.num_samples for summary in summaries.values()), 0)
    say(f"{num_samples:,} samples in {_summary(files)}")


def _row(column: ColumnSummary, top: int) -> list[object]:
    if column.low is not None:
        last = f"{column.low:g} to {column.high:g}, mean {column.mean:g}"
    else:
        last = ", ".join(f"{_short(value, 20)} ({times:,})" for value, times in column.top(top))
    distinct = "" if column.num_distinct is None else f"{column.num_distinct:,}"
    counts = (f"{number:,}" for number in (column.num_missing, column.num_values))
    more = ">= " if column.is_cut else ""
    return [column.name, column.kind, *counts, column.max_length, more + distinct, last]


@app.command(
    help="Example: monolith data convert logs/ all.parquet\n\nWrite samples in another format.",
    short_help="Write samples in another format.",
)
def convert(
    paths: Annotated[list[str], typer.Argument(help="Paths to read, then the file to write.")],
    columns: _Columns = None,
    file_format: _Format = None,
    to: Annotated[
        str | None, typer.Option(help="Format to write. Default: by the name of the file.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing file.")] = False,
) -> None:
    """Write samples in another format."""
    *sources, last = paths
    if not sources:
        fail("expected what to read and the file to write, got one path", status=2)
    target = Path(last)
    to = to or format_name_of(last)
    if to not in FORMAT_NAMES:
        fail(f"expected --to of {', '.join(FORMAT_NAMES)}, got {to!r}", status=2)
    if "://" in last:
        fail(f"expected a local file to write, got {last!r}; copy it there afterwards", status=2)
    if target.exists() and not overwrite:
        fail(f"{last!r} exists; give --overwrite to replace it")
    files = _open(sources, file_format, columns)
    start = time.perf_counter()
    with byte_progress("converting", files.total_bytes) as advance:

        def rows() -> Iterator[pa.RecordBatch]:
            for batch in files:
                advance(files.num_bytes)
                yield batch

        count = write_rows(target, to, files.schema, rows())
    seconds = time.perf_counter() - start
    say(
        f"wrote {count:,} samples to {last} ({target.stat().st_size:,} B, {to}) in {seconds:.1f} s;"
        f" next: monolith data head {last}"
    )
