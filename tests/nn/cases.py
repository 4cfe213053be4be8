"""Small models and streams of ids that the tests of modules share."""

import torch

from monolith.nn import Embedding, EmbeddingBag
from monolith.optim import Optimizer
from monolith.table.optimizers import SGD, Adagrad
from tests.suites.table_base import NOW, exported

IDS = torch.tensor([7, -3, 7, 1 << 62])
OFFSETS = torch.tensor([0, 3, 3])  # the second bag is empty

NEW = torch.tensor([[100]])  # a bag of an id that is not among them


def make_bag(dim=2, **options):
    """A bag with a fixed seed and clock; SGD with rate 1, so that a step is the gradient."""
    options = {"optimizer": SGD(1.0), "name": "user", "clock": lambda: NOW, **options}
    return EmbeddingBag(dim, **{"mode": "sum", **options})


def trained(bag):
    """The bag after one step on IDS."""
    bag(IDS, OFFSETS).square().sum().backward()
    bag.step()
    return bag


def rows(module):
    """Every row by key, as lists."""
    chunk = exported(module.table)
    columns = torch.cat(list(chunk.columns.values()), dim=1) if len(chunk) else torch.empty(0, 0)
    return dict(zip(chunk.keys.tolist(), columns.tolist(), strict=True))


class Model(torch.nn.Module):
    """Two tables, one of them looked up three times, and a dense part."""

    def __init__(self, mode="mean", with_linear=True, **options):
        super().__init__()
        self.bag = make_bag(4, mode=mode, optimizer=Adagrad(0.1), **options)
        self.embedding = Embedding(4, name="item", optimizer=SGD(0.1), clock=lambda: NOW)
        self.linear = torch.nn.Linear(4, 1) if with_linear else torch.nn.Identity()

    def forward(self, ids, offsets, weights=None):
        one, two = self.bag(ids, offsets, weights), self.bag(ids, offsets, weights)
        return self.linear(one * two + self.bag(ids, offsets, weights) + self.embedding(offsets))


def train(model, run, num_steps=10, dense=torch.optim.Adam):
    """Steps on a seeded stream through `run`; gradients of the weights of each step."""
    parameters = list(model.parameters())
    optimizer = Optimizer(model, dense=dense(parameters, lr=0.01))
    random, found = torch.Generator().manual_seed(1), []
    for _ in range(num_steps):
        ids = torch.randint(-20, 20, (12,), generator=random)
        offsets = torch.tensor([0, 3, 3, 7])
        weights = None
        if model.bag.mode == "sum":
            weights = torch.rand(12, generator=random).requires_grad_()
        optimizer.zero_grad()
        run(ids, offsets, weights).square().sum().backward()
        optimizer.step()
        found += [] if weights is None else [weights.grad]
    return found
