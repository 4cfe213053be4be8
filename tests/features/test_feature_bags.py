"""Compare lookups of features with torch, and with one lookup for each feature."""

import copy
import pickle

import pytest
import torch

from monolith.errors import FailedPreconditionError
from monolith.features import BagFeature
from monolith.features.autograd import Reading, lookup_bags
from monolith.features.gradients import PendingGradients
from monolith.features.plain import TableEngine, limited_bags
from monolith.ops import Ragged
from monolith.optim import Optimizer
from monolith.table import Bags, OneBit, Segment, Table, TableConfig, Zeros
from monolith.table.optimizers import SGD
from monolith.table.reference import ReferenceTable
from monolith.table.replay import Record
from tests.features.feature_cases import (
    CONFIGS,
    FEATURES,
    FeatureBags,
    Module,
    lists,
    loss_of,
    make_bags,
    mixed,
    one_batch,
    sharded,
    small_bags,
)
from tests.suites.table_base import NOW, assert_same_rows


def recorded(config, clock):
    return Table(config, clock=clock, record=Record())


def train(bags, num_steps=4, num_backwards=2, **options):
    """Steps of an optimizer; the output and the anchor's gradient of each backward."""
    optimizer, found = Optimizer(Module(bags)), []
    for step in range(num_steps):
        for i in range(num_backwards):
            output = bags.lookup(one_batch(10 * step + i, **options))
            loss_of(output).backward()
            found += [output.detach(), bags.queue.anchor.grad.clone()]
        optimizer.step()
    return found


def assert_same_tables(one, other):
    for name, table in one.tables.items():
        assert_same_rows(table, other.tables[name])
        assert table.num_update_calls == other.tables[name].num_update_calls


@pytest.mark.parametrize("make", [ReferenceTable, recorded, sharded, mixed])
@pytest.mark.parametrize("num_backwards", [1, 3])
def test_all_tables_give_the_same_bits(make, num_backwards):
    bags, others = make_bags(), make_bags(make)
    found = train(bags, num_backwards=num_backwards)
    expected = train(others, num_backwards=num_backwards)
    assert_same_tables(bags, others)
    pairs = list(zip(found, expected, strict=True))
    assert all(torch.equal(*pair) for pair in pairs[::2])
    torch.testing.assert_close(found[1::2], expected[1::2])  # norms of several kinds of tables


def lookup_one_by_one(queues, ids):
    """Each feature from the queue of its table, in reverse: backward goes from last to first."""
    parts = []
    for feature in reversed(FEATURES):
        ragged, queue = ids[feature.name], queues[feature.table]
        bags = limited_bags(feature, ragged.values, ragged.row_splits)
        reading = Reading(bags.mode, "initial", None, True)
        row = lookup_bags(queue, queue.anchor, bags.keys, bags.row_splits, None, reading)
        parts.append(row.view(ragged.num_rows, -1))
    return torch.cat(parts[::-1], dim=1)


def test_a_step_has_the_bits_of_one_lookup_for_each_feature():
    bags = make_bags()
    queues = {c.name: PendingGradients(TableEngine(Table(c, clock=lambda: NOW))) for c in CONFIGS}
    optimizer = Optimizer(Module(bags))
    for step in range(4):
        for i in range(2):
            ids = one_batch(10 * step + i)
            output, expected = bags.lookup(ids), lookup_one_by_one(queues, ids)
            assert torch.equal(output, expected)
            loss_of(output).backward()
            loss_of(expected).backward()
        optimizer.step()
        for queue in queues.values():
            queue.apply()
    for name, queue in queues.items():
        assert_same_rows(bags.tables[name], queue.engine.table)


def filled(features, dim=3):
    """Features of one table with rows 0 to 19, and these rows."""
    table = Table(TableConfig("t", Segment(dim, SGD(1.0), Zeros())))
    weights = torch.randn(20, dim, generator=torch.Generator().manual_seed(0))
    table.assign(torch.arange(20), weights)
    return FeatureBags([table], features), weights.clone().requires_grad_()


def padded(rows, ragged, length):
    """The rows of the first ids of each sample, (batch, length * dim)."""
    picked = [rows[torch.tensor(ids[:length], dtype=torch.int64)] for ids in ragged.to_lists()]
    full = [torch.cat([r, r.new_zeros(length - len(r), r.shape[1])]).flatten() for r in picked]
    return torch.stack(full)


