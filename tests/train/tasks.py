"""Tasks of tests: small enough to compute by hand."""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from monolith.data import Batch
from monolith.nn import Feature
from monolith.ops import Ragged
from monolith.table import Zeros
from monolith.table.optimizers import SGD, Adagrad
from monolith.train import Hook, Task


def clicks(number, size=8, seed=0, **columns):
    """Return batches of users, items, an hour and a click."""
    random = torch.Generator().manual_seed(seed)

    def draw(high):
        return torch.randint(0, high, (size,), generator=random)

    def one(ids):
        return Ragged(ids, torch.arange(size + 1))

    return [
        Batch(
            {"user": one(draw(20)), "item": one(draw(10))},
            {"hour": torch.rand(size, generator=random)},
            {"click": draw(2).float()},
            **columns,
        )
        for _ in range(number)
    ]


class Clicks(Task):
    """A logistic model of two features and a dense column."""

    features = (
        Feature("user", dim=4, optimizer=Adagrad(0.1)),
        Feature("item", dim=4, optimizer=Adagrad(0.1)),
    )
    dense, label = ("hour",), "click"

    def __init__(self, batches=None, held_out=()):
        super().__init__()
        self.batches, self.held_out = clicks(6) if batches is None else batches, held_out

    def source(self, mode):
        return self.batches if mode == "train" else self.held_out

    def build(self):
        return torch.nn.Linear(9, 1)

    def optimizer(self, model):
        return torch.optim.Adam(model.parameters(), lr=0.01)

    def loss(self, model, inputs, batch):
        logit = model(torch.cat([inputs.pooled.joined, inputs.dense], 1)).squeeze(1)
        return binary_cross_entropy_with_logits(logit, batch.label), logit.sigmoid()


class Counting(Task):
    """A task with one row, which each update makes smaller by 1, so that a lookup counts updates.

    Attributes:
        seen: Number of updates that the lookup of each step has seen.
    """

    features = (Feature("id", dim=1, optimizer=SGD(1.0), initializer=Zeros()),)

    def __init__(self, number=6):
        super().__init__()
        self.batches = counted(number)
        self.seen = []

    def source(self, mode):
        return self.batches

    def build(self):
        return torch.nn.Identity()

    def loss(self, model, inputs, batch):
        value = inputs.pooled["id"].squeeze(1)
        self.seen.append(-int(value.detach()[0]))
        return value.sum(), value

    def metrics(self):
        return {}


def counted(number):
    """Return batches of one sample with id 7, whose labels are their numbers."""
    ids = {"id": Ragged.from_lists([[7]])}
    return [Batch(ids, labels={"label": torch.tensor([float(i)])}) for i in range(number)]


class Losses(Hook):
    """Records the loss of each step."""

    def __init__(self):
        self.losses = []

    def after_run(self, ctx, results):
        self.losses.append(results.value.loss)


class StopAfter(Hook):
    """Requests a stop after `number` steps of a run."""

    def __init__(self, number):
        self._left = number

    def after_run(self, ctx, results):
        self._left -= 1
        if self._left == 0:
            ctx.request_stop()


class Raise(Hook):
    """Raises an error after `number` steps."""

    def __init__(self, number, error):
        self._left, self._error = number, error

    def after_run(self, ctx, results):
        self._left -= 1
        if self._left == 0:
            raise self._error


def state_of(trainer):
    """Return the rows of all tables and the dense parameters as plain values."""
    tables = {name: table.export() for name, table in trainer.features.tables.items()}
    rows = {
        name: sorted(
            (key, time, *[tuple(c[i].flatten().tolist()) for c in chunk.columns.values()])
            for chunk in chunks
            for i, (key, time) in enumerate(
                zip(chunk.keys.tolist(), chunk.times.tolist(), strict=True)
            )
        )
        for name, chunks in tables.items()
    }
    return rows, {name: p.tolist() for name, p in trainer.model.named_parameters()}
