"""Runs a task file as a program: train, show the loss, then the score on data it has not seen."""

import sys
from collections.abc import Sequence

import monolith as ml

SHOWN_STEPS = 20  # between two lines


def path_of(task: ml.Task, mode: ml.Mode) -> str:
    """Where the data of a mode is."""
    data: dict[str, str] = task.settings.data
    if mode not in data:
        raise ValueError(
            f"[{task.name}] expected a path of data for {mode}, got {', '.join(data) or 'none'}; "
            f"give --data {mode}=PATH"
        )
    return data[mode]


class Lines(ml.train.ReportHook):
    """Prints the figures."""

    def report(self, figures: ml.train.Figures) -> None:
        print(
            f"step {figures.step:6,}  loss {figures.loss:.4f}  "
            f"{figures.samples_per_second:9,.0f} samples/s  {figures.num_rows:9,} rows",
            flush=True,
        )


def run_task(task_class: type[ml.Task], arguments: Sequence[str]) -> None:
    """Train on the first path; score on the second, or what the task makes of the first."""
    if len(arguments) > 2:
        sys.exit(f"error: expected one path to train on and one to score on, got {len(arguments)}")
    paths = dict(zip(("train", "eval"), arguments, strict=False))
    task = task_class(task_class.Settings(data=paths))
    settings = ml.TrainSettings(log_every=SHOWN_STEPS)
    try:
        held_out = task.source(ml.Mode.EVAL)  # before the training, which may take long
        with ml.Trainer(task, settings, hooks=[Lines()]) as trainer:
            trainer.fit()
            scores = trainer.evaluate(held_out)
    except (OSError, ValueError, ml.errors.MonolithError) as error:
        sys.exit(f"error: {error}")
    print("evaluation  " + "  ".join(f"{name} {score:.4f}" for name, score in scores.items()))
