"""`monolith demo`: demonstrations that run on one machine within a minute."""

import contextlib
import importlib.util
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from monolith.cli.console import emit_json, fail, say, told_of_interrupt
from monolith.cli.demos.stream_demo import StreamDemo

app = typer.Typer(
    help="Example: monolith demo stream\n\nShow a part of the system at work on this machine.",
    short_help="Show a part of the system at work.",
    no_args_is_help=True,
    add_completion=False,
)


class Source(str, Enum):
    """Where the clicks of the demonstration come from."""

    BROKER = "broker"
    FOLDER = "folder"


@app.callback()
def _demos() -> None:
    """Show a part of the system at work on this machine."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that its processes end too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@app.command(
    help="Example: monolith demo stream\n\nTrain on clicks while they happen, kill the trainer "
    "with kill -9, resume it, and count how often each click was trained.",
    short_help="Train on a stream, with a kill -9 of the trainer.",
)
def stream(
    folder: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the demonstration, made anew.")
    ] = Path("build/demo_stream"),
    source: Annotated[
        Source | None,
        typer.Option(help="Default: a broker if confluent-kafka is there, else a folder."),
    ] = None,
    clicks: Annotated[int, typer.Option(min=1000, metavar="N", help="Number of clicks.")] = 120_000,
    rate: Annotated[float, typer.Option(min=100, metavar="R", help="Clicks per second.")] = 5_000.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Train on a stream, kill the trainer, and count."""
    has_client = importlib.util.find_spec("confluent_kafka") is not None
    if source is Source.BROKER and not has_client:
        fail(
            "expected confluent-kafka with --source broker, got none; "
            "pip install 'monolith-torch[kafka]'"
        )
    with_broker = has_client if source is None else source is Source.BROKER
    start = time.monotonic()
    with told_of_interrupt("the demonstration is not over"), _terminable():
        counts = StreamDemo(folder, clicks, rate, with_broker, say).run()
    if as_json:
        emit_json(asdict(counts))
    say(
        f"{counts.num_events:,} clicks, by the rows of the checkpoint: {counts.once:,} trained "
        f"once, {counts.often:,} more often, {counts.never:,} never "
        f"({time.monotonic() - start:.0f} s)"
    )
    if counts.once != counts.num_events:
        sys.exit(1)
    say(f"next: monolith inspect {folder / 'saves'}")
