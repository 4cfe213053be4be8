"""Trains in a child until it is done or killed; started by test_exact_resume.py.

Reads lines from stdin: a directory and a case. For each line, the program forks a child that goes
on with the checkpoints of the directory, and prints the process id of the child, each step of the
child and its end. The child writes the samples of each step into `order.txt` and the figures of
each report into `figures.txt`.
"""

import os

import pyarrow as pa
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from monolith import data
from monolith.checkpoint import find
from monolith.nn import Feature
from monolith.table import MinCount
from monolith.table.optimizers import Adagrad, Adam
from monolith.train import ReportHook, Task, Trainer, TrainSettings
from tests.forker import fork_for_lines

NUM_SAMPLES, BATCH_SIZE = 144, 8
DAY = 86_400
CASES = ("plain", "mixed", "accumulated", "linked")
LONG = "long"  # mixed, of 1,008 steps
SAVING = "saving"  # mixed, of 216 steps, during most of which a checkpoint is being written
_NUM_EPOCHS = {LONG: 56, SAVING: 12}
SETTINGS = TrainSettings(threads=1, save_every=5, keep=2, evict_every=4, log_every=7)


def samples():
    """Return samples whose users recur and whose items expire; 8 samples are a day."""
    random = torch.Generator().manual_seed(3)
    number = range(NUM_SAMPLES)
    users = torch.randint(0, 40, (NUM_SAMPLES,), generator=random).tolist()
    items = [i // 12 * 10 + users[i] % 3 for i in number]
    clicks = [float(user % 3 == 0) for user in users]
    times = [1_700_000_000 + i // 8 * DAY for i in number]
    table = pa.table({"user": users, "item": items, "click": clicks, "time": times})
    return data.arrow_table(
        table, columns=data.Columns(["user", "item"], [], ["click"], None, "time")
    )


class Clicks(Task):
    """A task with every kind of state: admission, expiry, momentum, schedule, dropout, buffer."""

    features = (
        Feature("user", dim=4, optimizer=Adagrad(0.1), admission=MinCount(2)),
        Feature("item", dim=4, optimizer=Adam(0.01), expiry="5d"),
    )
    label = "click"

    def __init__(self, case):
        super().__init__()
        self._case = case

    def source(self, mode):
        """Return two epochs or more, each in another order unless the case is plain."""
        pipeline = samples().shuffle(50, seed=1) if self._case != "plain" else samples()
        return pipeline.repeat(_NUM_EPOCHS.get(self._case, 2)).batch(BATCH_SIZE)

    def build(self):
        parts = (torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        return torch.nn.Sequential(*parts)

    def schedule(self, optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 7, gamma=0.9)

    def loss(self, model, inputs, batch):
        logit = model(inputs.pooled.joined).squeeze(1)
        return binary_cross_entropy_with_logits(logit, batch.label), logit.sigmoid()


class Order(ReportHook):
    """Writes the samples of each step and the figures of each report, and prints the step."""

    def __init__(self, directory):
        self._path, self._figures = f"{directory}/order.txt", f"{directory}/figures.txt"

    def report(self, figures):
        numbers = (figures.num_samples, figures.loss, sorted(figures.metrics.items()))
        with open(self._figures, "a") as file:
            file.write(f"{figures.step} {numbers}\n")

    def after_run(self, ctx, results):
        users = [part.batch.features["user"].values.tolist() for part in results.value.parts]
        with open(self._path, "a") as file:
            file.write(f"{ctx.run.global_step} {users}\n")
        os.write(1, f"step {ctx.run.global_step}\n".encode())


def settings_of(directory, case):
    options = {
        "accumulated": {"accumulate": 2},
        "linked": {"save_every": 1, "full_every": 2, "busy_save": "wait"},
        LONG: {"save_every": 40},
        SAVING: {"save_every": 7, "save_rate": 1.0},
    }
    more = options.get(case, {})
    return TrainSettings(**{**vars(SETTINGS), **more, "checkpoint_dir": f"{directory}/saved"})


def train(directory, case):
    """Train to the end of the data, from the newest checkpoint if there is one."""
    with Trainer(
        Clicks(case), settings_of(directory, case), clock=lambda: 2_000_000_000
    ) as trainer:
        if find(f"{directory}/saved") is not None:
            trainer.restore(f"{directory}/saved")
        return trainer.fit(hooks=[Order(directory)])


if __name__ == "__main__":
    fork_for_lines(lambda line: train(*line.split()))