def pooled(rows, ragged, combiner, limit):
    """As torch pools."""
    ids = [row[: limit or None] for row in ragged.to_lists()]
    cut = Ragged.from_lists(ids)
    mode = "mean" if combiner == "mean" else "sum"
    out = torch.nn.functional.embedding_bag(cut.values, rows, cut.offsets, mode=mode)
    counts = cut.lengths.clamp(min=1).unsqueeze(1)
    return out / counts.sqrt() if combiner == "sqrtn" else out


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn", "first"])
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_rows_and_gradients_are_those_of_torch(combiner, limit):
    limit = limit or (5 if combiner == "first" else 0)
    names = ("x", "y")
    bags, weights = filled([BagFeature(name, "t", combiner, limit) for name in names])
    ids = {k: Ragged(r.values + 9, r.row_splits) for k, r in one_batch(3, names=names).items()}
    output = bags.lookup(ids)
    parts = [
        padded(weights, ids[name], limit)
        if combiner == "first"
        else pooled(weights, ids[name], combiner, limit)
        for name in names
    ]
    torch.testing.assert_close(output, torch.cat(parts, 1))
    loss_of(output).backward()
    loss_of(torch.cat(parts, 1)).backward()
    bags.queue.apply()
    trained = bags.tables["t"].lookup(torch.arange(20))
    torch.testing.assert_close(trained, weights.detach() - weights.grad)


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("num_dense", [0, 5])
def test_many_full_blocks_have_the_bits_of_tables_in_python(limit, num_dense):
    configs = [TableConfig(f"t{i}", Segment(16, SGD(0.5))) for i in range(16)]
    features = [BagFeature(f"f{i}", f"t{i}", "first", max_length=limit) for i in range(16)]
    draw = torch.Generator().manual_seed(0)
    drawn = {f.name: torch.randint(0, 50, (70, 3), generator=draw).tolist() for f in features}
    dense = torch.ones(70, num_dense) if num_dense else None
    bags, others = (make_bags(make, configs, features) for make in (Table, ReferenceTable))
    for _ in range(2):
        found, expected = (each.lookup(lists(**drawn), dense=dense) for each in (bags, others))
        assert torch.equal(found, expected)
        (loss_of(found) + loss_of(expected)).backward()
        assert bags.queue.norm == others.queue.norm
        for own in (bags, others):
            Optimizer(Module(own)).step()
    assert_same_tables(bags, others)


@pytest.mark.parametrize("num_threads", [2, 3])
def test_threads_change_no_bit(num_threads):
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, num_threads):
            torch.set_num_threads(threads)
            found.append(make_bags())
            train(found[-1], num_steps=2, size=3000)
    finally:
        torch.set_num_threads(before)
    assert_same_tables(*found)


def test_nothing_is_queued_where_nothing_is_trained():
    bags, ids = small_bags(), lists(x=[[1]], y=[[2]])
    assert not bags.lookup(ids, is_trained=False).requires_grad
    with torch.no_grad():
        assert not bags.lookup(ids).requires_grad
    bags.queue.anchor.requires_grad_(False)
    assert not bags.lookup(ids).requires_grad


def test_a_view_follows_the_steps_of_its_table():
    config = TableConfig("a", Segment(2, SGD(0.1), view=OneBit(step_size=1, amplitude=0.5)))
    bags = make_bags(configs=[config], features=[BagFeature("x", "a")])
    alone = PendingGradients(TableEngine(Table(config, clock=lambda: NOW)))
    for seed in range(3):
        ids = one_batch(seed, names=("x",))
        each = Bags(ids["x"].values, ids["x"].row_splits)
        expected = alone.engine.lookup(each, "initial").values.requires_grad_()
        output = bags.lookup(ids)
        assert torch.equal(output, expected)
        loss_of(output).backward()
        bags.queue.apply()
        reading = Reading("sum", "initial", None, True)
        row = lookup_bags(alone, alone.anchor, each.keys, each.row_splits, None, reading)
        loss_of(row).backward()
        alone.apply()
    assert_same_rows(bags.tables["a"], alone.engine.table)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_has_tables_of_its_own(copied):
    bags = FeatureBags([Table(config) for config in CONFIGS], FEATURES)
    train(bags, num_steps=1)
    bags.lookup(one_batch(1)).sum().backward()
    module = copied(Module(bags))
    other = module.bags
    assert module.queue is other.queue
    assert module.anchor is other.queue.anchor
    assert other.queue.num_lookups == 0
    assert_same_tables(bags, other)
    train(other, num_steps=1)
    assert other.tables["user"].num_update_calls == bags.tables["user"].num_update_calls + 1


def test_a_closed_table_ends_the_lookups():
    bags = small_bags()
    bags.lookup(lists(x=[[1]], y=[[2]])).sum().backward()
    bags.tables["b"].close()
    text = r"^\[Features.lookup\] expected open tables, got a closed one \(table 'b'\)$"
    with pytest.raises(FailedPreconditionError, match=text):
        bags.lookup(lists(x=[[1]], y=[[2]]))
    with pytest.raises(FailedPreconditionError, match=r"^\[PendingGradients.apply\] expected open"):
        bags.queue.apply()


def test_a_freed_graph_and_a_second_derivative_are_refused():
    bags = small_bags()
    output = bags.lookup(lists(x=[[1]], y=[[2]])).sum()
    output.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        output.backward()
    output = bags.lookup(lists(x=[[1]], y=[[2]])).square().sum()
    (gradient,) = torch.autograd.grad(output, bags.queue.anchor, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.backward()


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_torch_jit_trace_is_refused():
    bags, ids = small_bags(), lists(x=[[1]], y=[[2]])
    with pytest.raises(RuntimeError, match=r"expected no lookup .* \(table 'a' and 1 more\)"):
        torch.jit.trace(lambda x: bags.lookup(ids) + x, torch.ones(1))


def test_values_that_are_no_tables_or_features_are_refused():
    a, x = Table(CONFIGS[0]), BagFeature("x", "user")
    with pytest.raises(TypeError, match=r"^\[Features\] expected tables as Table, got int$"):
        FeatureBags([3], [x])
    text = r"^\[Features\] expected features as BagFeature, got int$"
    with pytest.raises(TypeError, match=text):
        FeatureBags([a], [3])


def test_another_way_to_read_missing_ids_is_refused():
    bags = FeatureBags([Table(CONFIGS[0])], [BagFeature("x", "user")])
    with pytest.raises(ValueError, match="expected missing 'initial' or 'zeros', got 'ones'"):
        bags.lookup({}, missing="ones")
