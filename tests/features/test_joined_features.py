"""`FeatureBags` on ids in one memory, beside the same with a `Ragged` for each feature."""

import pytest
import torch
from torch.utils._pytree import tree_map

from monolith.ops import RaggedColumns
from monolith.optim import Optimizer
from monolith.table import Table
from monolith.table.reference import ReferenceTable
from tests.features.feature_cases import (
    Module,
    lists,
    loss_of,
    make_bags,
    mixed,
    one_batch,
    small_bags,
)
from tests.suites.table_base import assert_same_rows


def train_joined(bags, join):
    optimizer, found = Optimizer(Module(bags)), []
    for step in range(3):
        output = bags.lookup(join(one_batch(step)))
        loss_of(output).backward()
        found.append(output.detach())
        optimizer.step()
    return found


def joined(ids):
    return RaggedColumns.from_ragged(ids)


def joined_otherwise(ids):
    """In another order, with a column that is no feature."""
    return joined({"other": next(iter(ids.values())), **dict(reversed(ids.items()))})


def joined_with_many(ids):
    others = {f"other_{i}": each for i, each in enumerate(list(ids.values()) * 2)}
    return joined({**others, **ids})


def joined_without(ids):
    """One of them is hidden."""
    return joined({"label": next(iter(ids.values())), **ids}).without({"label"})


@pytest.mark.parametrize("make", [Table, mixed, ReferenceTable])
@pytest.mark.parametrize(
    "join", [joined, joined_otherwise, joined_with_many, joined_without], ids=lambda f: f.__name__
)
def test_ids_in_one_memory_give_the_same_bits(make, join):
    bags, others = make_bags(make), make_bags(make)
    pairs = zip(train_joined(bags, join), train_joined(others, dict), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    for name, table in bags.tables.items():
        assert_same_rows(table, others.tables[name])


def test_features_may_share_their_row_splits():
    splits = torch.tensor([0, 1, 2])
    ids = RaggedColumns(["y", "x"], torch.tensor([1, 2, 3, 4]), splits.expand(2, -1))
    bags = small_bags()
    bags.lookup(ids).sum().backward()
    ids.ids.zero_()  # the lookup has copied them
    bags.queue.apply()
    found = bags.lookup(lists(x=[[3], [1]], y=[[1], [3]]))
    assert found.tolist() == [[-1.0, -1.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    "splits",
    [
        torch.tensor([0, 9, 1, 9, 2, 9])[::2].expand(2, -1),
        torch.tensor([[0, 1, 2], [0, 1, 2]]).T.contiguous().T,
    ],
)
def test_row_splits_may_lie_apart_in_memory(splits):
    ids = RaggedColumns(["y", "x"], torch.tensor([1, 9, 2, 9, 3, 9, 4, 9])[::2], splits)
    bags = small_bags()
    bags.lookup(ids).sum().backward()
    bags.queue.apply()
    found = bags.lookup(lists(x=[[3], [1]], y=[[1], [3]]))
    assert found.tolist() == [[-1.0, -1.0], [0.0, 0.0]]


def test_no_ids_at_all_may_share_one_split():
    splits = torch.zeros(1, 1, dtype=torch.int64).expand(2, 4)
    found = small_bags().lookup(RaggedColumns(["y", "x"], torch.tensor([], dtype=int), splits))
    assert found.tolist() == [[0.0, 0.0]] * 3


@pytest.mark.parametrize("least_dim", [1, 2])
def test_row_splits_that_became_int32_are_refused(least_dim):
    whole = joined(lists(x=[[1], [2]], y=[[], [3]]))
    ids = tree_map(lambda tensor: tensor.int() if tensor.dim() >= least_dim else tensor, whole)
    text = r"^\[Features.lookup\] expected row_splits of 'x' of dtype int64, got int32"
    with pytest.raises(TypeError, match=text):
        small_bags().lookup(ids)


def test_a_feature_that_is_not_in_the_memory_is_named():
    with pytest.raises(ValueError, match="expected ids of every feature, got none of y"):
        small_bags().lookup(joined(lists(x=[[1]])))


def test_ids_in_one_memory_elsewhere_are_refused():
    with pytest.raises(ValueError, match=r"expected ids of 'x' on device cpu, got meta"):
        small_bags().lookup(joined(lists(x=[[1]], y=[[1]])).to("meta"))


def test_splits_in_one_memory_that_are_wrong_are_refused_by_the_core():
    bags, good = small_bags(), joined(lists(x=[[1], [2]], y=[[], [3]]))
    for splits, text in (
        ([[0, 1, 9], [0, 0, 1]], r"ascend .* \(feature 'x'\)"),
        ([[0, 2, 1], [0, 0, 1]], r"ascend .* \(feature 'x'\)"),
        ([[0, 1, 2], [0, 0, -1]], r"ascend .* \(feature 'y'\)"),
        ([[0, 1, 2], [0, 0, 0]], "expected 3 ids in the rows of all features, got 2"),
    ):
        bad = RaggedColumns._unchecked(good.names, good.ids, torch.tensor(splits))
        with pytest.raises(ValueError, match=text):
            bags.lookup(bad)
