"""Check what engines copy of ids and gradients."""

import pytest
import torch

from monolith.ops import Ragged
from monolith.optim import Optimizer
from monolith.table import Table
from monolith.table.reference import ReferenceTable
from tests.features.feature_cases import FEATURES, Module, make_bags, one_batch, small_bags
from tests.suites.table_base import assert_same_rows


def given(values):
    return values, values


def columns_of_a_wider(values):
    wide = torch.cat([torch.ones(len(values), 3), values], 1)
    return wide[:, 3:], wide


def stepped(gradient_of):
    """Tables after a step on gradients that are overwritten before it, and clipped."""
    bags = make_bags()
    optimizer, output = Optimizer(Module(bags)), bags.lookup(one_batch(1))
    gradient, memory = gradient_of(torch.linspace(-1, 1, output.numel()).view(output.shape))
    output.backward(gradient)
    memory.fill_(99)
    torch.nn.utils.clip_grad_norm_([bags.queue.anchor], 0.25)
    optimizer.step()
    return bags.tables


def test_columns_of_a_wider_gradient_may_be_overwritten_before_the_step():
    found, expected = stepped(columns_of_a_wider), stepped(given)
    for name, table in expected.items():
        assert_same_rows(found[name], table)


def test_columns_of_a_wider_gradient_that_is_not_finite_are_dropped_by_key():
    bags = small_bags(non_finite="skip")
    output = bags.lookup({name: Ragged.from_lists([[1], [2]]) for name in "xy"})
    gradient, memory = columns_of_a_wider(torch.tensor([[1.0, 2.0], [torch.nan, 4.0]]))
    output.backward(gradient)
    memory.fill_(99)
    bags.queue.apply()
    assert bags.tables["a"].lookup(torch.tensor([1, 2])).flatten().tolist() == [-1, 0]
    assert bags.tables["b"].lookup(torch.tensor([1, 2])).flatten().tolist() == [-2, -4]


def test_one_gradient_for_all_samples_is_written_out():
    bags = small_bags()
    output = bags.lookup({name: Ragged.from_lists([[1], [2], [2]]) for name in "xy"})
    output.backward(torch.tensor([1.0, 3.0]).expand(3, 2))
    bags.queue.apply()
    assert bags.tables["b"].lookup(torch.tensor([1, 2])).flatten().tolist() == [-3, -6]


def test_features_that_share_their_row_splits_read_as_those_with_their_own():
    ids, splits = torch.arange(-9, 9).view(-1, 3), torch.arange(4)
    numbered = list(enumerate(feature.name for feature in FEATURES))
    shared = {name: Ragged(ids[i % len(ids)], splits) for i, name in numbered}
    own = {name: Ragged(ids[i % len(ids)], splits.clone()) for i, name in numbered}
    bags = make_bags()
    assert torch.equal(bags.lookup(shared), bags.lookup(own))


def test_shared_row_splits_are_copied():
    bags, splits = small_bags(), torch.arange(3)
    output = bags.lookup({name: Ragged(torch.tensor([1, 2]), splits) for name in "xy"})
    splits.fill_(99)
    output.sum().backward()
    bags.queue.apply()
    assert bags.tables["a"].lookup(torch.tensor([1, 2])).flatten().tolist() == [-1, -1]


def test_ids_and_row_splits_may_lie_apart_in_memory():
    ids, splits = torch.tensor([1, 9, 2, 9, 3, 9])[::2], torch.tensor([0, 9, 1, 9, 3, 9])[::2]
    apart = Ragged._unchecked(ids, splits)
    bags = small_bags()
    bags.lookup({"x": apart, "y": Ragged(ids.contiguous(), splits.contiguous())}).sum().backward()
    bags.queue.apply()
    found = bags.lookup({"x": apart, "y": apart})
    assert found.tolist() == [[-1.0, -1.0], [-2.0, -2.0]]


def test_features_may_differ_in_the_width_of_their_ids():
    ids = torch.tensor([1, -(1 << 31)])
    bags = small_bags()
    narrow, wide = Ragged(ids.int(), torch.arange(3)), Ragged(ids, torch.arange(3))
    bags.lookup({"x": narrow, "y": wide}).sum().backward()
    bags.queue.apply()
    assert bags.lookup({"x": wide, "y": narrow}).tolist() == [[-1.0, -1.0], [-1.0, -1.0]]


@pytest.mark.parametrize("make", [Table, ReferenceTable])
def test_dense_columns_may_lie_apart_in_memory(make):
    bags, dense = small_bags(make), torch.arange(12.0).view(2, 6)[:, ::2]
    ids = {name: Ragged.from_lists([[1], []]) for name in "xy"}
    assert bags.lookup(ids, dense=dense).tolist() == [[0, 0, 0, 2, 4], [0, 0, 6, 8, 10]]
    one = bags.lookup(ids, dense=torch.arange(4.0).view(2, 2)[:, 1:])
    assert one.tolist() == [[0, 0, 1], [0, 0, 3]]
    assert bags.lookup(ids, dense=torch.ones(3).expand(2, 3)).tolist() == [[0, 0, 1, 1, 1]] * 2


def test_dense_columns_of_no_width_change_nothing():
    ids = {name: Ragged.from_lists([[1], []]) for name in "xy"}
    assert small_bags().lookup(ids, dense=torch.empty(2, 0)).tolist() == [[0, 0], [0, 0]]
