"""One table over parameter servers: the group `distributed_ps_test` of the reference system."""

import threading

import pytest
import torch

from monolith.cluster import LocalServers
from monolith.errors import DeadlineExceededError
from monolith.native_training.tables import DistributedHashTable
from monolith.observe.metrics import MemorySink
from monolith.table import Segment, Table, TableConfig, Uniform, Zeros
from monolith.table.optimizers import SGD
from monolith.table.routing import FloorModRouting
from tests.native_training.tables.kinds import on_every_kind
from tests.suites.table_base import NOW, assert_same_rows, column, floats, keys, random_floats

every_count = pytest.mark.parametrize("num_ps", [1, 2, 3, 7])


def config_of(dim=1, rate=1.0, initializer=None):
    return TableConfig("user", Segment(dim, SGD(rate), initializer or Zeros()))


@pytest.fixture
def make(servers_of):
    """(number of servers, config) -> table."""
    return lambda num_ps, config: DistributedHashTable(
        config, servers_of(num_ps), clock=lambda: NOW
    )


@pytest.mark.req("NT-DPS-T1")
@on_every_kind
@every_count
def test_rows_come_back_in_the_order_of_the_ids(make, num_ps):
    table = make(num_ps, config_of(2))
    table.assign(torch.arange(10), floats(*([i, i + 0.5] for i in range(10))))
    rows = table.lookup(keys(3, 1, 3, 8))
    assert rows.tolist() == [[3, 3.5], [1, 1.5], [3, 3.5], [8, 8.5]]


@pytest.mark.req("NT-DPS-T2")
@on_every_kind
@every_count
def test_gradients_of_equal_ids_make_one_step(make, num_ps):
    table = make(num_ps, config_of())
    rows = table.lookup(keys(5, 5, 6))
    table.apply_gradients([(column(1, 2, 4), rows)])
    assert table.lookup(keys(5, 6)).tolist() == [[-3], [-4]]
    assert table.stats()["num_applied"] == 2


@pytest.mark.req("NT-DPS-T3")
@on_every_kind
@every_count
def test_assign_and_assign_add_equal_one_table(make, num_ps):
    config = config_of(3, initializer=Uniform(-1, 1))
    one = Table(config, clock=lambda: NOW)
    table = make(num_ps, config)
    ids = torch.arange(-30, 30).repeat(2)
    table.assign(ids[:40], random_floats(40, 3)).assign_add(ids, random_floats(120, 3, seed=1))
    one.assign(ids[:40], random_floats(40, 3))
    one.assign_add(ids, random_floats(120, 3, seed=1))
    assert_same_rows(table.table, one)


@every_count
def test_an_id_is_on_the_server_of_its_floor_remainder(num_ps):
    with LocalServers(num_ps) as servers:
        ids = torch.arange(-20, 20)
        DistributedHashTable(config_of(), servers).assign(ids, torch.zeros(40, 1))
        for i in range(num_ps):
            shard = servers[i].shard(config_of(), FloorModRouting(num_ps)).table
            assert shard.contains(ids).tolist() == [key % num_ps == i for key in range(-20, 20)]


def test_equal_ids_are_asked_for_once(make):
    table, asked = make(2, config_of()), []
    lookup = table.table.lookup
    table.table.lookup = lambda ids: asked.append(ids.tolist()) or lookup(ids)
    table.lookup(keys(3, 1, 3, 3))
    assert asked == [[1, 3]]


def test_lookup_times_of_each_server_go_to_the_sink():
    sink = MemorySink()
    with LocalServers(2) as servers:
        table = DistributedHashTable(config_of(), servers, sink=sink, model_name="clicks")
        table.lookup(keys(0, 1))
    tags = [{"model_name": "clicks", "ps": ps} for ps in ("0", "1")]
    assert [sink.summary("embedding_lookup", each).num_times for each in tags] == [1, 1]


def test_a_lookup_stores_nothing_and_takes_gradients(make):
    table = make(2, config_of(2, initializer=Uniform(1, 2)))
    rows = table.lookup(keys(1, 2, 1))
    assert (rows >= 1).all()
    assert len(table.table) == 0
    (rows * floats([1, 2], [3, 4], [5, 6])).sum().backward()
    before = rows.detach().clone()
    table.apply_gradients([(rows.grad, rows)])
    after = table.lookup(keys(1, 2)).detach()
    assert torch.equal(after, before[:2] - floats([6, 8], [3, 4]))


