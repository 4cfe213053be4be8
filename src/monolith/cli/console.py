"""Output of the commands: data on stdout, everything else on stderr, colour only on a terminal."""

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol

import rich.box
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text


def say(text: str) -> None:
    """Print a line for the reader on stderr."""
    Console(stderr=True).print(text, highlight=False, soft_wrap=True, markup=False)


def fail(text: str, status: int = 1) -> NoReturn:
    """Print the reason of a failure and exit with a status."""
    say(f"error: {text}")
    sys.exit(status)


@contextmanager
def told_of_interrupt(text: str) -> Iterator[None]:
    """End the command with status 130 and a text if Ctrl-C interrupts the block."""
    try:
        yield
    except KeyboardInterrupt:
        fail(f"interrupted; {text}", status=130)


def emit_json(value: Any) -> None:
    """Write a value as one line of JSON to stdout."""
    from monolith.data.files.tabular import finite  # late: other output does not wait for torch

    sys.stdout.write(json.dumps(finite(value), default=str, allow_nan=False) + "\n")


@contextmanager
def status_lines(facts: Callable[[], Mapping[str, Any]], seconds: float | None) -> Iterator[None]:
    """Print facts of a process as JSON lines in the block, on a thread.

    Args:
        facts: Function that returns the fields of a line.
        seconds: Seconds between two lines; None prints none.
    """
    if seconds is None:
        yield
        return
    is_over = threading.Event()

    def report() -> None:
        while not is_over.wait(seconds):
            try:
                emit_json({"event": "status", **facts()})
                sys.stdout.flush()
            except OSError:  # the reader of the pipe is gone
                return

    thread = threading.Thread(target=report, name="status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def emit_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table on stdout, at its full width if stdout is no terminal."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=10_000)
    table = Table(box=rich.box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(Text(column), overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))  # cells are data, not markup
    console.print(table)


class _Advance(Protocol):
    def __call__(self, num_done: int) -> None: ...


@contextmanager
def byte_progress(title: str, total: int) -> Iterator[_Advance]:
    """Show a progress bar of bytes on stderr, if stderr is a terminal.

    The block receives a function, to be called with the number of bytes that are done.
    """
    columns = (DownloadColumn(), TransferSpeedColumn())
    with _progress(title, total, columns) as advance:
        yield advance


@contextmanager
def row_progress(title: str, total: int | None) -> Iterator[_Advance]:
    """Show a progress bar of rows as `byte_progress` does; a total of None is not known yet."""
    with _progress(title, total, (TextColumn("{task.completed:,} rows"),)) as advance:
        yield advance


@contextmanager
def _progress(
    title: str, total: int | None, columns: Sequence[ProgressColumn]
) -> Iterator[_Advance]:
    console = Console(stderr=True)
    bars = (TextColumn("{task.description}"), BarColumn(), *columns, TimeRemainingColumn())
    with Progress(*bars, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=total)
        yield lambda num_done: bar.update(task, completed=num_done)
