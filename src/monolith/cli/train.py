"""`monolith train`: train the task of a task file."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer
from rich.console import Console

from monolith.checkpoint import Checkpoint, find
from monolith.cli.console import emit_json, fail, say
from monolith.cli.options import control_options as controls
from monolith.cli.options import run_options as run
from monolith.cli.options import stream_options as streams
from monolith.cli.options.discovery_options import place, refuse_others
from monolith.cli.options.observe_options import ObserveOptions
from monolith.cli.options.ranks_options import LOCAL, SYNC, RanksOptions, of_rank_0
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
from monolith.data import Batch, Pipeline
from monolith.errors import DataLossError
from monolith.train import FitResult, Mode, Task, Trainer, TrainSettings
from monolith.train.roles.served_data import training_data
from monolith.train.run_state import seed_all

app = typer.Typer(add_completion=False)

_LINE_SECONDS = 2.0


@app.command(
    help="Example: monolith train ranker.py --data clicks/ --set train.steps=1000\n\n"
    "Train the task until its data or its steps end, or until Ctrl-C or SIGTERM. A stream has no "
    "end: monolith train ranker.py --stream kafka://localhost:9092/clicks --checkpoints run",
    short_help="Train the task of a task file.",
)
def train(
    context: typer.Context,
    task: run.TaskArgument,
    data: run.Data = None,
    data_service: DataService = None,
    stream: streams.Stream = None,
    stream_start: streams.StreamStart = None,
    backfill: streams.Backfill = None,
    batch_seconds: streams.BatchSeconds = None,
    settings: run.Settings = None,
    file: run.SettingsFile = None,
    device: run.Device = None,
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
    mode: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help="local, or sync as one of the synchronous ranks that torchrun or `monolith "
            "launch --ranks N` starts.",
        ),
    ] = LOCAL,
    rank_timeout: run.RankTimeout = 300.0,
    rank: Annotated[str | None, typer.Option(hidden=True)] = None,
    rendezvous: Annotated[str | None, typer.Option(hidden=True)] = None,
    start: Annotated[int, typer.Option(hidden=True)] = 0,
    no_hints: run.NoHints = False,
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
    online = streams.StreamOptions(stream, stream_start, backfill, batch_seconds)
    online.check(data or (), mode=mode, data_service=data_service)
    task_class = load_task_class(task)
    saves = {
        "save_every": save_every,
        "save_seconds": save_seconds,
        "full_every": full_every,
        "save_rate": save_rate,
    }
    flags = run.setting_flags(data, checkpoints, settings, alert, **saves, device=device)
    resolved, how = resolve_settings(task_class, file, flags)
    ranks = RanksOptions(mode, rank, rendezvous, rank_timeout, start)
    if ranks.is_first:
        title = f"task {task_class.__name__} of {task}"
        say("\n".join([title, *(f"  {line}" for line in resolved.lines())]))
    if checkpoints is not None and how.checkpoint_dir is None:
        fail(f"expected a folder as --checkpoints, got {checkpoints!r}; write ./{checkpoints}", 2)
    run.check_saves(how.checkpoint_dir, **saves)
    if mode == SYNC:
        ranks.refuse(servers=servers, data_service=data_service, control=control)
    run.check_device(how.device)
    controller = controls.control_options(
        control, control_bind, control_tls, directory=how.checkpoint_dir
    )
    begin = ResumeOptions(how.checkpoint_dir, resume, fallback)
    if mode == SYNC and ranks.num_starts and how.checkpoint_dir is not None:
        begin = replace(begin, is_resumed=find(how.checkpoint_dir) is not None)
    options = ObserveOptions(
        tensorboard, metrics_port, metrics_host, metrics_file, profile, profile_dir
    )
    served = service_source(data_service, keys)
    keys = None if served is not None and servers is None else keys  # those of the data service
    remote = ServersOptions(
        servers, num_servers, keys, None if mode == SYNC else transfer, server_timeout
    )
    training = _Training(task, task_class, resolved, how, begin, online, served, as_json)
    with ranks.opened() as opened:
        is_chief = opened is None or opened.group.rank == 0
        name = of_rank_0(opened, lambda: getattr(begin.check(), "prefix", None))
        checkpoint = None if name is None else Checkpoint(name)
        seed_all(how.seed)  # a task may make its dense model in its constructor
        if not is_chief:
            options = ObserveOptions(None, None, None, None, None, None)
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
                ranks=opened,
                transfer=transfer or "float32",
            ) as trainer,
        ):
            result, scores = training.fit(trainer, checkpoint, is_chief=is_chief)
            if is_chief and result.ended not in STATUS_OF_SIGNAL:
                is_new = checkpoint is None
                training.tell_end(result, scores, is_new=is_new, has_hints=not no_hints)
    if result.ended in STATUS_OF_SIGNAL:
        status = STATUS_OF_SIGNAL[result.ended]
        if not is_chief:
            sys.exit(status)
        fail(begin.words_of_stop(result, has_hint=not no_hints), status=status)


@dataclass(frozen=True)
class _Training:
    """A task from its first batch to the last words."""

    task: str
    task_class: type[Any]
    resolved: Any
    how: TrainSettings
    begin: ResumeOptions
    online: streams.StreamOptions
    served: Iterable[Batch] | None
    as_json: bool

    def fit(
        self, trainer: Trainer, checkpoint: Checkpoint | None, *, is_chief: bool
    ) -> tuple[FitResult, dict[str, float] | None]:
        """Train, and score the held-out data."""
        # Open the held-out data before the run, so that an error in it is raised now.
        is_evaluated = Mode.EVAL.value in self.resolved.value.data
        held_out = trainer.task.source(Mode.EVAL) if is_evaluated else None
        if checkpoint is not None:
            try:
                trainer.restore(checkpoint.prefix)
            except DataLossError as error:
                fail(self.begin.words_of_damage(error))
        samples = self._samples(trainer.task)
        if trainer.sync is not None and self.as_json:
            emit_json({"event": "ready", "rank": trainer.sync.group.rank})
            sys.stdout.flush()
        if not is_chief:
            result = trainer.fit(samples)
        else:
            if checkpoint is not None:
                say(f"resumed at step {checkpoint.step or 0:,} from {checkpoint.prefix}")
            if trainer.sync is not None and trainer.sync.device_words is not None:
                say(trainer.sync.device_words)
            for line in streams.words_of_stream(samples):
                say(line)
            if isinstance(samples, Pipeline) and samples.left_out:
                say(words_of_columns(samples))
            with TrainProgress(
                Console(stderr=True),
                self.how.steps,
                is_json=self.as_json,
                interval_seconds=_LINE_SECONDS,
            ) as progress:
                result = trainer.fit(samples, hooks=[ProgressHook(progress)])
        has_ended = result.ended not in STATUS_OF_SIGNAL
        scores = trainer.evaluate(held_out) if held_out is not None and has_ended else None
        return result, scores

    def _samples(self, task: Task) -> Iterable[Batch]:
        if self.served is not None:
            return self.served
        return self.online.open(task) or training_data(task)

    def tell_end(
        self, result: FitResult, scores: dict[str, float] | None, *, is_new: bool, has_hints: bool
    ) -> None:
        """Print the result, and the next commands."""
        if not result.num_steps and is_new:
            name = self.task_class.__name__
            fail(f"expected samples to train with, got none (task {name}, {self.task})")
        tell_end(self.task, result, scores, self.as_json, has_hints=has_hints)
        if self.how.checkpoint_dir is not None:
            hint = f"; next: monolith inspect {self.how.checkpoint_dir}" if has_hints else ""
            say(f"{self.begin.words_of_end(result)}{hint}")
