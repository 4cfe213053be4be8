"""Check what backward queues for the tables of features, and what a step does with the queue."""

import math

import pytest
import torch
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint

import monolith._native as native
from monolith.features import BagFeature
from monolith.nn import EmbeddingBag
from monolith.optim import Optimizer
from monolith.table import Segment, Table, TableConfig, Zeros
from monolith.table.optimizers import SGD, Adagrad, PolynomialDecay
from monolith.table.reference import ReferenceTable
from tests.features.feature_cases import (
    CONFIGS,
    Module,
    lists,
    loss_of,
    make_bags,
    one_batch,
    small_bags,
)
from tests.suites.table_base import NOW, assert_same_rows, exported

KINDS = pytest.mark.parametrize("make", [Table, ReferenceTable])


def rows(table):
    """Weights by key."""
    chunk = exported(table)
    columns = next(iter(chunk.columns.values()))
    return dict(zip(chunk.keys.tolist(), columns.tolist(), strict=True))


def backward(bags, x=((1,),), y=((2,),), factor=1.0):
    ids = lists(x=[list(row) for row in x], y=[list(row) for row in y])
    (bags.lookup(ids) * factor).sum().backward()


@KINDS
def test_the_gradient_of_the_anchor_is_the_norm_over_all_tables(make):
    bags = small_bags(make)
    backward(bags, x=[[1, 1, 1]], y=[[2, 2, 2, 2]])
    assert bags.queue.anchor.grad.tolist() == [5.0]
    assert (bags.queue.norm, bags.queue.num_lookups) == (5.0, 1)


@KINDS
def test_backward_only_queues_and_one_step_takes_all(make):
    bags = small_bags(make)
    backward(bags)
    backward(bags, y=[[]])
    assert [len(table) for table in bags.tables.values()] == [0, 0]
    Optimizer(Module(bags)).step()
    assert [rows(table) for table in bags.tables.values()] == [{1: [-2.0]}, {2: [-1.0]}]
    assert [table.num_update_calls for table in bags.tables.values()] == [1, 1]
    assert bags.queue.num_lookups == 0


@KINDS
@pytest.mark.parametrize("drop", ["optimizer", "module"])
def test_zero_grad_drops_the_queue(make, drop):
    bags = small_bags(make)
    module = Module(bags)
    optimizer = Optimizer(module)
    backward(bags)
    (optimizer if drop == "optimizer" else module).zero_grad()
    optimizer.step()
    assert [len(table) for table in bags.tables.values()] == [0, 0]


@KINDS
def test_clipping_scales_all_tables(make):
    bags = small_bags(make)
    backward(bags, factor=torch.tensor([[3.0, 4.0]]))
    total = clip_grad_norm_(Module(bags).parameters(), 2.5)
    Optimizer(Module(bags)).step()
    assert total == 5.0
    assert rows(bags.tables["a"])[1] == pytest.approx([-1.5])
    assert rows(bags.tables["b"])[2] == pytest.approx([-2.0])


def test_clipped_steps_have_the_bits_of_tables_in_python():
    bags, others = make_bags(), make_bags(ReferenceTable)
    for each in (bags, others):
        optimizer = Optimizer(Module(each))
        for seed in range(3):
            loss_of(each.lookup(one_batch(seed))).backward()
            clip_grad_norm_([each.queue.anchor], 0.05)
            optimizer.step()
    for name, table in bags.tables.items():
        assert_same_rows(table, others.tables[name])


def scaled_step(bags, factor):
    optimizer = Optimizer(Module(bags))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    loss = (bags.lookup(lists(x=[[1]], y=[[2]])) * factor).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    return bags


def test_a_gradient_scaler_takes_its_factor_out_or_skips():
    assert rows(scaled_step(small_bags(), 1.0).tables["a"]) == {1: [-1.0]}
    skipped = scaled_step(small_bags(), math.inf)
    assert [len(table) for table in skipped.tables.values()] == [0, 0]
    assert skipped.queue.num_lookups == 0


def test_what_autograd_only_returns_is_not_queued():
    bags = small_bags()
    torch.autograd.grad(bags.lookup(lists(x=[[1]], y=[[2]])).sum(), bags.queue.anchor)
    assert bags.queue.num_lookups == 0
    assert bags.queue._pending == {}


def test_a_backward_inside_another_keeps_what_the_outer_has_pushed():
    bags, scale = small_bags(), torch.ones(1, requires_grad=True)

    def read(x):
        return bags.lookup(lists(x=[[x]], y=[[]])).sum()

    # The outer backward pushes 3, runs the inner one, of 2, and pushes 1.
    first = read(1)
    inner = checkpoint(lambda scale: read(2) * scale, scale, use_reentrant=True)
    (first + inner.sum() + read(3)).backward()
    bags.queue.apply()
    assert rows(bags.tables["a"]) == {1: [-1.0], 2: [-1.0], 3: [-1.0]}


