"""A step of many tables in one call of the core, beside one step after another."""

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

import monolith._native as native
from monolith.cluster import ShardedTable
from monolith.nn import EmbeddingBag
from monolith.optim import Optimizer
from monolith.table import MinCount, OneBit, Segment, Table, TableConfig, Zeros
from monolith.table.optimizers import SGD, Adagrad, Adam
from monolith.table.reference import ReferenceTable
from monolith.table.replay import Record
from tests.nn.cases import make_bag, rows
from tests.suites.table_base import NOW, assert_same_rows

CONFIGS = [
    TableConfig("a", Segment(2, Adagrad(0.1))),
    TableConfig("b", [Segment(1, SGD(0.5)), Segment(2, Adam(0.01))]),
    TableConfig("c", Segment(3, SGD(0.1), precision="fp16")),
    TableConfig("d", Segment(2, SGD(0.1)), admission=MinCount(2)),
    TableConfig("e", Segment(1, SGD(0.1)), non_finite="skip"),
]


def bag_of(table):
    return EmbeddingBag(table.dim, table=table, mode="sum")


def bags_of(configs, make=Table):
    tables = [make(config, clock=lambda: NOW) for config in configs]
    return torch.nn.ModuleList([bag_of(table) for table in tables])


def backward(bags, seed, factor=1.0):
    """Queue gradients of some ids on all tables but one."""
    draw = torch.Generator().manual_seed(seed)
    for i, bag in enumerate(bags):
        ids = torch.randint(-9, 9, (4, 3), generator=draw)
        if i != seed % len(bags):
            (bag(ids).square().sum() * factor).backward()


def num_fused(monkeypatch):
    """A list that gets the number of tables of each fused call."""
    seen, step_tables = [], native.step_tables

    def noted(tables, *arguments):
        seen.append(len(tables))
        step_tables(tables, *arguments)

    monkeypatch.setattr(native, "step_tables", noted)
    return seen


@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_steps_together_have_the_bits_of_single_ones(monkeypatch, max_norm):
    together, alone = bags_of(CONFIGS), bags_of(CONFIGS)
    optimizer, seen = Optimizer(together), num_fused(monkeypatch)
    for seed in range(6):
        for bags in (together, alone):
            backward(bags, seed)
            if max_norm is not None:
                clip_grad_norm_(bags.parameters(), max_norm)
        optimizer.step()
        for bag in alone:
            bag.step()
    assert seen == [4] * 6
    for one, other in zip(together, alone, strict=True):
        assert_same_rows(one.table, other.table)
        assert one.table.num_update_calls == other.table.num_update_calls


def test_two_hundred_tables_are_one_call(monkeypatch):
    bags = bags_of([TableConfig(f"t{i}", Segment(1, SGD(1.0), Zeros())) for i in range(200)])
    seen = num_fused(monkeypatch)
    sum(bag(torch.tensor([[i]])).sum() for i, bag in enumerate(bags)).backward()
    Optimizer(bags).step()
    assert seen == [200]
    assert [rows(bag) for bag in bags] == [{i: [-1.0]} for i in range(200)]


def test_what_is_not_finite_is_skipped_by_the_table_that_skips():
    bags = bags_of([*CONFIGS[:2], CONFIGS[4]])
    ids = torch.tensor([[1], [2]])
    factors = torch.tensor([[1.0], [float("nan")]])
    (bags[0](ids).sum() + bags[1](ids).sum() + (bags[2](ids) * factors).sum()).backward()
    Optimizer(bags).step()
    assert [sorted(rows(bag)) for bag in bags] == [[1, 2], [1, 2], [1]]


def recorded(config, clock):
    return Table(config, clock=clock, record=Record())


def sharded(config, clock):
    return ShardedTable.local(config, 2, clock=clock)


@pytest.mark.parametrize("make", [ReferenceTable, recorded, sharded])
def test_tables_that_the_core_cannot_take_step_alone(monkeypatch, make):
    bags = bags_of(CONFIGS[:3])
    others = bags_of(CONFIGS[:3], make)
    seen = num_fused(monkeypatch)
    optimizer = Optimizer([bags, others])
    for seed in range(3):
        backward(bags, seed)
        backward(others, seed)
        optimizer.step()
    assert seen == [2, 2, 2]
    for one, other in zip(bags, others, strict=True):
        assert_same_rows(one.table, other.table)


def test_a_view_that_follows_the_step_is_read_at_the_step_of_its_table(monkeypatch):
    view = OneBit(step_size=1, amplitude=0.5)
    configs = [TableConfig(name, Segment(2, SGD(0.1), view=view)) for name in "ab"]
    together, alone, seen = bags_of(configs), bags_of(configs), num_fused(monkeypatch)
    optimizer = Optimizer(together)
    for seed in range(4):
        backward(together, seed)
        backward(alone, seed)
        optimizer.step()
        for bag in alone:
            bag.step()
    assert seen == []
    for one, other in zip(together, alone, strict=True):
        assert_same_rows(one.table, other.table)


def test_a_table_without_memory_keeps_its_queue_and_the_others_are_done():
    bags, untroubled = bags_of(CONFIGS[:3]), bags_of(CONFIGS[:3])
    ids = torch.arange(60_000).reshape(1, -1)
    for each in (bags, untroubled):
        sum(bag(ids).sum() for bag in each).backward()
    optimizer = Optimizer(bags)
    bags[1].table._core.set_memory_limit(0)
    with pytest.raises(MemoryError, match=r"\[Table\.apply_bag_gradients\] out of memory: asked"):
        optimizer.step()
    assert len(bags[1].table) == 0
    assert bags[1].queue.num_lookups == 1
    bags[1].table._core.set_memory_limit((1 << 64) - 1)
    optimizer.step()
    Optimizer(untroubled).step()
    for one, other in zip(bags, untroubled, strict=True):
        assert_same_rows(one.table, other.table)
        assert one.table.num_update_calls == 1


def test_a_clock_that_tables_share_is_asked_once():
    asked = []

    def clock():
        asked.append(NOW)
        return NOW + len(asked)

    bags = torch.nn.ModuleList([make_bag(name=name, clock=clock) for name in "abc"])
    sum(bag(torch.tensor([[7]])).sum() for bag in bags).backward()
    Optimizer(bags).step()
    assert asked == [NOW]
    assert [bag.table.latest_time for bag in bags] == [NOW + 1] * 3
