"""`FeatureBags` beside torch, beside one lookup per feature, and beside tables in Python."""

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
    WIDTH,
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
from tests.suites.table_base import NOW, assert_same_rows, exported


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


def test_the_norm_has_the_bits_of_tables_in_python():
    found, expected = train(make_bags()), train(make_bags(ReferenceTable))
    assert all(map(torch.equal, found[1::2], expected[1::2]))


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


def test_the_columns_stand_side_by_side_in_the_order_of_the_features():
    bags = make_bags()
    assert bags.width == WIDTH
    assert [bags.columns[f.name].start for f in bags.features] == [0, 5, 9, 13, 23, 26, 28]
    output = bags.lookup(one_batch(0))
    part = output[:, bags.columns["history"]]
    assert part.shape == (6, 10)
    assert part.data_ptr() == output.data_ptr() + 4 * 13


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


def test_the_ids_may_be_overwritten_before_backward():
    bags = small_bags()
    ids = lists(x=[[1]], y=[[2]])
    output = bags.lookup(ids)
    for ragged in ids.values():
        ragged.values.fill_(99)
    output.sum().backward()
    bags.queue.apply()
    assert exported(bags.tables["a"]).keys.tolist() == [1]


@pytest.mark.parametrize("make", [Table, ReferenceTable])
def test_lists_and_batches_may_be_empty(make):
    bags = make_bags(make)
    nothing = {feature.name: Ragged.from_lists([]) for feature in FEATURES}
    assert bags.lookup(nothing).shape == (0, WIDTH)
    output = bags.lookup({feature.name: Ragged.from_lists([[], []]) for feature in FEATURES})
    assert torch.equal(output.detach(), torch.zeros(2, WIDTH))
    output.sum().backward()
    bags.queue.apply()
    assert [table.num_update_calls for table in bags.tables.values()] == [0, 0, 0, 0]


@pytest.mark.parametrize("make", [Table, ReferenceTable])
def test_a_table_without_an_id_is_not_updated(make):
    bags = small_bags(make)
    bags.lookup(lists(x=[[1]], y=[[]])).sum().backward()
    bags.queue.apply()
    assert [table.num_update_calls for table in bags.tables.values()] == [1, 0]


def test_ids_of_other_features_are_left_alone():
    output = small_bags().lookup({**lists(x=[[1]], y=[[2]]), "other": None})
    assert output.shape == (1, 2)


def test_int32_is_widened():
    ids = {n: Ragged.from_lists([[1]], dtype=torch.int32) for n in "xy"}
    bags = small_bags()
    bags.tables["a"].assign(torch.tensor([1]), torch.tensor([[5.0]]))
    assert bags.lookup(ids).tolist() == [[5.0, 0.0]]
    assert bags.lookup({**lists(x=[[1]]), "y": ids["y"]}).tolist() == [[5.0, 0.0]]


@pytest.mark.parametrize("make", [Table, ReferenceTable])
def test_a_missing_id_reads_as_it_would_begin_or_as_zeros(make):
    config = TableConfig("a", Segment(2))
    bags = make_bags(make, [config], [BagFeature("x", "a")])
    ids, keys = lists(x=[[7]]), torch.tensor([7])
    assert torch.equal(bags.lookup(ids), bags.tables["a"].lookup(keys))
    assert bags.lookup(ids, missing="zeros").tolist() == [[0.0, 0.0]]
    assert len(bags.tables["a"]) == 0


def test_a_serving_table_reads_zeros():
    config = TableConfig("a", Segment(2), kind="serving")
    bags = make_bags(configs=[config], features=[BagFeature("x", "a")])
    bags.lookup(lists(x=[[7]])).sum().backward()
    with pytest.raises(FailedPreconditionError, match="expected a training table, got a serving"):
        bags.queue.apply()


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


BAD_IDS = [
    (None, TypeError, "expected ids as a mapping from features to Ragged, got NoneType"),
    ({}, ValueError, "expected ids of every feature, got none of x, y"),
    ({"x": [[1]]}, ValueError, "expected ids of every feature, got none of y"),
    ({"x": [[1]], "y": torch.ones(1)}, TypeError, "ids of 'y' as a Ragged, got Tensor"),
    (
        {"x": [[1]], "y": Ragged.from_lists([[1]], dtype=torch.int16)},
        TypeError,
        "expected ids of 'y' of dtype int64 or int32, got int16; cast with .long()",
    ),
    (
        {"x": [[1]], "y": Ragged(torch.ones(1, 2, dtype=torch.int64), torch.tensor([0, 1]))},
        ValueError,
        r"expected ids of 'y' with 1 dimension, got shape \(1, 2\)",
    ),
    (
        {"x": [[1]], "y": [[1], [2]]},
        ValueError,
        r"expected 1 samples of every feature, as 'x' has, got 2 \(feature 'y'\)",
    ),
    (
        {"x": [[1]], "y": Ragged.from_lists([[1]], device="meta")},
        ValueError,
        "expected ids of 'y' on device cpu, got meta",
    ),
]


@pytest.mark.parametrize(("ids", "error", "text"), BAD_IDS)
@pytest.mark.parametrize("make", [Table, ReferenceTable])
def test_bad_ids_are_refused(make, ids, error, text):
    if isinstance(ids, dict):
        ids = {k: Ragged.from_lists(v) if isinstance(v, list) else v for k, v in ids.items()}
    with pytest.raises(error, match=rf"^\[Features.lookup\] .*{text}"):
        small_bags(make).lookup(ids)


def test_splits_that_were_not_checked_are_refused_by_the_core():
    bags, one = small_bags(), torch.tensor([1])
    bad = Ragged._unchecked(one, torch.tensor([0, 2]))
    with pytest.raises(ValueError, match=r"\[Features.lookup\] .*ascend .* \(feature 'x'\)"):
        bags.lookup({"x": bad, **lists(y=[[]])})
    short = Ragged._unchecked(one, torch.tensor([0, 0]))
    with pytest.raises(ValueError, match=r"ascend from 0 to the number of ids, .* 'x'\)"):
        bags.lookup({"x": short, **lists(y=[[1]])})


def test_what_cannot_be_combined_is_refused():
    a, x = Table(CONFIGS[0]), BagFeature("x", "user")
    serving = Table(TableConfig("s", Segment(1), kind="serving"))
    for tables, features, error, text in (
        ([], [x], ValueError, "expected at least one table, got none"),
        ([a], [], ValueError, "expected at least one feature, got none"),
        ([3], [x], TypeError, "expected tables as Table, got int"),
        ([a], [3], TypeError, "expected features as BagFeature, got int"),
        ([a, a], [x], ValueError, "expected tables with different names, got several of user"),
        ([a], [x, x], ValueError, "expected features with different names, got several of x"),
        ([a], [BagFeature("x", "b")], ValueError, r"a table in user, got 'b' \(feature 'x'\)"),
        ([a, serving], [x], ValueError, r"of one kind, got training .* and serving \(table 's'\)"),
    ):
        with pytest.raises(error, match=rf"^\[Features\] .*{text}"):
            FeatureBags(tables, features)
    with pytest.raises(ValueError, match="expected missing 'initial' or 'zeros', got 'ones'"):
        FeatureBags([a], [x]).lookup({}, missing="ones")
