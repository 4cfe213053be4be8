"""`monolith train`: train the task of a file."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

import typer
from rich.console import Console

from monolith.cli.console import emit_json, fail, say
from monolith.cli.progress import TrainProgress, words_of
from monolith.cli.resume_options import ResumeOptions
from monolith.cli.task_file import load_task_class
from monolith.environment import variables
from monolith.errors import DataLossError
from monolith.train import (
    EarlyStop,
    Figures,
    FitResult,
    Mode,
    ReportHook,
    Task,
    Trainer,
    TrainSettings,
)
from monolith.util.layered_settings import SETTING_PREFIX, resolve

app = typer.Typer(add_completion=False)

# Somebody watches; and a batch whose loss is not finite is kept, for the process ends.
_DEFAULTS = MappingProxyType({"log_every": 20, "keep_dir": "kept"})
_LINE_SECONDS = 2.0
# 128 and the number of the signal, as shells have it.
_STATUS_OF_SIGNAL = MappingProxyType({"interrupted": 130, "terminated": 143})


@app.command(
    help="Example: monolith train ranker.py --data clicks/ --set train.steps=1000\n\n"
    "Train until the data ends, the steps are done, or Ctrl-C or SIGTERM comes.",
    short_help="Train the task of a file.",
)
def train(
    task: Annotated[str, typer.Argument(help="ranker.py, or ranker.py:Ranker.")],
    data: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="Of samples; eval=PATH: held out.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Such as batch_size=512.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--settings", metavar="FILE", help="A .toml or .json file of settings."),
    ] = None,
    servers: Annotated[
        int,
        typer.Option(min=0, metavar="N", show_default=False, help="Servers that hold the rows."),
    ] = 0,
    checkpoints: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where checkpoints go.")
    ] = None,
    save_every: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Steps between two of them.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the checkpoints.")] = False,
    fallback: Annotated[
        bool, typer.Option("--fallback", help="With --resume: leave damaged ones out.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines on stdout.")] = False,
) -> None:
    """Train until the data ends, the steps are done, or Ctrl-C or SIGTERM comes."""
    made = load_task_class(task)
    flags = [*(f"data.{each if '=' in each else 'train=' + each}" for each in data or ())]
    flags += [] if checkpoints is None else [f"train.checkpoint_dir={checkpoints}"]
    flags += [] if save_every is None else [f"train.save_every={save_every}"]
    resolved = resolve(
        _schema(made),
        file=file,
        environment=variables(SETTING_PREFIX),
        flags=[*flags, *(settings or ())],
    )
    say("\n".join([f"task {made.__name__} of {task}", *(f"  {line}" for line in resolved.lines())]))
    how = _train_settings(resolved.value.train)
    if checkpoints is not None and how.checkpoint_dir is None:
        fail(f"expected a folder as --checkpoints, got {checkpoints!r}; write ./{checkpoints}", 2)
    begin = ResumeOptions(how.checkpoint_dir, resume, fallback)
    checkpoint = begin.check()
    with Trainer(made(resolved.value), how, servers or None) as trainer:
        # Before the run: what is wrong with it is better known now.
        is_evaluated = Mode.EVAL.value in resolved.value.data
        held_out = trainer.task.source(Mode.EVAL) if is_evaluated else None
        if checkpoint is not None:
            try:
                trainer.restore(checkpoint.prefix)
            except DataLossError as error:
                fail(begin.words_of_damage(error))
            say(f"resumed at step {checkpoint.step or 0:,} from {checkpoint.prefix}")
        console = Console(stderr=True)
        with TrainProgress(
            console, how.steps, is_json=as_json, interval_seconds=_LINE_SECONDS
        ) as progress:
            result = trainer.fit(hooks=[_ProgressHook(progress)])
        if result.ended in _STATUS_OF_SIGNAL:
            fail(begin.words_of_stop(result), status=_STATUS_OF_SIGNAL[result.ended])
        if not result.num_steps and checkpoint is None:
            fail(f"expected samples to train with, got none (task {made.__name__}, {task})")
        _end(task, result, None if held_out is None else trainer.evaluate(held_out), as_json)
        if how.checkpoint_dir is not None:
            say(f"{begin.words_of_end()}; next: monolith inspect {how.checkpoint_dir}")


def _schema(task: type[Task]) -> type[Any]:
    """The task's own settings, and those of the trainer below `train`; an early stop is text."""
    fields = [
        (each.name, each.type, _DEFAULTS.get(each.name, each.default))
        for each in dataclasses.fields(TrainSettings)
        if each.name != "early_stop"
    ]
    how = dataclasses.make_dataclass("Train", [*fields, ("early_stop", str | None, None)])
    train = ("train", how, dataclasses.field(default_factory=how))
    return dataclasses.make_dataclass("Settings", [train], bases=(task.Settings,))


def _train_settings(given: Any) -> TrainSettings:
    values = vars(given)
    return TrainSettings(**{**values, "early_stop": _early_stop(values["early_stop"])})


def _early_stop(text: str | None) -> EarlyStop | None:
    """Of `auc`, or `auc:3` with a patience."""
    if text is None:
        return None
    metric, _, patience = text.partition(":")
    if patience and not patience.isdigit():
        raise ValueError(
            f"[settings] expected 'train.early_stop' as METRIC:PATIENCE, such as auc:3, got "
            f"{text!r}"
        )
    return EarlyStop(metric, int(patience)) if patience else EarlyStop(metric)


class _ProgressHook(ReportHook):
    def __init__(self, progress: TrainProgress) -> None:
        self._progress = progress

    def report(self, figures: Figures) -> None:
        """Show the figures."""
        self._progress.update(figures)


def _scores(found: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in found.items())


def _end(task: str, result: FitResult, held_out: dict[str, float] | None, as_json: bool) -> None:
    """Say what happened, and what to do next."""
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
                "eval": held_out,
            }
        )
    lines = [
        f"{result.num_steps:,} steps, {result.num_samples:,} samples in {result.seconds:.1f} s "
        f"({rate:,.0f} samples/s); ended: {result.ended}",
        f"last: {', '.join(words_of(result.figures)[1:])}",
    ]
    for step, found in result.evaluations.items():
        lines.append(f"eval at step {step:,}: {_scores(found)}")
    if held_out is not None:
        lines.append(f"eval: {_scores(held_out)}")
        lines.append(f"next: monolith train {task} --help")
    else:
        lines.append(f"next: monolith train {task} --data eval=PATH, to score samples held out")
    say("\n".join(lines))
