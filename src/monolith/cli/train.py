"""`monolith train`: train the task of a task file."""

from typing import Annotated

import typer
from rich.console import Console

from monolith.cli.console import fail, say
from monolith.cli.options import control_options as controls
from monolith.cli.options import run_options as run
from monolith.cli.options.discovery_options import place, refuse_others
from monolith.cli.options.observe_options import ObserveOptions
from monolith.cli.options.resume_options import ResumeOptions
from monolith.cli.options.servers_options import ServersOptions
from monolith.cli.options.service_options import DataService, service_source
from monolith.cli.progress import (
    STATUS_OF_SIGNAL,
    ProgressHook,
    TrainProgress,
    tell_end,
    words_of_columns,
)
from monolith.cli.tasks.task_file import load_task_class, resolve_settings
from monolith.data import Pipeline
from monolith.errors import DataLossError
from monolith.train import Mode, Trainer
from monolith.train.roles.served_data import training_data
from monolith.train.run_state import seed_all

app = typer.Typer(add_completion=False)

_LINE_SECONDS = 2.0


@app.command(
    help="Example: monolith train ranker.py --data clicks/ --set train.steps=1000\n\n"
    "Train the task until its data or its steps end, or until Ctrl-C or SIGTERM.",
    short_help="Train the task of a task file.",
)
def train(
    context: typer.Context,
    task: run.TaskArgument,
    data: run.Data = None,
    data_service: DataService = None,
    settings: run.Settings = None,
    file: run.SettingsFile = None,
    servers: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,...",
            help="Addresses of `monolith ps`, their --discovery, or a number of servers in this "
            "process.",
        ),
    ] = None,
    num_servers: run.NumServers = None,
    keys: run.Keys = None,
    transfer: run.Transfer = None,
    server_timeout: run.ServerTimeout = None,
    checkpoints: run.Checkpoints = None,
    save_every: run.SaveEvery = None,
    save_seconds: run.SaveSeconds = None,
    full_every: run.FullEvery = None,
    save_rate: run.SaveRate = None,
    resume: run.Resume = False,
    fallback: run.Fallback = False,
    tensorboard: run.TensorBoard = None,
    metrics_port: run.MetricsPort = None,
    metrics_host: run.MetricsHost = None,
    metrics_file: run.MetricsFile = None,
    profile: run.Profile = None,
    profile_dir: run.ProfileDir = None,
    alert: run.Alert = None,
    control: controls.Control = None,
    control_bind: controls.Bind = None,
    control_tls: controls.Tls = None,
    as_json: run.AsJson = False,
) -> None:
    """Train the task until its data or its steps end, or until Ctrl-C or SIGTERM."""
    if servers is not None and (fixed := place(servers)) is not None:
        num_servers = fixed.sizes["ps"]
        refuse_others(servers, context, {"num_servers": num_servers})
    task_class = load_task_class(task)
    saves = {
        "save_every": save_every,
        "save_seconds": save_seconds,
        "full_every": full_every,
        "save_rate": save_rate,
    }
    flags = run.setting_flags(data, checkpoints, settings, alert, **saves)
    resolved, how = resolve_settings(task_class, file, flags)
    title = f"task {task_class.__name__} of {task}"
    say("\n".join([title, *(f"  {line}" for line in resolved.lines())]))
    if checkpoints is not None and how.checkpoint_dir is None:
        fail(f"expected a folder as --checkpoints, got {checkpoints!r}; write ./{checkpoints}", 2)
    run.check_saves(how.checkpoint_dir, **saves)
    controller = controls.control_options(
        control, control_bind, control_tls, directory=how.checkpoint_dir
    )
    begin = ResumeOptions(how.checkpoint_dir, resume, fallback)
    checkpoint = begin.check()
    seed_all(how.seed)  # a task may make its dense model in its constructor
    options = ObserveOptions(
        tensorboard, metrics_port, metrics_host, metrics_file, profile, profile_dir
    )
    served = service_source(data_service, keys)
    keys = None if served is not None and servers is None else keys  # those of the data service
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
            control=controller,
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
        samples = training_data(trainer.task) if served is None else served
        if isinstance(samples, Pipeline) and samples.left_out:
            say(words_of_columns(samples))
        console = Console(stderr=True)
        with TrainProgress(
            console, how.steps, is_json=as_json, interval_seconds=_LINE_SECONDS
        ) as progress:
            result = trainer.fit(samples, hooks=[ProgressHook(progress)])
        if result.ended in STATUS_OF_SIGNAL:
            fail(begin.words_of_stop(result), status=STATUS_OF_SIGNAL[result.ended])
        if not result.num_steps and checkpoint is None:
            fail(f"expected samples to train with, got none (task {task_class.__name__}, {task})")
        tell_end(task, result, None if held_out is None else trainer.evaluate(held_out), as_json)
        if how.checkpoint_dir is not None:
            say(f"{begin.words_of_end(result)}; next: monolith inspect {how.checkpoint_dir}")
