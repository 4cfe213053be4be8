"""Output of the commands: data on stdout, everything else on stderr, colour only on a terminal."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol

import rich.box
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
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


def emit_json(value: Any) -> None:
    """Write a value as one line of JSON to stdout."""
    from monolith.data.files.tabular import finite  # late: other output does not wait for torch

    sys.stdout.write(json.dumps(finite(value), default=str, allow_nan=False) + "\n")


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
    def __call__(self, num_bytes: int) -> None: ...


@contextmanager
def byte_progress(title: str, total: int) -> Iterator[_Advance]:
    """Show a progress bar of bytes on stderr, if stderr is a terminal.

    The block receives a function, to be called with the number of bytes that are done.
    """
    console = Console(stderr=True)
    bars = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*bars, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=total)
        yield lambda num_bytes: bar.update(task, completed=num_bytes)
