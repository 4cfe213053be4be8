"""Runs a task file as a program: train, show the loss, then the score on data it has not seen."""

import sys
from collections.abc import Sequence

import torch

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


class Losses(ml.train.Hook):
    """Prints the mean loss since the last line."""

    def __init__(self) -> None:
        self._losses: list[float] = []

    def after_run(self, ctx: ml.train.StepContext, results: ml.train.StepResults) -> None:
        self._losses.append(float(results.value.loss))
        step = ctx.run.global_step or 0
        if step % SHOWN_STEPS == 0:
            self._show(step)

    def end(self, run: ml.train.Run) -> None:
        if self._losses:
            self._show(run.global_step or 0)

    def _show(self, step: int) -> None:
        print(f"step {step:6,}  loss {sum(self._losses) / len(self._losses):.4f}", flush=True)
        self._losses.clear()


def auc(scores: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of pairs of a positive and a negative that are in order; equal ones count half."""
    _, place, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2)[place]  # from 1; the mean one where equal
    num_positive = float(labels.sum())
    num_pairs = num_positive * (len(labels) - num_positive)
    above = float(ranks[labels > 0].double().sum()) - num_positive * (num_positive + 1) / 2
    return above / num_pairs if num_pairs else float("nan")


def run_task(task_class: type[ml.Task], arguments: Sequence[str]) -> None:
    """Train on the first path; score on the second, or what the task makes of the first."""
    if len(arguments) > 2:
        sys.exit(f"error: expected one path to train on and one to score on, got {len(arguments)}")
    paths = dict(zip(("train", "eval"), arguments, strict=False))
    task = task_class(task_class.Settings(data=paths))
    try:
        held_out = task.source(ml.Mode.EVAL)  # before the training, which may take long
        trainer = ml.Trainer(task)
        trainer.fit(hooks=[Losses()])
        outputs = list(trainer.predict(held_out))
    except (ValueError, ml.errors.MonolithError) as error:
        sys.exit(f"error: {error}")
    labels = torch.cat([output.batch.label for output in outputs])
    scores = torch.cat([output.prediction for output in outputs])
    rows = trainer.features.num_rows()
    print(f"AUC {auc(scores, labels):.4f} on {len(labels):,} samples  {rows:,} rows")