def test_gradients_of_several_lookups_make_one_step(make):
    table = make(3, config_of())
    first, second = table.lookup(keys(1, 2)), table.lookup(keys(2, 3))
    table.apply_gradients([(column(1, 1), first), (column(2, 2), second)])
    assert table.lookup(keys(1, 2, 3)).tolist() == [[-1], [-3], [-2]]
    assert table.stats()["num_applied"] == 3


def test_no_gradients_change_nothing(make):
    table = make(2, config_of())
    table.apply_gradients([])
    assert table.table.num_update_calls == 0


def test_rows_of_elsewhere_have_no_ids(make):
    table = make(2, config_of())
    text = (
        r"\[DistributedHashTable.apply_gradients\] expected results of this table's lookup, got a "
        r"tensor of shape \(1, 1\) that is none \(pair 0, table 'user'\)"
    )
    with pytest.raises(ValueError, match=text):
        table.apply_gradients([(column(1), column(1))])


@pytest.mark.parametrize(
    ("grads", "text"),
    [
        ([column(1), column(10, 20)], r"grads of shape \(2, 1\), got \(1, 1\) \(pair 0, "),
        ([column(1, 2), None], r"a gradient, got None \(pair 1, table 'user'\); call backward"),
        ([column(1, 2), column(1).int()], r"grads of dtype float32, got int32 \(pair 1, "),
    ],
)
def test_each_gradient_fits_its_own_rows(make, grads, text):
    table = make(2, config_of())
    rows = [table.lookup(keys(1, 2)), table.lookup(keys(3))]
    with pytest.raises((TypeError, ValueError), match=rf"apply_gradients\] expected {text}"):
        table.apply_gradients(list(zip(grads, rows, strict=True)))
    assert len(table.table) == 0


def test_rows_that_are_no_tensor_are_refused(make):
    text = r"expected rows as a result of this table's lookup, got list \(pair 0, table 'user'\)"
    with pytest.raises(TypeError, match=text):
        make(2, config_of()).apply_gradients([(column(1), [1])])


def test_a_gradient_may_have_any_strides(make):
    table = make(2, config_of(2))
    table.apply_gradients([(torch.ones(1, 1).expand(2, 2), table.lookup(keys(1, 2)))])
    assert table.lookup(keys(1, 2)).tolist() == [[-1, -1], [-1, -1]]


def test_ids_that_change_after_the_lookup_are_remembered_as_they_were(make):
    table, ids = make(2, config_of()), keys(1, 2)
    rows = table.lookup(ids)
    ids.zero_()
    table.apply_gradients([(column(1, 1), rows)])
    assert table.lookup(keys(0, 1, 2)).tolist() == [[0], [-1], [-1]]


def test_each_run_has_its_own_learning_rates():
    with LocalServers(2) as servers, servers.run():
        for rate, expected in ((1.0, -1.0), (0.5, -1.5)):
            table = DistributedHashTable(config_of(rate=rate))
            table.apply_gradients([(column(1), table.lookup(keys(7)))])
            assert table.lookup(keys(7)).item() == expected


def test_the_handle_is_done_when_the_running_updates_are(make):
    table, is_inside, go_on = make(2, config_of()), threading.Event(), threading.Event()
    assign = table.table.assign

    def slow(ids, values):
        is_inside.set()
        assert go_on.wait(60)
        assign(ids, values)

    assert table.as_op().is_done()
    table.table.assign = slow
    thread = threading.Thread(target=table.assign, args=(keys(1, 2), column(1, 2)))
    thread.start()
    assert is_inside.wait(60)
    handle = table.as_op()
    assert not handle.is_done()
    text = (
        r"\[Completion.wait\] expected the updates to end within 0 seconds, got 1 that run "
        r"\(table 'user'\); wait longer"
    )
    with pytest.raises(DeadlineExceededError, match=text):
        handle.wait(0)
    go_on.set()
    handle.wait()
    assert handle.is_done()
    assert table.lookup(keys(1, 2)).tolist() == [[1], [2]]
    thread.join()


def test_the_handle_raises_the_error_of_an_update(make):
    table, handles = make(2, config_of()), []

    def fail(ids, values):
        handles.append(table.as_op())
        raise ValueError("no room")

    table.table.assign_add = fail
    with pytest.raises(ValueError, match="no room"):
        table.assign_add(keys(1), column(1))
    with pytest.raises(ValueError, match="no room"):
        handles[0].wait()
    assert table.as_op().is_done()
