"""Forward, backward and step equal `torch.nn.EmbeddingBag` with `torch.optim`."""

import random

import pytest
import torch

from monolith.nn import Embedding, EmbeddingBag
from monolith.table.optimizers import SGD, Adagrad, Adam

NUM_IDS = 12

OPTIMIZERS = {
    "SGD": (
        SGD(0.1),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    ),
    "Adagrad": (
        Adagrad(0.1, initial_accumulator_value=0.2),
        lambda parameters: torch.optim.Adagrad(
            parameters, lr=0.1, initial_accumulator_value=0.2, eps=0.0
        ),
    ),
    "Adam": (
        Adam(0.01, beta2=0.999, epsilon=1e-12),
        lambda parameters: torch.optim.Adam(parameters, lr=0.01, eps=1e-12),
    ),
}


def batch(draw, form, every_id):
    """Ids and the arguments that cut them into bags."""
    if form == "matrix":
        ids = torch.tensor([[draw.randrange(NUM_IDS) for _ in range(4)] for _ in range(5)])
        if every_id:
            ids = torch.cat([torch.arange(NUM_IDS).reshape(3, 4), ids])
        return ids, {}
    ids = list(range(NUM_IDS)) if every_id else []
    ids = torch.tensor(ids + [draw.randrange(NUM_IDS) for _ in range(draw.randrange(1, 20))])
    offsets = sorted([0, 0, *(draw.randrange(len(ids)) for _ in range(4))])  # the first is empty
    return ids, {"offsets": torch.tensor(offsets + [len(ids)] * (form == "last"))}


@pytest.mark.parametrize("seed", range(20))
def test_five_steps_equal_those_of_torch(seed):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    name = ("SGD", "Adagrad", "Adam")[seed % 3]
    ours_optimizer, torch_optimizer = OPTIMIZERS[name]
    options = {
        "mode": draw.choice(["sum", "mean", "max"]),
        "include_last_offset": (form := draw.choice(["offsets", "last", "matrix"])) == "last",
        "padding_idx": draw.choice([None, 3]) if name != "Adam" else None,
    }
    dim = draw.choice([1, 3, 8, 17])
    theirs = torch.nn.EmbeddingBag(NUM_IDS, dim, **options)
    ours = EmbeddingBag.from_pretrained(
        theirs.weight, freeze=False, optimizer=ours_optimizer, **options
    )
    optimizer = torch_optimizer(theirs.parameters())
    with_weights = options["mode"] == "sum" and draw.random() < 0.7
    for _ in range(5):
        ids, bags = batch(draw, form, name == "Adam")
        weights = [torch.rand(ids.shape).requires_grad_()] if with_weights else []
        twins = [w.detach().clone().requires_grad_() for w in weights]
        expected = theirs(ids, bags.get("offsets"), *weights)
        got = ours(ids, bags.get("offsets"), *twins)
        torch.testing.assert_close(got, expected)
        scale = torch.rand_like(expected)
        optimizer.zero_grad()
        (expected * scale).sum().backward()
        (got * scale).sum().backward()
        for one, two in zip(twins, weights, strict=True):
            torch.testing.assert_close(one.grad, two.grad)
        optimizer.step()
        ours.step()
    torch.testing.assert_close(ours.table.lookup(torch.arange(NUM_IDS)), theirs.weight.detach())


@pytest.mark.parametrize("padding_idx", [None, 3])
def test_an_embedding_equals_that_of_torch(padding_idx):
    torch.manual_seed(0)
    theirs = torch.nn.Embedding(NUM_IDS, 5, padding_idx=padding_idx)
    ours = Embedding.from_pretrained(
        theirs.weight, freeze=False, optimizer=SGD(0.1), padding_idx=padding_idx
    )
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for _ in range(3):
        ids = torch.randint(0, NUM_IDS, (2, 3, 4))
        torch.testing.assert_close(ours(ids), theirs(ids))
        theirs(ids).square().sum().backward()
        ours(ids).square().sum().backward()
        optimizer.step()
        ours.step()
        optimizer.zero_grad()
    torch.testing.assert_close(ours.table.lookup(torch.arange(NUM_IDS)), theirs.weight.detach())


def test_sqrtn_is_the_sum_over_the_root_of_the_count():
    weights = torch.eye(3)
    bag = EmbeddingBag.from_pretrained(weights, mode="sqrtn")
    pooled = bag(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 4]))
    assert pooled.tolist() == [[0.5, 0.5, 1.0], [0.0, 0.0, 0.0]]


def test_gradients_through_weights_and_rows_are_right():
    torch.manual_seed(0)
    bag = EmbeddingBag.from_pretrained(torch.randn(4, 3), mode="sum")
    ids, offsets = torch.tensor([0, 1, 1, 3]), torch.tensor([0, 2])
    weights = torch.rand(4, requires_grad=True)
    torch.autograd.gradcheck(
        lambda w: bag(ids, offsets, w.float()).double(), weights.double(), eps=1e-3, atol=1e-2
    )