def test_the_keys_of_all_backwards_are_counted_before_they_are_summed(monkeypatch):
    bags = small_bags()
    backward(bags)
    monkeypatch.setattr("monolith.table._checks.MAX_BATCH", 3)
    text = r"^\[Table.sum_bag_gradients\] expected at most 3 keys, got 4 \(table 'a'\)"
    with pytest.raises(ValueError, match=text):
        backward(bags)


def test_an_optimizer_of_the_anchor_alone_is_warned_of():
    bags = small_bags()
    sgd = torch.optim.SGD([bags.queue.anchor], lr=0.1)
    backward(bags)
    sgd.step()
    text = (
        r"^\[PendingGradients\] .* got one of its anchor alone \(table 'a' and 1 more\): its rows"
    )
    with pytest.warns(RuntimeWarning, match=text):
        backward(bags)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_an_anchor_that_was_cast_is_refused_before_its_gradient_is_written(dtype):
    bags = small_bags()
    bags.queue.anchor.data = bags.queue.anchor.data.to(dtype)
    name = str(dtype).removeprefix("torch.")
    text = (
        r"^\[PendingGradients\] expected an anchor of one float32 on cpu, got 1 of "
        rf"{name} on cpu \(table 'a' and 1 more\); leave the anchor out of casts"
    )
    with pytest.raises(ValueError, match=text):
        backward(bags)
    assert bags.queue.num_lookups == 0


@KINDS
def test_a_table_that_refuses_keeps_all_tables_from_a_step(make):
    bags = small_bags(make)
    optimizer = Optimizer(Module(bags))
    backward(bags, factor=torch.tensor([[1.0, math.nan]]))
    text = r"^\[Optimizer.step\] expected finite gradients, got norm nan \(table 'b'\)"
    with pytest.raises(ValueError, match=text):
        optimizer.step()
    assert [len(table) for table in bags.tables.values()] == [0, 0]
    assert bags.queue.num_lookups == 1


@KINDS
@pytest.mark.parametrize(
    ("policy", "left"),
    [({"non_finite": "skip"}, []), ({"non_finite": "clip", "clip_value": 2.0}, [2])],
)
def test_a_table_may_skip_or_clip_what_is_not_finite(make, policy, left):
    bags = small_bags(make, **policy)
    backward(bags, factor=torch.tensor([[1.0, math.inf]]))
    Optimizer(Module(bags)).step()
    assert rows(bags.tables["a"]) == {1: [-1.0]}
    assert exported(bags.tables["b"]).keys.tolist() == left


@KINDS
def test_the_time_of_a_step_is_that_of_the_clock_or_the_one_given(make):
    bags = small_bags(make)
    optimizer = Optimizer(Module(bags))
    for now in (None, NOW - 50):
        bags.queue.now = now
        backward(bags, x=[[now or 1]])
        optimizer.step()
    assert exported(bags.tables["a"]).times.sort().values.tolist() == [NOW - 50, NOW]
    assert bags.tables["a"].stats()["num_clamped_times"] == 0


@KINDS
def test_a_time_far_ahead_is_clamped_and_counted(make):
    bags = small_bags(make)
    bags.queue.now = NOW + 10_000
    backward(bags)
    bags.queue.apply()
    assert exported(bags.tables["a"]).times.tolist() == [NOW + 3600]
    assert [t.stats()["num_clamped_times"] for t in bags.tables.values()] == [1, 1]


def test_a_clock_is_asked_once_for_the_tables_that_share_it():
    asked = []
    bags = make_bags(clock=lambda: asked.append(1) or NOW)
    bags.lookup(one_batch(0)).sum().backward()
    asked.clear()
    Optimizer(Module(bags)).step()
    assert asked == [1]


def test_tables_with_different_clocks_have_different_times():
    configs = [TableConfig(name, Segment(1, SGD(1.0), Zeros())) for name in "ab"]
    clocks = iter([lambda: NOW, lambda: NOW + 5])
    bags = make_bags(
        lambda config, clock: Table(config, clock=next(clocks)),
        configs,
        [BagFeature("x", "a"), BagFeature("y", "b")],
    )
    backward(bags)
    bags.queue.apply()
    assert [table.latest_time for table in bags.tables.values()] == [NOW, NOW + 5]


