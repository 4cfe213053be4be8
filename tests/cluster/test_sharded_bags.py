"""Bags of a table in shards; their meaning is in the shared suite, which runs on shards too."""

import pytest
import torch

import monolith._native as native
from monolith.cluster import ShardedTable
from monolith.cluster import sharded_table as sharded_bags
from monolith.cluster.shard_hosts import ShardHost
from monolith.cluster.transport import LocalTransport
from monolith.table import BagGradients, Bags, MinCount, Segment, TableConfig
from monolith.table.native import bags_tuple, piece_tuple
from monolith.table.optimizers import SGD
from monolith.table.reference import ReferenceTable
from tests.suites.table_base import NOW, assert_same_rows, keys

CONFIG = TableConfig("user", Segment(5, SGD(0.5)), admission=MinCount(2))
MODES = pytest.mark.parametrize("mode", ["sum", "weighted", "mean", "sqrtn", "max"])


def behind_transports(num_shards=2):
    """A table in shards that are written in Python."""
    hosts = [ShardHost(ReferenceTable(CONFIG)) for _ in range(num_shards)]
    return ShardedTable(CONFIG, [LocalTransport(host) for host in hosts], clock=lambda: NOW)


def random_bags(mode, num_keys=200):
    draw = torch.Generator().manual_seed(7)
    numbers = torch.randint(-30, 30, (num_keys,), generator=draw)
    cuts = torch.randint(0, num_keys, (20,), generator=draw).sort().values
    splits = torch.cat([keys(0), cuts, keys(num_keys)])
    if mode == "weighted":
        return Bags(numbers, splits, "sum", torch.randn(num_keys, generator=draw))
    return Bags(numbers, splits, mode)


def train(table, bags):
    """Pooled rows, winners and norm of a few steps."""
    seen = []
    for step in range(3):
        pooled = table.lookup_bags(bags)
        draw = torch.Generator().manual_seed(step)
        gradients = torch.randn(pooled.values.shape, generator=draw)
        queue = [BagGradients(bags, gradients, pooled.winners)] * 2
        seen += [pooled.values, pooled.winners, table.sum_bag_gradients(queue).norm]
        table.apply_bag_gradients(queue)
    return seen


def assert_same(some, others):
    for one, other in zip(some, others, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@MODES
@pytest.mark.parametrize("make", [behind_transports, lambda: ShardedTable.local(CONFIG, 3)])
def test_bags_of_shards_have_the_bits_of_the_reference(make, mode):
    table, reference = make(), ReferenceTable(CONFIG, clock=lambda: NOW)
    table._clock = lambda: NOW
    assert_same(train(table, random_bags(mode)), train(reference, random_bags(mode)))
    assert_same_rows(table, reference)


@MODES
def test_bags_of_shards_have_the_same_bits_without_the_core(monkeypatch, mode):
    expected = train(behind_transports(), random_bags(mode))
    monkeypatch.setattr(sharded_bags, "_native", None)
    assert_same(train(behind_transports(), random_bags(mode)), expected)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_many_bags_on_several_threads(num_threads):
    table, reference = ShardedTable.local(CONFIG, 2), ReferenceTable(CONFIG)
    bags = random_bags("mean", 20_000)
    found = table.lookup_bags(bags, num_threads=num_threads).values
    assert torch.equal(found, reference.lookup_bags(bags).values)


def test_no_bags_at_all_are_an_update_of_nothing():
    table = behind_transports()
    assert table.apply_bag_gradients([]).num_applied == 0
    assert table.sum_bag_gradients([]).norm == 0.0
    assert table.num_update_calls == 1


def test_the_core_refuses_splits_that_changed_after_the_check():
    bags = Bags(keys(7, 8), torch.tensor([0, 1, 2]))
    rows, text = torch.zeros(2, 5), r"\[Bags\] expected row_splits from 0 to 2, ascending"
    bags.row_splits[1] = 9
    with pytest.raises(ValueError, match=text):
        native.pool_rows(bags_tuple(bags), rows.data_ptr(), 5, rows.data_ptr(), 0, 1)
    with pytest.raises(ValueError, match=text):
        native.GradientSum([piece_tuple(BagGradients(bags, rows))], 5, 1)
