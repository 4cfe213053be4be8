"""Tasks of jobs, whose rows tell how often each sample was trained."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import monolith as ml
from monolith.data import Batch
from monolith.ops import Ragged
from monolith.table import MinCount, Zeros
from monolith.table.optimizers import SGD, Adagrad, Adam
from monolith.train import Hook

WAIT_SECONDS = 60.0
SLOW_SECONDS = 0.1  # more than ten steps of another worker
NUM_USERS = 50
DAY = 86_400


def write_samples(path, number, seed=0, weights_seed=0):
    """Write samples with a number, a user, an item, a time and a click that both decide."""
    random = torch.Generator().manual_seed(seed)
    users = torch.randint(0, NUM_USERS, (number,), generator=random)
    items = torch.randint(0, 10, (number,), generator=random)
    of_users = torch.randn(NUM_USERS, generator=torch.Generator().manual_seed(weights_seed))
    chances = torch.sigmoid(2 * of_users[users] + (items - 4.5) / 5)
    clicks = (torch.rand(number, generator=random) < chances).float()
    columns = {
        "sample": list(range(number)),
        "user": users.tolist(),
        "item": items.tolist(),
        "time": [1_700_000_000 + i // 100 * DAY for i in range(number)],
        "click": clicks.tolist(),
    }
    pq.write_table(pa.table(columns), path, row_group_size=64)
    return str(path)


@dataclass
class JobSettings(ml.TaskSettings):
    """Settings of the tasks.

    Args:
        batch_size: Number of samples of a batch.
        folder: Folder of the job.
        dim: Number of weights of a user.
        hidden: Width of the dense model.
        optimizer: Name of the dense optimizer.
        nan: Worker whose loss is NaN in its third step, or -1.
        slow: Worker that takes a pause after each step, or -1.
    """

    batch_size: int = 8
    folder: str = ""
    dim: int = 4
    hidden: int = 8
    optimizer: str = "adam"
    nan: int = -1
    slow: int = -1


class Counted(ml.Task):
    """A model of users; the row of a sample is smaller by 1 after each time it was trained."""

    Settings = JobSettings
    label = "click"

    def __init__(self, settings=None):
        super().__init__(settings)
        self.watched = None
        self.features = (
            ml.Feature("user", dim=self.settings.dim, optimizer=Adagrad(0.1)),
            ml.Feature("sample", dim=1, optimizer=SGD(1.0), initializer=Zeros()),
        )

    def source(self, mode):
        columns = ml.data.Columns(["user", "item", "sample"], [], ["click"], None, "time")
        files = ml.data.parquet(self.settings.data[mode], columns=columns)
        return files.batch(self.settings.batch_size)

    def build(self):
        width, hidden = self.settings.dim, self.settings.hidden
        return torch.nn.Sequential(
            torch.nn.Linear(width, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 1)
        )

    def optimizer(self, model):
        if self.settings.optimizer == "momentum":
            return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        return torch.optim.Adam(model.parameters(), lr=0.01)

    def loss(self, model, inputs, batch):
        logit = model(inputs.pooled["user"]).squeeze(1)
        counts = inputs.pooled["sample"].sum()
        loss = binary_cross_entropy_with_logits(logit, batch.label)
        if self.watched is not None and self.watched.num_steps == 2:
            loss = loss * (float("nan") if self.watched.is_worker(self.settings.nan) else 1)
        return loss + (counts - counts.detach()), logit.sigmoid()

    def hooks(self):
        if not self.settings.folder:
            return []
        self.watched = Watched(Path(self.settings.folder), self.settings.slow)
        return [self.watched]


class Seen(Counted):
    """A task with one row, which is smaller by 1 after each step; workers write what they read."""

    def __init__(self, settings=None):
        super().__init__(settings)
        self.features = (ml.Feature("one", dim=1, optimizer=SGD(1.0), initializer=Zeros()),)

    def source(self, mode):
        ids = Ragged.from_lists([[7]])
        return [Batch({"one": ids}, labels={"click": torch.zeros(1)}) for _ in range(10)]

    def build(self):
        return torch.nn.Linear(1, 1)

    def loss(self, model, inputs, batch):
        value = inputs.pooled["one"].sum()
        with open(Path(self.settings.folder, f"seen-{self.watched.name}"), "a") as file:
            file.write(f"{-value.item()}\n")
        logit = model(inputs.pooled["one"].detach()).squeeze(1)
        return value - value.detach() + logit.mean() * 0, logit.sigmoid()


class Rich(Counted):
    """A task with admission, expiry, a schedule and a buffer."""

    def __init__(self, settings=None):
        super().__init__(settings)
        self.features = (
            ml.Feature(
                "user", dim=self.settings.dim, optimizer=Adagrad(0.1), admission=MinCount(2)
            ),
            ml.Feature("item", dim=4, optimizer=Adam(0.01), expiry="5d"),
        )

    def build(self):
        hidden = self.settings.hidden
        return torch.nn.Sequential(
            torch.nn.Linear(self.settings.dim + 4, hidden),
            torch.nn.BatchNorm1d(hidden),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(hidden, 1),
        )

    def schedule(self, optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.8)

    def loss(self, model, inputs, batch):
        logit = model(inputs.pooled.joined).squeeze(1)
        return binary_cross_entropy_with_logits(logit, batch.label), logit.sigmoid()


def wait_for(is_true, seconds=WAIT_SECONDS):
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, f"not true after {seconds} seconds"
        time.sleep(0.005)


class Watched(Hook):
    """Notes the begin and the steps of a worker, and obeys the files of the job's folder.

    `pause` has start of a worker -> numbers of steps after which the worker waits, until the files
    `go-0`, `go-1` and so on are there. After a strike that kills a worker, the others wait until
    the worker is there again, so that they do not take all of its work.
    """

    def __init__(self, folder, slow=-1):
        self._folder, self._slow, self.num_steps = folder, slow, 0

    def is_worker(self, index):
        return self.name.startswith(f"worker-{index}.")

    def after_create_session(self, run, coordinator):
        from tests.train.roles.role_records import this_role

        self.name = this_role(self._folder)
        (self._folder / "began" / self.name).touch()

    def after_run(self, ctx, results):
        self.num_steps += 1
        (self._folder / "began" / self.name).write_text(str(self.num_steps))
        if (self._folder / "pause").exists():
            steps = json.loads((self._folder / "pause").read_text()).get(self.name, [])
            for place, step in enumerate(steps):
                if step == self.num_steps:
                    (self._folder / f"{self.name}.waits-{place}").touch()
                    wait_for((self._folder / f"go-{place}").exists)
        if self.is_worker(self._slow):
            time.sleep(SLOW_SECONDS)
        self._wait_for_struck()

    def _wait_for_struck(self):
        from tests.train.roles.role_records import strikes_of

        strikes, number = strikes_of(self._folder)
        if number == 0:
            return
        target = strikes[number - 1]["target"]
        start = 1 + sum(strike["target"] == target for strike in strikes[:number])
        if target.startswith("worker") and not self.name.startswith(f"{target}."):
            wait_for((self._folder / "began" / f"{target}.{start}").exists)
