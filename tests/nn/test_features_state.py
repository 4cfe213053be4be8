"""What casts, copies and states of a model do to the tables of its `Features`."""

import pytest
import torch

from monolith.embedding import SGD, Adagrad
from monolith.nn import Feature, Features
from monolith.ops import Ragged
from monolith.optim import Optimizer
from tests.suites.table_base import assert_same_rows

IDS = {"a": Ragged.from_lists([[1], [], [2, 1]]), "b": Ragged.from_lists([[1, 5], [7], []])}


def make():
    """A table of pooled rows and one of rows kept apart."""
    pooled = Feature("a", dim=2, optimizer=Adagrad(0.1))
    return Features([pooled, Feature("b", dim=2, combiner="rows", optimizer=SGD(0.1))])


def backward(module, factor=1.0):
    """A loss whose gradient depends on the rows."""
    found = module(IDS)
    (factor * (found["a"].square().sum() + found["b"].square().sum() + found["a"].sum())).backward()


def trained(module, num_steps=3):
    optimizer = Optimizer(module)
    for _ in range(num_steps):
        backward(module)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
    return module


def assert_same_tables(first, second):
    assert list(first.tables) == list(second.tables)
    for name, table in first.tables.items():
        assert len(table) > 0
        assert_same_rows(table, second.tables[name])


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.bfloat16(),
        lambda model: model.half(),
        lambda model: model.double(),
        lambda model: model.to("meta"),
        lambda model: model.to_empty(device="meta"),
    ],
    ids=["bfloat16", "half", "double", "to", "to_empty"],
)
def test_a_model_that_is_cast_or_moved_trains_the_same_rows(change):
    model = torch.nn.Sequential(make())
    change(model)
    assert [anchor.dtype for anchor in model.parameters()] == [torch.float32] * 2
    assert_same_tables(trained(model[0]), trained(make()))
