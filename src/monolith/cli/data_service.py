"""`monolith data-service`: processes that read and parse data for trainers."""

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from monolith.cli.console import emit_json, fail, say, status_lines
from monolith.cli.options import run_options as run

if TYPE_CHECKING:
    from monolith.cluster.data_service import (
        DataWorkerProcess,
        DispatcherProcess,
        ListenOptions,
    )

app = typer.Typer(
    help="Example: monolith data-service dispatcher --workers 2\n\n"
    "Read and parse data in processes of their own, for monolith train --data-service.",
    short_help="Read data in processes of their own.",
    no_args_is_help=True,
    add_completion=False,
)

_Bind = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS", help="Listen at host:port or ipc:///path; port 0 is a free one."
    ),
]
_Keys = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="CURVE keys, of `monolith keys new`."),
]
_Insecure = Annotated[bool, typer.Option("--insecure", help="Let every machine read the data.")]
_Advertise = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Address that others are told, if not --bind."),
]
_StatusSeconds = Annotated[
    float | None,
    typer.Option(metavar="S", hidden=True, help="With --json, print numbers every S seconds."),
]


@app.command(
    help="Example: monolith data-service dispatcher --bind 127.0.0.1:5050 --workers 2\n\n"
    "Run the dispatcher: it knows the data workers, and hands out shares of the data to trainers. "
    "SIGTERM or Ctrl-C ends it.",
    short_help="Run the dispatcher.",
)
def dispatcher(
    workers: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Data workers for which the data is divided; more may join."
        ),
    ] = 1,
    bind: _Bind = "127.0.0.1:0",
    keys: _Keys = None,
    insecure: _Insecure = False,
    advertise: _Advertise = None,
    status_seconds: _StatusSeconds = None,
    as_json: run.AsJson = False,
) -> None:
    """Run the dispatcher of a data service until SIGTERM or Ctrl-C."""
    from monolith.cluster.data_service import DispatcherProcess

    _begin_log()
    with _refusals():
        process = DispatcherProcess(_listen(bind, keys, insecure, advertise), workers)
    more = "" if keys is None else f" --keys {keys}"
    place = process.address.removeprefix("tcp://")
    command = f"monolith data-service worker TASK --dispatcher {place}{more}"
    text = f"dispatcher for {workers} data worker{'s' * (workers > 1)} listens at {place}"
    _serve(process, f"{text}; next: {command}", as_json, status_seconds)


@app.command(
    help="Example: monolith data-service worker ranker.py --dispatcher 127.0.0.1:5050 "
    "--data clicks/\n\n"
    "Run a data worker: it reads shares of the task's training data for trainers. SIGTERM or "
    "Ctrl-C ends it; other data workers go on with its shares.",
    short_help="Run a data worker.",
)
def worker(
    task: run.TaskArgument,
    dispatcher: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the dispatcher.")
    ],
    data: run.Data = None,
    settings: run.Settings = None,
    file: run.SettingsFile = None,
    bind: _Bind = "127.0.0.1:0",
    keys: _Keys = None,
    insecure: _Insecure = False,
    advertise: _Advertise = None,
    ahead: Annotated[
        int, typer.Option(metavar="N", help="Batches to read ahead for each share.")
    ] = 4,
    status_seconds: _StatusSeconds = None,
    as_json: run.AsJson = False,
) -> None:
    """Run a data worker of a data service until SIGTERM or Ctrl-C."""
    from monolith.cli.tasks.task_file import load_task_class, resolve_settings
    from monolith.cluster.data_service import DataWorkerProcess
    from monolith.train.roles.served_data import training_data

    task_class = load_task_class(task)
    flags = run.setting_flags(data, None, settings)
    resolved, _ = resolve_settings(task_class, file, flags)
    made = task_class.from_settings(resolved.value)
    _begin_log()
    with _refusals():
        process = DataWorkerProcess(
            lambda _: training_data(made),
            dispatcher,
            _listen(bind, keys, insecure, advertise),
            facts=[f"task {task_class.__name__}", f"settings {resolved.value}"],
            ahead=ahead,
        )
    more = "" if keys is None else f" --keys {keys}"
    place = process.address.removeprefix("tcp://")
    text = f"data worker of task {task_class.__name__} listens at {place}"
    hint = f"next: monolith train {task} --data-service {dispatcher}{more}"
    _serve(process, f"{text}; {hint}", as_json, status_seconds)


def _begin_log() -> None:
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """End the program with status 2 for a wrong option, and 1 for a dispatcher that is silent."""
    from monolith.errors import OpError, UnavailableError

    try:
        yield
    except UnavailableError as error:
        fail(str(error))
    except (OpError, OSError, TypeError, ValueError) as error:
        fail(str(error), status=2)


def _listen(bind: str, keys: str | None, insecure: bool, advertise: str | None) -> "ListenOptions":
    from monolith.cluster.data_service import ListenOptions
    from monolith.cluster.zmq.curve_keys import read_keys

    return ListenOptions(bind, None if keys is None else read_keys(keys), insecure, advertise)


def _serve(
    process: "DispatcherProcess | DataWorkerProcess",
    text: str,
    as_json: bool,
    status_seconds: float | None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; a second signal ends the process at once."""
    received: list[str] = []

    def stop(number: int, frame: Any) -> None:
        received.append(signal.Signals(number).name)
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        process.request_stop()

    with process:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        _tell(as_json, {"event": "ready", "address": process.address, "pid": os.getpid()}, text)
        with status_lines(process.status, status_seconds if as_json else None):
            process.run()
        status = process.status()
    words = f"{status['batches']:,} batches" if "batches" in status else "its work"
    _tell(as_json, {"event": "ended", **status}, f"{received[0]}: ended after {words}")


def _tell(as_json: bool, value: dict[str, Any], text: str) -> None:
    if as_json:
        emit_json(value)
        sys.stdout.flush()  # a program waits for the line
    say(text)
