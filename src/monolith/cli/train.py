"""`monolith train`: train the task of a task file."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

import typer
from rich.console import Console

from monolith.cli.console import emit_json, fail, say
from monolith.cli.options.observe_options import ObserveOptions
from monolith.cli.options.resume_options import ResumeOptions
from monolith.cli.options.servers_options import ServersOptions
from monolith.cli.progress import TrainProgress, words_of
from monolith.cli.task_file import load_task_class, resolve_settings
from monolith.data import Pipeline
from monolith.errors import DataLossError
from monolith.train import Figures, FitResult, Mode, ReportHook, Trainer
from monolith.train.run_state import seed_all

app = typer.Typer(add_completion=False)

_LINE_SECONDS = 2.0
_SHOWN_COLUMNS = 5
# 128 plus the number of the signal, as in shells.
_STATUS_OF_SIGNAL = MappingProxyType({"interrupted": 130, "terminated": 143})


@app.command(
    help="Example: monolith train ranker.py --data clicks/ --set train.steps=1000\n\n"
    "Train the task until its data or its steps end, or until Ctrl-C or SIGTERM.",
    short_help="Train the task of a task file.",
)
def train(
    task: Annotated[
        str,
        typer.Argument(help="Task file, FILE.py:CLASS, or module.CLASS."),
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Parquet file, folder or glob to train on. `eval=PATH` adds held-out data.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting: batch_size=512."),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--settings", metavar="FILE", help="Read settings from a .toml or .json file."
        ),
    ] = None,
    servers: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,...",
            help="Addresses of `monolith ps`, the folder of their --discovery, or a number of "
            "servers in this process.",
        ),
    ] = None,
    num_servers: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of servers in a folder as --servers."),
    ] = None,
    keys: Annotated[
        str | None, typer.Option(metavar="FILE", help="CURVE keys of the servers.")
    ] = None,
    transfer: Annotated[
        str | None,
        typer.Option(metavar="DTYPE", help="Send rows and gradients as float16 or bfloat16."),
    ] = None,
    server_timeout: Annotated[
        float | None,
        typer.Option(metavar="S", help="Seconds that a call waits for a server, 30 by default."),
    ] = None,
    checkpoints: Annotated[
        str | None, typer.Option(metavar="DIR", help="Save checkpoints in this folder.")
    ] = None,
    save_every: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Save a checkpoint every N steps.")
    ] = None,
    save_seconds: Annotated[
        float | None, typer.Option(metavar="S", help="Save a checkpoint every S seconds.")
    ] = None,
    full_every: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Save only changed rows, N times per full one."),
    ] = None,
    save_rate: Annotated[
        float | None, typer.Option(metavar="MB/S", help="Limit of saves while training goes on.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest checkpoint.")
    ] = False,
    fallback: Annotated[
        bool, typer.Option("--fallback", help="With --resume, skip damaged checkpoints.")
    ] = False,
    tensorboard: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write event files for TensorBoard.")
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Serve metrics to Prometheus at this port."),
    ] = None,
    metrics_host: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Address of --metrics-port."),
    ] = None,
    metrics_file: Annotated[
        str | None, typer.Option(metavar="PATH", help="Append metrics as JSON lines.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(metavar="STEPS", help="Trace steps=10, or from=500,steps=10."),
    ] = None,
    profile_dir: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Write traces in this folder."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines on stdout.")] = False,
) -> None:
    """Train the task until its data or its steps end, or until Ctrl-C or SIGTERM."""
    task_class = load_task_class(task)
    flags = [f"data.{path if '=' in path else 'train=' + path}" for path in data or ()]
    flags += [] if checkpoints is None else [f"train.checkpoint_dir={checkpoints}"]
    saves = {
        "save_every": save_every,
        "save_seconds": save_seconds,
        "full_every": full_every,
        "save_rate": save_rate,
    }
    flags += [f"train.{name}={value}" for name, value in saves.items() if value is not None]
    resolved, how = resolve_settings(task_class, file, [*flags, *(settings or ())])
    title = f"task {task_class.__name__} of {task}"
    say("\n".join([title, *(f"  {line}" for line in resolved.lines())]))
    if checkpoints is not None and how.checkpoint_dir is None:
        fail(f"expected a folder as --checkpoints, got {checkpoints!r}; write ./{checkpoints}", 2)
    for name, value in saves.items():
        if value is not None and how.checkpoint_dir is None:
            fail(f"expected --checkpoints DIR with --{name.replace('_', '-')}, got none", 2)
    begin = ResumeOptions(how.checkpoint_dir, resume, fallback)
    checkpoint = begin.check()
    seed_all(how.seed)  # a task may make its dense model in its constructor
    options = ObserveOptions(
        tensorboard, metrics_port, metrics_host, metrics_file, profile, profile_dir
    )
    remote = ServersOptions(servers, num_servers, keys, transfer, server_timeout)
    with (
        options.opened() as observers,
        remote.opened() as tables,
        Trainer(
            task_class.from_settings(resolved.value),
            how,
            tables,
            observers.profilers,
            metrics=observers.sink,
        ) as trainer,
    ):
        # Open the held-out data before the run, so that an error in it is raised now.
        is_evaluated = Mode.EVAL.value in resolved.value.data
        held_out = trainer.task.source(Mode.EVAL) if is_evaluated else None
        if checkpoint is not None:
            try:
                trainer.restore(checkpoint.prefix)
            except DataLossError as error:
                fail(begin.words_of_damage(error))
            say(f"resumed at step {checkpoint.step or 0:,} from {checkpoint.prefix}")
        samples = trainer.columns.select(trainer.task.source(Mode.TRAIN))
        if isinstance(samples, Pipeline) and samples.left_out:
            say(_words_of_columns(samples))
        console = Console(stderr=True)
        with TrainProgress(
            console, how.steps, is_json=as_json, interval_seconds=_LINE_SECONDS
        ) as progress:
            result = trainer.fit(samples, hooks=[_ProgressHook(progress)])
        if result.ended in _STATUS_OF_SIGNAL:
            fail(begin.words_of_stop(result), status=_STATUS_OF_SIGNAL[result.ended])
        if not result.num_steps and checkpoint is None:
            fail(f"expected samples to train with, got none (task {task_class.__name__}, {task})")
        _end(task, result, None if held_out is None else trainer.evaluate(held_out), as_json)
        if how.checkpoint_dir is not None:
            say(f"{begin.words_of_end(result)}; next: monolith inspect {how.checkpoint_dir}")


def _words_of_columns(samples: Pipeline) -> str:
    """Say how many columns of the samples are used, and which are not."""
    num_used, others = len(samples.columns.names()), sorted(samples.left_out)
    shown = ", ".join(others[:_SHOWN_COLUMNS]) + (", ..." if len(others) > _SHOWN_COLUMNS else "")
    return f"{num_used:,} of {num_used + len(others):,} columns are used; not used: {shown}"


class _ProgressHook(ReportHook):
    def __init__(self, progress: TrainProgress) -> None:
        self._progress = progress

    def report(self, figures: Figures) -> None:
        """Show the figures."""
        self._progress.update(figures)


def _scores(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def _end(task: str, result: FitResult, held_out: dict[str, float] | None, as_json: bool) -> None:
    """Print the result of the run and the next command."""
    rate = result.num_samples / result.seconds if result.seconds else 0.0
    if as_json:
        emit_json(
            {
                "ended": result.ended,
                "num_steps": result.num_steps,
                "num_samples": result.num_samples,
                "seconds": result.seconds,
                "figures": dataclasses.asdict(result.figures),
                "evaluations": result.evaluations,
                "saves": dataclasses.asdict(result.saves),
                "eval": held_out,
            }
        )
    lines = [
        f"{result.num_steps:,} steps, {result.num_samples:,} samples in {result.seconds:.1f} s "
        f"({rate:,.0f} samples/s); ended: {result.ended}",
        f"last: {', '.join(words_of(result.figures)[1:])}",
    ]
    for step, metrics in result.evaluations.items():
        lines.append(f"eval at step {step:,}: {_scores(metrics)}")
    if held_out is not None:
        lines.append(f"eval: {_scores(held_out)}")
        lines.append(f"next: monolith train {task} --help")
    else:
        lines.append(f"next: monolith train {task} --data eval=PATH, to score held-out samples")
    say("\n".join(lines))
