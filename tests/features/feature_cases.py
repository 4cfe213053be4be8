"""Tables, features and batches that the tests of features share."""

import torch

from monolith.cluster import ShardedTable
from monolith.features import BagFeature, PendingGradients, engine_for
from monolith.features.autograd import lookup_features
from monolith.ops import Ragged
from monolith.table import MinCount, Segment, Table, TableConfig, Zeros
from monolith.table.optimizers import SGD, Adagrad, Adam
from monolith.table.reference import ReferenceTable
from tests.suites.table_base import NOW

CONFIGS = [
    TableConfig("user", Segment(4, Adagrad(0.1))),
    TableConfig("item", [Segment(2, SGD(0.5)), Segment(3, Adam(0.01))]),
    TableConfig("rare", Segment(3, SGD(0.1)), admission=MinCount(2)),
    TableConfig("half", Segment(2, SGD(0.1), precision="fp16")),
]
FEATURES = [
    BagFeature("visited", "item", "mean"),
    BagFeature("user", "user"),
    BagFeature("friends", "user", "sqrtn", max_length=3),
    BagFeature("history", "item", "first", max_length=2),
    BagFeature("city", "rare", "sum", max_length=2),
    BagFeature("tags", "half", "mean", max_length=3),
    BagFeature("latest", "user", "first", max_length=1),
]
NAMES = tuple(feature.name for feature in FEATURES)
WIDTH = 5 + 4 + 4 + 2 * 5 + 3 + 2 + 4


def sharded(config, clock):
    return ShardedTable.local(config, 2, clock=clock)


def mixed(config, clock):
    """Tables of every kind."""
    make = {"user": Table, "item": ReferenceTable, "rare": sharded, "half": Table}[config.name]
    return make(config, clock=clock)


class FeatureBags:
    """Look up features and queue their gradients, without a module."""

    def __init__(self, tables, features, make_engine=engine_for):
        self.queue = PendingGradients(make_engine(tables, features))

    def __getattr__(self, name):
        if name == "queue":
            raise AttributeError(name)
        return getattr(self.queue.engine, name)

    def lookup_all(self, ids, *, dense=None, missing="initial", is_trained=True):
        anchor = self.queue.anchor if is_trained else self.queue.anchor.detach()
        return lookup_features(self.queue, anchor, ids, dense, missing)

    def lookup(self, ids, **options):
        return self.lookup_all(ids, **options)[0]


def make_bags(make=Table, configs=CONFIGS, features=FEATURES, clock=lambda: NOW):
    return FeatureBags([make(config, clock=clock) for config in configs], features)


def small_bags(make=Table, **options):
    """Two tables of one column and rate 1, so that a step is the gradient."""
    configs = [TableConfig(name, Segment(1, SGD(1.0), Zeros()), **options) for name in "ab"]
    return make_bags(make, configs, [BagFeature("x", "a"), BagFeature("y", "b")])


def one_batch(seed, size=6, most=4, names=NAMES):
    """Ids from -9 to 8 of each feature, up to `most` of a sample."""
    draw = torch.Generator().manual_seed(seed)
    ids = {}
    for name in names:
        lengths = torch.randint(0, most + 1, (size,), generator=draw)
        values = torch.randint(-9, 9, (int(lengths.sum()),), generator=draw)
        ids[name] = Ragged.from_lengths(values, lengths)
    return ids


def lists(**rows):
    return {name: Ragged.from_lists(value) for name, value in rows.items()}


class Module(torch.nn.Module):
    """Shows an optimizer the queue, and torch its anchor."""

    def __init__(self, bags):
        super().__init__()
        self.bags, self.queue, self.anchor = bags, bags.queue, bags.queue.anchor

    def forward(self, ids):
        return self.bags.lookup(ids)


def loss_of(output):
    """Its gradient differs in every place, and depends on the output."""
    return (output.square() * torch.linspace(0.5, 1.5, output.numel()).view_as(output)).sum()
