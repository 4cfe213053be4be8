"""`monolith ps`: run a parameter server."""

import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from monolith.cli.console import emit_json, fail, say, status_lines
from monolith.cli.options import run_options as run

if TYPE_CHECKING:
    from monolith.cluster.job.dense_shard import DenseShard

app = typer.Typer(add_completion=False)


@app.command(
    help="Example: monolith ps --index 0 --num-servers 2 --bind 127.0.0.1:7000\n\n"
    "Run a parameter server: it holds a shard of every table of the trainers that connect, and "
    "with a TASK also dense parameters with their optimizer, for `monolith worker`. "
    "SIGTERM or Ctrl-C finishes the running calls and ends the server; its rows are in the "
    "checkpoints of the trainer.",
    short_help="Run a parameter server.",
)
def ps(
    context: typer.Context,
    task: Annotated[
        str | None,
        typer.Argument(
            help="Task file, FILE.py:CLASS, or module.CLASS, of a job with `monolith worker`."
        ),
    ] = None,
    index: Annotated[int, typer.Option(min=0, metavar="I", help="Number of this server.")] = 0,
    num_servers: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of servers of the job.")
    ] = 1,
    settings: run.Settings = None,
    file: run.SettingsFile = None,
    bind: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Listen at host:port or ipc:///path; port 0 takes a free one."
        ),
    ] = "127.0.0.1:0",
    keys: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="CURVE keys of the job, of `monolith keys new`."),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Let every machine that can connect read and write."),
    ] = False,
    discovery: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Tell the address to a folder, zk://HOST:PORT/JOB, or another discovery.",
        ),
    ] = None,
    threads: Annotated[
        int, typer.Option(min=1, metavar="N", help="Calls that work on tables at once.")
    ] = 2,
    call_threads: Annotated[
        int, typer.Option(min=1, metavar="N", help="Threads of one call; more for idle cores.")
    ] = 1,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Serve /metrics and /health at this port."),
    ] = None,
    metrics_host: run.MetricsHost = None,
    linger_seconds: Annotated[
        float,
        typer.Option(
            min=0, metavar="S", help="Seconds after SIGTERM that clients have to end the job."
        ),
    ] = 0.0,
    drain_seconds: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds that running calls have to end.")
    ] = 30.0,
    status_seconds: Annotated[
        float | None,
        typer.Option(metavar="S", hidden=True, help="With --json, print sizes every S seconds."),
    ] = None,  # for programs, such as `monolith launch`
    no_hints: run.NoHints = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines on stdout.")] = False,
) -> None:
    """Run a parameter server until SIGTERM or Ctrl-C."""
    import torch

    from monolith.cli.options.discovery_options import bind_of, opened, place, refuse_others
    from monolith.cluster.discovery.service_discovery import DiscoveryError
    from monolith.cluster.zmq.curve_keys import read_keys
    from monolith.cluster.zmq.server_process import LOOPBACK, ServerOptions, ServerProcess
    from monolith.errors import OpError

    if status_seconds is not None and not (as_json and status_seconds > 0):
        fail(f"expected --status-seconds above 0 with --json, got {status_seconds:g}", status=2)
    if metrics_host is not None and metrics_port is None:
        fail(f"expected --metrics-port N with --metrics-host {metrics_host}, got none", status=2)
    if (fixed := place(discovery, "ps")) is not None:
        index, num_servers = fixed.index, fixed.sizes["ps"]
        refuse_others(str(discovery), context, {"index": index, "num_servers": num_servers})
        bind = bind_of(str(discovery), context, fixed)
    if index >= num_servers:
        fail(f"expected --index below --num-servers, got {index} of {num_servers}", status=2)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    dense = None if task is None else _dense_of(task, file, settings, index, num_servers)
    try:
        options = ServerOptions(
            index,
            num_servers,
            bind,
            None if keys is None else read_keys(keys),
            insecure,
            None if discovery is None else opened(discovery),
            threads,
            metrics_port,
            metrics_host or LOOPBACK,
        )
        process = ServerProcess(options, dense)
    except DiscoveryError as error:
        fail(str(error))
    except (OpError, OSError, ValueError) as error:
        fail(str(error), status=2)
    torch.set_num_threads(call_threads)
    with process:
        received: list[str] = []

        def stop(number: int, frame: Any) -> None:
            received.append(signal.Signals(number).name)
            for each in (signal.SIGINT, signal.SIGTERM):
                signal.signal(each, signal.SIG_DFL)  # the next signal ends the process at once
            process.request_stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        facts = {
            "index": index,
            "num_servers": num_servers,
            "address": process.loop.address,
            "pid": os.getpid(),
            "metrics_port": None if process.metrics is None else process.metrics.port,
        }
        text = _words_of_start(facts, keys)
        if not no_hints:
            text += f"; next: {_next_command(facts, task, discovery, keys)}"
        _tell(as_json, {"event": "ready", **facts}, text)
        lines = status_seconds if as_json else None
        with status_lines(lambda: _sizes(process.health()), lines):
            process.run(linger_seconds=linger_seconds)
        is_drained = process.drain(drain_seconds)
        counts = dict(process.loop.counts)
        reason = received[0] if received else "end of the job"
        text = f"{reason}: ended after {counts.get('calls', 0):,} calls" + (
            "" if is_drained else f"; some did not end within {drain_seconds:g} seconds"
        )
        _tell(as_json, {"event": "ended", "is_drained": is_drained, "messages": counts}, text)


def _dense_of(
    task: str, file: str | None, settings: list[str] | None, index: int, num_servers: int
) -> "DenseShard":
    """Return the dense parameters of a task that live on this server."""
    from monolith.cli.tasks.task_file import load_task_class, resolve_settings
    from monolith.train.roles.server import dense_shard
    from monolith.train.run_state import seed_all

    task_class = load_task_class(task)
    resolved, how = resolve_settings(task_class, file, settings or ())
    seed_all(how.seed)
    return dense_shard(task_class.from_settings(resolved.value), how, index, num_servers)


def _sizes(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the sums over the tables of a server."""
    tables = facts["tables"].values()
    names = ("rows", "bytes", "update_calls")
    return {"index": facts["index"], **{n: sum(table[n] for table in tables) for n in names}}


def _words_of_start(facts: dict[str, Any], keys: str | None) -> str:
    text = (
        f"server {facts['index']} of {facts['num_servers']} listens at {facts['address']}"
        f"{', without keys' if keys is None else ''}"
    )
    if facts["metrics_port"] is not None:
        text += f"; health: http://127.0.0.1:{facts['metrics_port']}/health"
    return text


def _next_command(
    facts: dict[str, Any], task: str | None, discovery: str | None, keys: str | None
) -> str:
    """Return the command of a worker; without a task, that of a trainer."""
    from monolith.cluster.discovery.uris import is_fixed

    num_servers = facts["num_servers"]
    servers = facts["address"] if num_servers == 1 else "all addresses with commas between them"
    if discovery is not None:
        sizes = "" if is_fixed(discovery) else f" --num-servers {num_servers}"
        servers = f"{discovery}{sizes}"
    command = "train TASK" if task is None else f"worker {task}"
    more = "" if keys is None else f" --keys {keys}"
    return f"monolith {command} --servers {servers}{more}"


def _tell(as_json: bool, value: dict[str, Any], text: str) -> None:
    if as_json:
        emit_json(value)
        sys.stdout.flush()  # a program waits for the line
    say(text)