def test_each_segment_of_each_table_has_a_group():
    bags = make_bags()
    optimizer = Optimizer(Module(bags))
    groups = [(g["table"], g["segment"], g["lr"]) for g in optimizer.param_groups]
    assert [(table, rate) for table, _, rate in groups] == [
        ("user", 0.1),
        ("item", 0.5),
        ("item", 0.01),
        ("rare", 0.1),
        ("half", 0.1),
    ]
    assert len({group[:2] for group in groups}) == 5
    assert [len(g["params"]) for g in optimizer.param_groups] == [1, 0, 0, 0, 0]


@KINDS
def test_the_rate_of_a_group_is_that_of_the_next_step(make):
    bags = small_bags(make)
    optimizer = Optimizer(Module(bags))
    for rate in (1.0, 0.25):
        optimizer.param_groups[1]["lr"] = rate
        backward(bags)
        optimizer.step()
    assert [rows(table) for table in bags.tables.values()] == [{1: [-2.0]}, {2: [-1.25]}]


@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf])
def test_a_bad_rate_keeps_all_tables_from_a_step(rate):
    bags = small_bags()
    optimizer = Optimizer(Module(bags))
    optimizer.param_groups[1]["lr"] = rate
    backward(bags)
    with pytest.raises(ValueError, match=rf"expected .*learning rate.*, got {rate} \(table 'b'\)"):
        optimizer.step()
    assert [len(table) for table in bags.tables.values()] == [0, 0]


def test_a_schedule_counts_the_updates_of_its_table():
    schedule = PolynomialDecay(1.0, 2, end_learning_rate=0.5)
    configs = [TableConfig("a", Segment(1, SGD(schedule), Zeros())), CONFIGS[0]]
    bags = make_bags(configs=configs, features=[BagFeature("x", "a"), BagFeature("y", "user")])
    optimizer = Optimizer(Module(bags))
    for x in ([[1]], [[]], [[1]]):
        backward(bags, x=x)
        optimizer.step()
    assert rows(bags.tables["a"]) == {1: [-1.75]}


def test_a_dense_optimizer_and_another_table_step_beside():
    bags, bag = small_bags(), EmbeddingBag(1, optimizer=SGD(1.0), initializer=Zeros(), name="c")
    linear = torch.nn.Linear(2, 1)
    model = torch.nn.ModuleList([Module(bags), bag, linear])
    optimizer = Optimizer(model, dense=torch.optim.SGD(model.parameters(), lr=0.1))
    before = linear.bias.item()
    output = bags.lookup(lists(x=[[1]], y=[[2]]))
    (output.sum() + linear(output.detach()).sum() + bag(torch.tensor([[3]])).sum()).backward()
    optimizer.step()
    assert [len(bags.tables[n]) for n in "ab"] + [len(bag.table)] == [1, 1, 1]
    assert linear.bias.item() == pytest.approx(before - 0.1)


def test_a_table_in_two_queues_is_refused():
    bags = small_bags()
    bag = EmbeddingBag(1, table=bags.tables["b"])
    text = r"^\[Optimizer\] expected every table in one queue, got one in 2: .* \(table 'b'\)"
    with pytest.raises(ValueError, match=text):
        Optimizer([Module(bags), bag])


def test_a_thousand_tables_are_one_call_each_way(monkeypatch):
    configs = [TableConfig(f"t{i}", Segment(1, Adagrad(0.1))) for i in range(1000)]
    bags = make_bags(configs=configs, features=[BagFeature(c.name, c.name) for c in configs])
    core, calls = bags.queue.engine._core, []

    class Noted:
        def __getattr__(self, name):
            calls.append(name)
            return getattr(core, name)

    assert isinstance(core, native.FeatureTables)
    monkeypatch.setattr(bags.queue.engine, "_core", Noted())
    bags.lookup(lists(**{c.name: [[i]] for i, c in enumerate(configs)})).sum().backward()
    Optimizer(Module(bags)).step()
    assert calls == ["lookup", "sum", "step"]
    assert [len(table) for table in bags.tables.values()] == [1] * 1000


def test_a_step_without_memory_names_it_and_drops_the_queue():
    bags = small_bags()
    ids = torch.arange(60_000).reshape(1, -1).tolist()
    backward(bags, x=ids, y=ids)
    bags.tables["b"]._core.set_memory_limit(0)
    with pytest.raises(MemoryError, match=r"\[Features\.step\] out of memory: asked"):
        Optimizer(Module(bags)).step()
    assert len(bags.tables["b"]) == 0
    assert bags.queue.num_lookups == 0


def test_a_queue_may_be_scaled_and_stepped_at_given_rates():
    bags = small_bags()
    backward(bags, factor=4.0)
    bags.queue.scale(0.5)
    assert bags.queue.anchor.grad.item() == pytest.approx(8**0.5)
    bags.queue.apply([1.0, 0.5])
    assert [rows(table) for table in bags.tables.values()] == [{1: [-2.0]}, {2: [-1.0]}]
