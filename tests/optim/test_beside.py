"""`Optimizer.step`: tables begin while the dense parameters are stepped."""

import threading
import time

import pytest
import torch

from monolith.nn import EmbeddingBag, Feature, Features
from monolith.ops import Ragged
from monolith.optim import Optimizer, ShampooOptimizer
from monolith.table import Zeros
from monolith.table.optimizers import SGD
from monolith.table.reference import ReferenceTable

NUM_TABLES, NUM_IDS = 4, 3000  # enough keys for two threads
_MOST_SECONDS = 60


class Waiting(torch.optim.SGD):
    """Notes where it is called, and waits until a table has made its step, if it can."""

    tables = ()
    waits = False
    error = None

    def step(self, closure=None):
        self.called = [*getattr(self, "called", []), threading.current_thread()]
        end = time.monotonic() + _MOST_SECONDS
        while self.waits and not any(table._update_calls() for table in self.tables):
            assert time.monotonic() < end, "no table has made its step meanwhile"
        if self.error is not None:
            raise self.error
        return super().step(closure)


def of_features(**options):
    names = [f"f{number}" for number in range(NUM_TABLES)]
    parts = [Feature(name, dim=2, optimizer=SGD(1.0), initializer=Zeros()) for name in names]
    features = Features(parts, **options)

    def loss_of(ids):
        splits = torch.arange(len(ids) + 1)
        return features({name: Ragged(ids, splits) for name in names}).joined.sum()

    return features, list(features.tables.values()), loss_of


def of_bags():
    bags = torch.nn.ModuleList(
        EmbeddingBag(2, mode="sum", optimizer=SGD(1.0), initializer=Zeros(), name=f"b{number}")
        for number in range(NUM_TABLES)
    )
    return bags, [b.table for b in bags], lambda ids: sum(b(ids[:, None]).sum() for b in bags)


def of_two():
    modules, tables, losses = zip(of_features(), of_features(), strict=True)
    return (
        torch.nn.ModuleList(modules),
        [*tables[0], *tables[1]],
        lambda ids: sum(loss_of(ids) for loss_of in losses),
    )


def of_reference():
    return of_features(make_table=ReferenceTable)


def of_one_bag():
    bag = EmbeddingBag(2, mode="sum", optimizer=SGD(1.0), initializer=Zeros())
    return bag, [bag.table], lambda ids: bag(ids[:, None]).sum()


MODELS = [of_features, of_bags, of_one_bag, of_two, of_reference]


class Run:
    """A model with tables and one dense parameter, whose gradient is 1."""

    def __init__(self, make, num_values=1):
        tables, self.tables, self._loss_of = make()
        self.weight = torch.nn.Parameter(torch.zeros(num_values))
        self.dense = Waiting([self.weight], lr=0.5)
        self.dense.tables = self.tables
        self.optimizer = Optimizer(tables, dense=self.dense)

    def step(self, num_ids=NUM_IDS):
        self.optimizer.zero_grad()
        (self._loss_of(torch.arange(num_ids) % 100) + self.weight.sum()).backward()
        self.optimizer.step()


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("make", [of_features, of_bags])
def test_tables_begin_while_dense_parameters_are_stepped(make):
    run = Run(make)
    run.dense.waits = True
    run.step()
    assert [table._update_calls() for table in run.tables] == [1] * NUM_TABLES
    assert run.dense.called == [threading.current_thread()]


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("num_values", [1, 8 * NUM_IDS * NUM_TABLES + 1])
@pytest.mark.parametrize("num_ids", [0, 5, NUM_IDS])
def test_all_are_stepped_once(make, num_values, num_ids):
    run = Run(make, num_values)
    for number in (1, 2):
        run.step(num_ids)
        assert run.dense.called == [threading.current_thread()] * number
        assert run.weight.unique().tolist() == [-0.5 * number]
    keys = torch.arange(100)
    counts = torch.bincount(torch.arange(num_ids) % 100, minlength=100)
    for table in run.tables:
        assert torch.equal(table.lookup(keys), -2.0 * counts[:, None].expand(100, 2))


@pytest.mark.parametrize("make", MODELS)
def test_small_and_large_dense_parameters_leave_the_same_rows(make):
    small, large = Run(make), Run(make, 8 * NUM_IDS * NUM_TABLES + 1)
    for run in (small, large):
        run.step()
    keys = torch.arange(100)
    for one, other in zip(small.tables, large.tables, strict=True):
        assert torch.equal(one.lookup(keys), other.lookup(keys))


@pytest.mark.parametrize("make", [of_features, of_bags])
def test_large_dense_parameters_are_stepped_before_the_tables(make):
    run = Run(make, 8 * NUM_IDS * NUM_TABLES + 1)
    run.dense.error = ValueError("dense")
    with pytest.raises(ValueError, match=r"^dense$"):
        run.step()
    assert [table._update_calls() for table in run.tables] == [0] * NUM_TABLES


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("error", [KeyError("dense"), KeyboardInterrupt("dense")])
def test_what_dense_raises_is_raised_and_the_next_step_is_a_step(make, error):
    run = Run(make)
    run.dense.error = error
    with pytest.raises(type(error), match="dense"):
        run.step()
    before = [table.lookup(torch.arange(100)) for table in run.tables]
    run.dense.error = None
    run.step()
    assert run.weight.item() == -0.5
    for table, rows in zip(run.tables, before, strict=True):
        assert torch.equal(table.lookup(torch.arange(100)), rows - NUM_IDS / 100)


@pytest.mark.parametrize("make", [of_features, of_bags])
def test_a_few_keys_are_stepped_behind_the_dense_parameters(make):
    run = Run(make)
    run.dense.error = ValueError("dense")
    with pytest.raises(ValueError, match=r"^dense$"):
        run.step(num_ids=5)
    run.dense.error = None
    run.optimizer.step()  # the queue is as it was
    assert [len(table) for table in run.tables] == [5] * NUM_TABLES


def test_an_optimizer_of_whole_matrices_has_all_threads():
    features, tables, loss_of = of_features()
    dense, seen = ShampooOptimizer([torch.nn.Parameter(torch.zeros(1))]), []
    dense.register_step_post_hook(lambda *_: seen.append([len(table) for table in tables]))
    optimizer = Optimizer(features, dense=dense)
    loss_of(torch.arange(NUM_IDS)).backward()
    optimizer.step()
    assert seen == [[0] * NUM_TABLES]
    assert [len(table) for table in tables] == [NUM_IDS] * NUM_TABLES


@pytest.mark.parametrize("make", [of_features, of_bags])
def test_gradients_that_a_hook_drops_meanwhile_are_applied(make):
    run = Run(make)
    run.dense.register_step_post_hook(lambda *_: run.optimizer.zero_grad())
    run.step()
    assert [len(table) for table in run.tables] == [100] * NUM_TABLES
    assert run.optimizer.queues[0].num_lookups == 0
