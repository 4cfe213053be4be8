"""Features that are read from cuts: the bits of the tables, which later updates do not change."""

import copy

import pytest
import torch

from monolith.cluster.servers_engine import servers_engine
from monolith.errors import FailedPreconditionError
from monolith.features import (
    BagFeature,
    CoreEngine,
    CutEngine,
    PendingGradients,
    PlainEngine,
    cut_tables,
    engine_for,
)
from monolith.table import FixedR8, OneBit, Segment, Table, TableConfig, Zeros
from monolith.table.optimizers import SGD, Adagrad
from monolith.table.routing import PartitionRouting
from tests.cluster.direct_connection import remote_servers
from tests.cluster.test_servers_engine import on_servers
from tests.suites.engine import CONFIGS, FEATURES, lists, meaning, one_batch, train
from tests.suites.table_base import NOW, assert_same_bits

VIEWED = [
    TableConfig("a", Segment(2, SGD(0.5), view=OneBit(step_size=1))),
    TableConfig("b", [Segment(1, Adagrad(0.3), precision="bf16"), Segment(2, view=FixedR8(0.1))]),
]
VIEWED_FEATURES = [BagFeature("x", "a", "mean"), BagFeature("y", "b"), BagFeature("z", "a", "rows")]


def local(kind):
    return lambda configs, features: kind([Table(c, clock=lambda: NOW) for c in configs], features)


ENGINES = {
    "core": local(engine_for),
    "plain": local(PlainEngine),
    "reference": lambda configs, features: meaning(configs, features, lambda: NOW),
    "one server": on_servers(1),
    "three servers": on_servers(3),
}
every_engine = pytest.mark.parametrize("make", ENGINES.values(), ids=list(ENGINES))


@pytest.fixture
def trained():
    """(make, configs, features) -> engine of tables that have been trained; closed at the end."""
    engines = []

    def trained(make, configs=CONFIGS, features=FEATURES):
        engines.append(make(configs, features))
        train_on(engines[-1])
        return engines[-1]

    yield trained
    for engine in engines:
        engine.close()


def train_on(engine):
    pending = PendingGradients(engine)
    if engine.features == tuple(FEATURES):
        train(pending)
        return
    draw = torch.Generator().manual_seed(1)
    for _ in range(7):
        _, looked = engine.lookup(IDS, None, None, "initial")
        for table in engine.tables.values():
            keys = torch.randint(0, 9, (20,), generator=draw)
            table.apply_gradients(keys, torch.randn(20, table.dim, generator=draw))
        assert looked.num_keys == 9


IDS = lists(x=[[1, 2, 2], [3]], y=[[4], []], z=[[1], [5, 6, 99]])
DENSE = torch.arange(12.0).view(6, 2)


def assert_same_lookups(one, other):
    """Equal matrices, in equal layout, and equal rows apart."""
    (matrix, looked), (expected, wanted) = one, other
    assert matrix.stride() == expected.stride()
    assert_same_bits(matrix.contiguous(), expected.contiguous())
    assert looked.num_keys == wanted.num_keys
    assert list(looked.rows) == list(wanted.rows)
    for name, rows in wanted.rows.items():
        assert_same_bits(looked.rows[name], rows)


@every_engine
@pytest.mark.parametrize("dense", [None, DENSE])
def test_a_cut_reads_the_bits_of_the_tables_at_its_moment(make, dense, trained):
    engine, ids = trained(make), one_batch(100)
    before = engine.lookup(ids, None, dense, "zeros")
    with cut_tables(engine) as cut:
        assert_same_lookups(cut.lookup(ids, None, dense, "zeros"), before)
        train_on(engine)
        assert_same_lookups(cut.lookup(ids, None, dense, "zeros"), before)
    with pytest.raises(AssertionError):  # the updates did change something
        assert_same_lookups(engine.lookup(ids, None, dense, "zeros"), before)


@every_engine
def test_views_are_those_of_the_step_of_the_cut(make, trained):
    engine = trained(make, VIEWED, VIEWED_FEATURES)
    before = engine.lookup(IDS, None, None, "zeros")
    with cut_tables(engine) as cut:
        train_on(engine)
        assert_same_lookups(cut.lookup(IDS, None, None, "zeros"), before)


