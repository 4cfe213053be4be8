"""A task whose source has a batch for each rank and step, and its runs on ranks and alone."""

import torch
from torch.nn import functional

from monolith.cluster.ranks.rank_tables import RankTables
from monolith.data import Batch
from monolith.nn import Feature
from monolith.ops import Ragged
from monolith.table.optimizers import Adagrad
from monolith.train import Task, Trainer, TrainSettings

NOW = 1_700_000_000


def one_batch(seed, size=8):
    draw = torch.Generator().manual_seed(seed)
    users = torch.randint(0, 40, (size, 1), generator=draw).tolist()
    items = [torch.randint(0, 60, (n % 4,), generator=draw).tolist() for n in range(size)]
    dense = torch.randn(size, 2, generator=draw)
    label = torch.randint(0, 2, (size,), generator=draw).float()
    ids = {"user": Ragged.from_lists(users), "item": Ragged.from_lists(items)}
    return Batch(ids, dense={"x": dense[:, :1], "y": dense[:, 1:]}, labels={"label": label})


def joined(batches):
    """One batch of the samples of several."""
    ids = {
        name: Ragged.from_lists([row for b in batches for row in b.features[name].to_lists()])
        for name in batches[0].features
    }
    dense = {name: torch.cat([b.dense[name] for b in batches]) for name in batches[0].dense}
    return Batch(ids, dense=dense, labels={"label": torch.cat([b.label for b in batches])})


class RankTask(Task):
    features = [
        Feature("user", dim=3, optimizer=Adagrad(0.1)),
        Feature("item", dim=4, optimizer=Adagrad(0.1)),
    ]
    dense = ["x", "y"]
    batches = ()

    def source(self, mode):
        return self.batches

    def build(self):
        model = torch.nn.Sequential(torch.nn.Linear(9, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        draw = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=draw) / 3)
        return model

    def loss(self, model, inputs, batch):
        logit = model(inputs.matrix).squeeze(1)
        return functional.binary_cross_entropy_with_logits(logit, batch.label), logit.sigmoid()


def task_of(batches, **changes):
    return type("Own", (RankTask,), {"batches": batches, **changes})()


def values_of(trainer):
    """Parameters, and rows by table and key."""
    rows = {}
    for name, table in trainer.features.tables.items():
        for part in table.export():
            for i, key in enumerate(part.keys.tolist()):
                rows[name, key] = torch.cat([c[i].float().flatten() for c in part.columns.values()])
    parameters = {n: p.detach().cpu().clone() for n, p in trainer.model.named_parameters()}
    return parameters, rows


def fit_alone(task, settings=None, **options):
    with Trainer(task, settings or TrainSettings(), clock=lambda: NOW, **options) as trainer:
        result = trainer.fit()
        return result, *values_of(trainer)


def fit_rank(
    group, task, settings=None, hooks=(), before=None, *, strategy="div", tables=None, **options
):
    """Result, parameters and rows of a rank."""
    with (
        tables or RankTables(group, partition_strategy=strategy) as ranks,
        Trainer(
            task,
            settings or TrainSettings(),
            hooks=hooks,
            clock=lambda: NOW,
            ranks=ranks,
            **options,
        ) as trainer,
    ):
        if before is not None:
            before(trainer)
        result = trainer.fit()
        values = values_of(trainer)
        group.control.gather(None)
        return result, *values


def largest_difference(mine, theirs):
    assert mine.keys() == theirs.keys()
    return max(float((mine[name] - theirs[name]).abs().max()) for name in mine)
