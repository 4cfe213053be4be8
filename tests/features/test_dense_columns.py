"""Dense columns behind those of features, beside `torch.cat`."""

import pytest
import torch

from monolith.optim import Optimizer
from monolith.table import Table
from monolith.table.reference import ReferenceTable
from tests.features.feature_cases import (
    WIDTH,
    Module,
    lists,
    loss_of,
    make_bags,
    mixed,
    one_batch,
    small_bags,
)
from tests.suites.table_base import assert_same_rows


def numbers(count, size=6):
    return torch.linspace(-1.0, 1.0, size * count).view(size, count)


@pytest.mark.parametrize("make", [Table, ReferenceTable, mixed])
@pytest.mark.parametrize("count", [1, 13])
def test_rows_and_steps_are_those_of_cat(make, count):
    bags, others = make_bags(make), make_bags(make)
    for step in range(3):
        ids, dense = one_batch(step), numbers(count)
        found = bags.lookup(ids, dense=dense)
        expected = torch.cat([others.lookup(ids), dense], 1)
        assert torch.equal(found, expected)
        for output, own in ((found, bags), (expected, others)):
            loss_of(output).backward()
            Optimizer(Module(own)).step()
    for name, table in bags.tables.items():
        assert_same_rows(table, others.tables[name])


def test_many_samples_of_one_id_have_the_rows_of_cat():
    # As many as are read by distinct ids, into whole lines of the cache.
    ids = lists(x=[[i * i % 37] for i in range(300)], y=[[i % 7] for i in range(300)])
    bags, dense = small_bags(), numbers(3, 300)
    assert torch.equal(bags.lookup(ids, dense=dense), torch.cat([bags.lookup(ids), dense], dim=1))


def test_the_result_may_be_changed_in_place():
    bags, others = make_bags(), make_bags()
    ids, dense = one_batch(0), numbers(3)
    found = bags.lookup(ids, dense=dense).relu_()
    expected = torch.cat([others.lookup(ids), dense], 1).relu_()
    for output, own in ((found, bags), (expected, others)):
        loss_of(output).backward()
        Optimizer(Module(own)).step()
    assert torch.equal(found, expected)
    assert_same_rows(bags.tables["user"], others.tables["user"])


def test_gradients_beside_dense_columns_are_scaled():
    bags = small_bags()
    (bags.lookup(lists(x=[[1]], y=[[2]]), dense=numbers(3, 1)) * 3).sum().backward()
    bags.queue.scale(0.5)
    bags.queue.apply()
    assert bags.tables["b"].lookup(torch.tensor([2])).tolist() == [[-1.5]]


@pytest.mark.parametrize(("count", "size"), [(0, 6), (3, 0)])
def test_columns_and_batches_may_be_empty(count, size):
    bags, ids, dense = make_bags(), one_batch(0, size), numbers(count, size)
    found = bags.lookup(ids, dense=dense)
    assert torch.equal(found, torch.cat([bags.lookup(ids), dense], 1))
    loss_of(found).backward()
    bags.queue.apply()


def test_dense_columns_are_trained():
    bags, dense = make_bags(), numbers(5).requires_grad_()
    loss_of(bags.lookup(one_batch(0), dense=dense)).backward()
    same = numbers(5).requires_grad_()
    loss_of(torch.cat([bags.lookup(one_batch(0)), same], 1)).backward()
    assert torch.equal(dense.grad, same.grad)


def test_dense_columns_are_trained_beside_rows_that_are_not():
    bags, dense = make_bags(), numbers(5).requires_grad_()
    output = bags.lookup(one_batch(0), dense=dense, is_trained=False)
    loss_of(output).backward()
    assert output.shape == (6, WIDTH + 5)
    assert (dense.grad != 0).sum() > 20
    assert bags.queue.num_lookups == 0


def test_nothing_is_recorded_without_gradients():
    with torch.no_grad():
        output = make_bags().lookup(one_batch(0), dense=numbers(2).requires_grad_())
    assert not output.requires_grad


def test_the_dense_columns_may_be_overwritten():
    dense = numbers(2)
    output = make_bags().lookup(one_batch(0), dense=dense)
    dense.zero_()
    assert torch.equal(output[:, WIDTH:], numbers(2))
