"""Trains on a folder that grows until it is killed or has all; started by test_stream_kills.py.

Reads lines from stdin: a directory, the number of samples to come, and a number of steps to
prefetch. For each line, the program forks a child that goes on with the checkpoints of the
directory, and prints the process id of the child and each step of the child. The child writes the
samples of each step into `order.txt`.
"""

import json
import os

import torch

from monolith.checkpoint import find
from monolith.data import Columns, stream
from monolith.nn import Feature
from monolith.table.optimizers import Adagrad
from monolith.train import Hook, Task, Trainer, TrainSettings
from tests.forker import fork_for_lines

NOW = 2_000_000_000


class Sums(Task):
    """A task in which the gradient of a sample is one of its columns.

    So the rows are those of the samples in their order, whichever weights the model has.
    """

    features = (
        Feature("user", dim=2, optimizer=Adagrad(0.1)),
        Feature("number", dim=2, optimizer=Adagrad(0.1)),
    )
    dense = ("gradient",)
    label = ()

    def __init__(self, folder):
        super().__init__()
        self._folder = folder

    def source(self, mode):
        columns = Columns(["user", "number"], ["gradient"], time="time")
        return stream.tail(self._folder, columns=columns).batch(16, seconds=0.01)

    def build(self):
        return torch.nn.Identity()

    def metrics(self):
        return {}

    def loss(self, model, inputs, batch):
        value = inputs.pooled.joined.sum(1)
        return (value * inputs.dense[:, 0]).sum(), value


class Order(Hook):
    """Writes the samples of each step, prints the step, and ends the run after all samples."""

    def __init__(self, directory, num_left):
        self._path, self._num_left = f"{directory}/order.txt", num_left

    def after_run(self, ctx, results):
        (part,) = results.value.parts
        batch = part.batch
        names = ("user", "number")
        rows = [batch.features[name].values.tolist() for name in names]
        rows += [batch.dense["gradient"].tolist(), batch.time.tolist()]
        with open(self._path, "a") as file:
            file.write(json.dumps([ctx.run.global_step, *rows]) + "\n")
        os.write(1, f"step {ctx.run.global_step}\n".encode())
        self._num_left -= len(batch)
        if self._num_left <= 0:
            ctx.request_stop()


def history(path):
    """Return the steps that count: those after a checkpoint replace what a killed run did."""
    steps = []
    if not os.path.exists(path):
        return steps
    with open(path) as file:
        for line in file:
            if line.endswith("\n"):  # else the run was killed while it wrote
                number, *rows = json.loads(line)
                steps = [*steps[: number - 1], rows]
    return steps


def trained(steps):
    """Return the numbers of the samples of steps, in order."""
    return [number for _, numbers, _, _ in steps for number in numbers]


def train(directory, total, prefetch):
    settings = TrainSettings(
        threads=1,
        prefetch=int(prefetch),
        push=min(1, int(prefetch)),
        save_every=6,
        busy_save="wait",
        keep=2,
        checkpoint_dir=f"{directory}/saved",
    )
    with Trainer(Sums(f"{directory}/data"), settings, clock=lambda: NOW) as trainer:
        if find(settings.checkpoint_dir) is not None:
            trainer.restore(settings.checkpoint_dir)
        steps = history(f"{directory}/order.txt")[: trainer.state.step]
        trainer.fit(hooks=[Order(directory, int(total) - len(trained(steps)))])


if __name__ == "__main__":
    fork_for_lines(lambda line: train(*line.split()))
