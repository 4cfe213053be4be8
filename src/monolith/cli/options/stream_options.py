"""Options of `monolith train` for a stream: where it is, where it starts, and what comes before."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import typer

from monolith.cli.console import fail
from monolith.data import Batch
from monolith.data.files.stream_uri import StreamUri, is_stream_uri
from monolith.data.stream.open_stream import start_of
from monolith.train import Task
from monolith.train.online.online_source import OnlineSource, open_stream

BATCH_SECONDS = 0.05

Stream = Annotated[
    str | None,
    typer.Option(
        metavar="URI",
        help="Train on a stream without end: tail:FOLDER, or kafka://HOST:PORT/TOPIC.",
    ),
]
StreamStart = Annotated[
    str | None,
    typer.Option(
        metavar="WHEN", help="Start of a new stream: earliest, latest, or 2026-11-19T10:00."
    ),
]
Backfill = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="Files, folder or glob to train on before the stream."),
]
BatchSeconds = Annotated[
    float | None,
    typer.Option(metavar="S", help="Seconds until a batch of a stream ends, 0.05 by default."),
]


@dataclass(frozen=True)
class StreamOptions:
    """Options of `monolith train` for a stream.

    Args:
        uri: `--stream`; None trains on files.
        start: `--stream-start`.
        backfill: `--backfill`.
        seconds: `--batch-seconds`.
    """

    uri: str | None
    start: str | None = None
    backfill: str | None = None
    seconds: float | None = None

    def check(self, data: Iterable[str], *, mode: str, data_service: str | None) -> None:
        """Refuse options that do not fit each other, before a task is loaded.

        Args:
            data: `--data`.
            mode: `--mode`.
            data_service: `--data-service`.
        """
        others = {
            "--stream-start": self.start,
            "--backfill": self.backfill,
            "--batch-seconds": self.seconds,
        }
        if self.uri is None:
            for option, value in others.items():
                if value is not None:
                    fail(f"expected --stream URI with {option}, got none", 2)
            return
        self._check_start()
        if self.backfill is not None and is_stream_uri(self.backfill):
            fail(f"expected files as --backfill, got the stream {self.backfill!r}", 2)
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            fail(f"expected --batch-seconds above 0 and finite, got {self.seconds}", 2)
        if any("=" not in path or path.startswith("train=") for path in data):
            fail("expected --stream or --data PATH, got both; files before it: --backfill PATH", 2)
        if mode != "local":
            fail(
                "expected no --stream with --mode sync, got one: ranks go in lock-step, and each "
                "would wait for messages of the others; train in one process",
                2,
            )
        if data_service is not None:
            fail("expected --stream or --data-service, got both", 2)

    def _check_start(self) -> None:
        """Refuse a wrong URI, and a start that leaves out what comes during a backfill."""
        try:
            start = start_of(StreamUri.of(self._uri()).options.get("start", "earliest"))
        except ValueError as error:
            fail(str(error), 2)
        if self.backfill is not None and start == "latest":
            fail(
                "expected --stream-start earliest or a time with --backfill, got latest: what "
                "comes while the files are read would be left out",
                2,
            )

    def _uri(self) -> str:
        assert self.uri is not None
        return self.uri if self.start is None else StreamUri.of(self.uri).starting(self.start)

    def open(self, task: Task) -> OnlineSource | None:
        """Return the source of a task; None without a stream."""
        if self.uri is None:
            return None
        seconds = BATCH_SECONDS if self.seconds is None else self.seconds
        return open_stream(task, self._uri(), self.backfill, seconds=seconds)


def check_workers(data: Iterable[str], num_readers: int) -> None:
    """Refuse a stream as the training data of several workers or ranks.

    Args:
        data: `--data`.
        num_readers: Number of workers or ranks.
    """
    for text in data:
        path = text.removeprefix("train=")
        if is_stream_uri(path) and num_readers > 1:
            fail(
                f"expected one worker to train on the stream {path!r}, got {num_readers}; its "
                "positions belong to one reader",
                2,
            )


def words_of_stream(source: Iterable[Batch]) -> list[str]:
    """Say where a stream is read, in lines; an empty list for other sources."""
    if not isinstance(source, OnlineSource):
        return []
    first = "" if source.files is None else f"{source.files.describe()[0]}, then "
    return [f"reading {first}{source.stream.describe()[0]}; Ctrl-C or SIGTERM ends the run"]
