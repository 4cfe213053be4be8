"""`monolith worker`: train as a worker of a job with parameter servers."""

from typing import Annotated

import typer
from rich.console import Console

from monolith.checkpoint import Checkpoint
from monolith.cli.console import fail, say
from monolith.cli.options import control_options as controls
from monolith.cli.options import run_options as run
from monolith.cli.options.discovery_options import place, refuse_others
from monolith.cli.options.observe_options import ObserveOptions
from monolith.cli.options.resume_options import ResumeOptions
from monolith.cli.options.servers_options import ServersOptions
from monolith.cli.options.service_options import DataService, service_source
from monolith.cli.progress import STATUS_OF_SIGNAL, ProgressHook, TrainProgress, tell_end_of_worker
from monolith.cli.tasks.task_file import load_task_class, resolve_settings
from monolith.train import Mode, Trainer
from monolith.train.roles.worker import JobReport, WorkerOptions, run_worker
from monolith.train.run_state import seed_all

app = typer.Typer(add_completion=False)

_LINE_SECONDS = 2.0


@app.command(
    help="Example: monolith worker ranker.py --index 0 --num-workers 2 --servers job/discovery "
    "--num-servers 2 --data clicks/\n\n"
    "Train as one worker of a job; worker 0 is the chief, which restores, saves and ends the job. "
    "A worker that is started again joins the running job. `monolith launch` starts a whole job.",
    short_help="Train as a worker of a job.",
)
def worker(
    context: typer.Context,
    task: run.TaskArgument,
    servers: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT,...",
            help="Addresses of `monolith ps`, or their --discovery.",
        ),
    ],
    index: Annotated[int, typer.Option(min=0, metavar="I", help="Number of this worker.")] = 0,
    num_workers: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of workers of the job.")
    ] = 1,
    num_servers: run.NumServers = None,
    data: run.Data = None,
    data_service: DataService = None,
    settings: run.Settings = None,
    file: run.SettingsFile = None,
    keys: run.Keys = None,
    transfer: run.Transfer = None,
    server_timeout: run.ServerTimeout = None,
    hold_seconds: Annotated[
        float,
        typer.Option(min=0.1, metavar="S", help="Wait of saves for a silent worker."),
    ] = 30.0,
    checkpoints: run.Checkpoints = None,
    save_every: run.SaveEvery = None,
    save_seconds: run.SaveSeconds = None,
    full_every: run.FullEvery = None,
    save_rate: run.SaveRate = None,
    resume: run.Resume = False,
    auto_resume: run.AutoResume = False,
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
    no_hints: run.NoHints = False,
    as_json: run.AsJson = False,
) -> None:
    """Train as a worker of a job until the data or the steps of the job end."""
    if (fixed := place(servers, "worker")) is not None:
        index, num_workers, num_servers = fixed.index, fixed.sizes["worker"], fixed.sizes["ps"]
        sizes = {"index": index, "num_workers": num_workers, "num_servers": num_servers}
        refuse_others(servers, context, sizes)
    if index >= num_workers:
        fail(f"expected --index below --num-workers, got {index} of {num_workers}", status=2)
    task_class = load_task_class(task)
    saves = {
        "save_every": save_every,
        "save_seconds": save_seconds,
        "full_every": full_every,
        "save_rate": save_rate,
    }
    flags = run.setting_flags(data, checkpoints, settings, alert, **saves)
    resolved, how = resolve_settings(task_class, file, flags)
    title = f"worker {index} of {num_workers}: task {task_class.__name__} of {task}"
    changed = [line for line in resolved.lines() if not line.endswith("(default)")]
    lines = changed if index == 0 else []  # the settings of all workers are equal
    say("\n".join([title, *(f"  {line}" for line in lines)]))
    run.check_saves(how.checkpoint_dir, **saves)
    if control is None:  # a job with checkpoints has a controller
        control = how.checkpoint_dir is not None
    controller = controls.control_options(
        control, control_bind, control_tls, directory=how.checkpoint_dir
    )
    begin = ResumeOptions(how.checkpoint_dir, resume, fallback, auto_resume)
    remote = ServersOptions(
        servers, num_servers, keys, transfer, server_timeout, (index, num_workers), is_worker=True
    )
    observe = ObserveOptions(
        tensorboard, metrics_port, metrics_host, metrics_file, profile, profile_dir
    )
    console = Console(stderr=True)
    with (
        observe.opened() as observers,
        remote.connect(servers) as connected,
        TrainProgress(
            console, how.steps, is_json=as_json, interval_seconds=_LINE_SECONDS
        ) as progress,
    ):
        is_running = any(facts["is_ready"] for facts in connected.describe())
        checkpoint: Checkpoint | None = None
        if index == 0 and not is_running:
            checkpoint = begin.check()
        seed_all(how.seed)  # a task may make its dense model in its constructor
        report = run_worker(
            task_class.from_settings(resolved.value),
            how,
            connected,
            source=service_source(data_service, keys),
            checkpoint=checkpoint,
            hooks=[*observers.profilers, ProgressHook(progress)],
            metrics=observers.sink,
            options=WorkerOptions(hold_seconds=hold_seconds, control=controller),
            began=lambda trainer: say(_words_of_begin(trainer, index)),
            then=_evaluated if Mode.EVAL.value in resolved.value.data else None,
        )
    _tell(report, begin, index, as_json, has_hints=not no_hints)


def _words_of_begin(trainer: Trainer, index: int) -> str:
    step = trainer.run.global_step or 0
    return f"worker {index} begins" + (f" at step {step:,}" if step else "")


def _evaluated(trainer: Trainer) -> dict[str, float]:
    return trainer.evaluate()


def _tell(
    report: JobReport, begin: ResumeOptions, index: int, as_json: bool, *, has_hints: bool
) -> None:
    """Print the end of the worker and of the job."""
    result, counts = report.result, dict(report.counts)
    tell_end_of_worker(index, result, report.evaluation, as_json, job=counts)
    say(
        f"job: {counts['steps']:,} steps, {counts['samples']:,} samples, "
        f"{counts['repeats']:,} trained again, {counts['lost_pushes']:,} pushes lost"
    )
    is_saving = index == 0 and begin.directory is not None
    if result.ended in STATUS_OF_SIGNAL:
        words = f"worker {index}: {result.ended}"
        if is_saving:
            words = begin.words_of_stop(result, has_hint=has_hints)
        fail(words, status=STATUS_OF_SIGNAL[result.ended])
    if is_saving:
        hint = f"; next: monolith inspect {begin.directory}" if has_hints else ""
        say(f"{begin.words_of_end(result)}{hint}")
    elif index == 0:
        say("nothing is saved: the job has no --checkpoints DIR")
