"""`monolith ps`: run a parameter server."""

import logging
import os
import signal
import sys
from typing import Annotated, Any

import typer

from monolith.cli.console import emit_json, fail, say

app = typer.Typer(add_completion=False)


@app.command(
    help="Example: monolith ps --index 0 --num-servers 2 --bind 127.0.0.1:7000\n\n"
    "Run a parameter server: it holds a shard of every table of the trainers that connect. "
    "SIGTERM or Ctrl-C finishes the running calls and ends the server; its rows are in the "
    "checkpoints of the trainer.",
    short_help="Run a parameter server.",
)
def ps(
    index: Annotated[int, typer.Option(min=0, metavar="I", help="Number of this server.")] = 0,
    num_servers: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of servers of the job.")
    ] = 1,
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
        typer.Option(metavar="DIR", help="Write the address to a file in this folder."),
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
    drain_seconds: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds that running calls have to end.")
    ] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines on stdout.")] = False,
) -> None:
    """Run a parameter server until SIGTERM or Ctrl-C."""
    import torch

    from monolith.cluster.zmq.curve_keys import read_keys
    from monolith.cluster.zmq.server_process import ServerOptions, ServerProcess
    from monolith.errors import OpError

    if index >= num_servers:
        fail(f"expected --index below --num-servers, got {index} of {num_servers}", status=2)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    try:
        options = ServerOptions(
            index,
            num_servers,
            bind,
            None if keys is None else read_keys(keys),
            insecure,
            discovery,
            threads,
            metrics_port,
        )
        process = ServerProcess(options)
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
        _tell(as_json, {"event": "ready", **facts}, _words_of_start(facts, discovery, keys))
        process.run()
        is_drained = process.drain(drain_seconds)
        counts = dict(process.loop.counts)
        text = f"{received[0]}: ended after {counts.get('calls', 0):,} calls" + (
            "" if is_drained else f"; some did not end within {drain_seconds:g} seconds"
        )
        _tell(as_json, {"event": "ended", "is_drained": is_drained, "messages": counts}, text)


def _words_of_start(facts: dict[str, Any], discovery: str | None, keys: str | None) -> str:
    address, num_servers = facts["address"], facts["num_servers"]
    text = (
        f"server {facts['index']} of {num_servers} listens at {address}"
        f"{', without keys' if keys is None else ''}"
    )
    if facts["metrics_port"] is not None:
        text += f"; health: http://127.0.0.1:{facts['metrics_port']}/health"
    servers = address if num_servers == 1 else "all addresses with commas between them"
    if discovery is not None:
        servers = f"{discovery} --num-servers {num_servers}"
    more = "" if keys is None else f" --keys {keys}"
    return f"{text}; next: monolith train TASK --servers {servers}{more}"


def _tell(as_json: bool, value: dict[str, Any], text: str) -> None:
    if as_json:
        emit_json(value)
        sys.stdout.flush()  # a program waits for the line
    say(text)