def test_a_cut_reads_each_table_once():
    calls = []
    engine = remote_engine(calls)
    with cut_tables(engine) as cut:
        calls.clear()
        cut.lookup(lists(x=[[1, 1]], y=[[2, 1]]), None, None, "zeros")
        assert sorted(verb for _, verb, _ in calls) == ["cut_lookup"] * 2
        assert [len(keys) for _, _, (_, keys, _) in calls] in ([2, 0], [1, 1], [0, 2])
    engine.close()


def remote_engine(calls=None):
    servers = remote_servers(2, calls)
    config = TableConfig("a", Segment(1, SGD(1.0), Zeros()))
    table = servers.table(config, PartitionRouting(2), lambda: NOW)
    return servers_engine(servers)([table], [BagFeature("x", "a"), BagFeature("y", "a")])


def small(num_tables=2):
    tables = [Table(TableConfig(name, Segment(1))) for name in "ab"[:num_tables]]
    return CoreEngine(tables, [BagFeature("x", tables[-1].name)])


def test_nothing_is_trained_through_a_cut():
    with cut_tables(small()) as cut:
        for verb, call in {
            "sum": lambda: cut.sum([]),
            "step": lambda: cut.step(None, [], []),
        }.items():
            with pytest.raises(FailedPreconditionError) as caught:
                call()
            assert str(caught.value) == (
                f"[CutEngine.{verb}] expected an engine of tables, got one of cuts, which only "
                "reads; train with the engine of the tables"
            )


def test_initial_rows_are_refused():
    text = (
        r"^\[CutEngine.lookup\] expected missing 'zeros', got 'initial': a cut has no initial "
        "rows; read the features in eval mode$"
    )
    with cut_tables(small()) as cut, pytest.raises(ValueError, match=text):
        cut.lookup(lists(x=[[1]]), None, None, "initial")


def test_a_cut_of_each_table_is_needed():
    engine = small()
    with engine.tables["a"].cut() as snapshot:
        text = r"^\[CutEngine\] expected a cut of each of the tables a, b, got those of a$"
        with pytest.raises(ValueError, match=text):
            CutEngine(engine.tables.values(), engine.features, {"a": snapshot})
    with pytest.raises(ValueError, match=r"got those of none$"):
        CutEngine(engine.tables.values(), engine.features, {})


def test_closed_cuts_are_refused():
    with cut_tables(small()) as cut:
        pass
    cut.close()
    text = r"^\[Features.lookup\] expected open cuts, got closed ones$"
    with pytest.raises(FailedPreconditionError, match=text):
        cut.lookup(lists(x=[[1]]), None, None, "zeros")


def test_closing_a_table_ends_its_cut():
    engine = small()
    with cut_tables(engine) as cut:
        engine.close()
        with pytest.raises(FailedPreconditionError, match="expected open tables, got a closed one"):
            cut.lookup(lists(x=[[1]]), None, None, "zeros")


def test_a_cut_is_not_copied():
    text = r"^\[CutEngine\] expected no copy or pickle, got one: a cut belongs to its table"
    with cut_tables(small()) as cut, pytest.raises(FailedPreconditionError, match=text):
        copy.deepcopy(cut)


def test_the_tables_stay_open_and_keep_nothing_for_a_closed_cut():
    engine = small()
    for table in engine.tables.values():
        table.assign(torch.arange(100), torch.ones(100, 1))
    with cut_tables(engine):
        for table in engine.tables.values():
            table.assign(torch.arange(100), torch.zeros(100, 1))
            assert table.memory_report()["cut_bytes"] > 0
    assert [t.memory_report()["cut_bytes"] for t in engine.tables.values()] == [0, 0]


def test_a_cut_that_one_table_refuses_leaves_none_open():
    engine = small()
    first, second = engine.tables.values()
    snapshots = [second.cut() for _ in range(4)]
    with pytest.raises(FailedPreconditionError, match="expected at most 4 open cuts"):
        cut_tables(engine)
    first.clear()  # refused while a cut is open
    for snapshot in snapshots:
        snapshot.close()


def test_an_error_of_one_close_leaves_no_cut_open():
    engine = small()
    cut = cut_tables(engine)
    last = cut.snapshots["b"]

    def fail(is_read):
        raise ConnectionError("gone")

    close, last._storage.close = last._storage.close, fail
    with pytest.raises(ConnectionError):
        cut.close()
    engine.tables["a"].clear()
    close(True)


def test_an_engine_without_tables_has_a_cut():
    with cut_tables(PlainEngine([], [])) as cut:
        assert cut.lookup({}, None, DENSE, "zeros")[0].equal(DENSE)
