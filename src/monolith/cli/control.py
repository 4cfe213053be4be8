"""`monolith control`: stop, resume and save a running job, or show how it goes."""

import enum
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from monolith.cli.console import emit_json, emit_table, fail, say
from monolith.control import (
    BarrierAlreadyPlacedError,
    ControllerClient,
    RunStatus,
    WorkerState,
)

app = typer.Typer(add_completion=False)

_POLL_SECONDS = 0.1
_STOP_SECONDS = 60.0
_SAVE_SECONDS = 600.0


class Action(str, enum.Enum):
    """What an operator asks of a run."""

    STATUS = "status"
    STOP = "stop"
    RESUME = "resume"
    SAVE = "save"


@app.command(
    help="Example: monolith control --model-dir saves stop\n\n"
    "Stop all workers of a running job at their next steps, let them go on, save a checkpoint, or "
    "show how the job goes. The job is found by the folder of its checkpoints.",
    short_help="Stop, resume or save a running job.",
)
def control(
    action: Annotated[Action, typer.Argument(help="What to do.")],
    model_dir: Annotated[
        str, typer.Option("--model-dir", metavar="DIR", help="Folder of the job's checkpoints.")
    ],
    wait: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="S", help="Seconds to wait: 60 for all workers to stand, 600 for a save."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Do what is asked."""
    with ControllerClient(model_dir) as client:
        if action is Action.SAVE:
            _save(client, _SAVE_SECONDS if wait is None else wait, as_json)
        elif action is Action.STOP:
            _stop(client, model_dir, _STOP_SECONDS if wait is None else wait, as_json)
        elif action is Action.RESUME:
            was_stopped = client.status().is_stopped
            client.resume()
            status = client.status()
            text = "training goes on" if was_stopped else "training was not stopped"
            _tell(status, as_json, f"{text}, at step {status.step:,}")
        else:
            _show(client.status(), as_json)


def _save(client: ControllerClient, seconds: float, as_json: bool) -> None:
    saved = client.save(seconds)
    if as_json:
        emit_json({"path": saved.path, "step": saved.step})
    say(f"saved step {saved.step:,} at {saved.path}")


def _stop(client: ControllerClient, model_dir: str, seconds: float, as_json: bool) -> None:
    """Stop, and wait until all workers stand; workers that say nothing are left out and named."""
    try:
        client.stop()
    except BarrierAlreadyPlacedError:
        fail(f"training is stopped already; next: monolith control --model-dir {model_dir} resume")
    end = time.monotonic() + seconds
    while True:
        status = client.status()
        running = status.named(WorkerState.RUNNING)
        if not status.is_stopped:
            if as_json:
                emit_json(_facts(status))
            fail(
                "expected that training stays stopped until all workers stand, got a resume by "
                f"another operator; training goes on, at step {status.step:,}"
            )
        if not running:
            break
        if time.monotonic() >= end:
            if as_json:
                emit_json(_facts(status))
            fail(
                f"expected all workers to stand within {seconds:g} seconds, got {_words(running)} "
                "in a step that takes longer; they stand after it. Training stays stopped"
            )
        time.sleep(_POLL_SECONDS)
    parked, silent = status.named(WorkerState.PARKED), status.named(WorkerState.SILENT)
    text = f"stopped at step {status.step:,}: {_words(parked)} stand{'s' * (len(parked) == 1)}"
    if silent:
        text += f"; without {_words(silent)}, silent for {_silence(status):.0f} seconds"
    _tell(status, as_json, f"{text}; next: monolith control --model-dir {model_dir} resume")


def _words(workers: list[int]) -> str:
    """Return `worker 1`, or `workers 0 and 2`."""
    if len(workers) < 2:
        return f"worker {workers[0]}" if workers else "no worker"
    return f"workers {', '.join(map(str, workers[:-1]))} and {workers[-1]}"


def _silence(status: RunStatus) -> float:
    silent = [w.heard_seconds for w in status.workers if w.state is WorkerState.SILENT]
    return min(silent)


def _tell(status: RunStatus, as_json: bool, text: str) -> None:
    if as_json:
        emit_json(_facts(status))
    say(text)


def _facts(status: RunStatus) -> dict[str, Any]:
    facts = asdict(status)
    return facts | {"workers": [w | {"state": w["state"].value} for w in facts["workers"]]}


def _show(status: RunStatus, as_json: bool) -> None:
    if as_json:
        emit_json(_facts(status))
        return
    emit_table(
        ("worker", "state", "steps", "samples/s", "heard"),
        [
            (
                worker.index,
                worker.state.value,
                f"{worker.step:,}",
                f"{worker.samples_per_second:,.0f}",
                f"{worker.heard_seconds:.0f} s ago",
            )
            for worker in status.workers
        ],
    )
    state = "stopped" if status.is_stopped else "training"
    facts = f"{status.samples:,} samples, {status.lost_pushes:,} pushes lost"
    saved = status.checkpoint or "no checkpoint yet"
    say(f"{state}: task {status.task}, step {status.step:,}, {facts}; {saved}")
