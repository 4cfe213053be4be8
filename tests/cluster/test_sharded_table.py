"""The shared suite on tables in shards, and what is special about them."""

import pytest
import torch

from monolith.cluster import ShardedTable
from monolith.cluster.sharded_table import make_shard, shard_config
from monolith.cluster.transport import LocalTransport
from monolith.errors import DataLossError, FailedPreconditionError
from monolith.table import (
    Budget,
    Expiry,
    MinCount,
    Segment,
    Table,
    TableConfig,
    Zeros,
)
from monolith.table.disk import restore_tables, save_tables
from monolith.table.optimizers import SGD, Adagrad
from monolith.table.reference import ReferenceTable
from monolith.table.replay import Record
from monolith.table.routing import FloorModRouting, PartitionRouting
from tests.cluster.sharded_suite import ShardedSuite
from tests.suites.table import RefusalSuite, TableSuite
from tests.suites.table_base import (
    NOW,
    assert_equal_rows,
    assert_same_bits,
    assert_same_rows,
    column,
    exported,
    keys,
    random_floats,
    random_keys,
    refuses,
)
from tests.suites.table_concurrency import run_together
from tests.suites.table_cut_machine import CUT_CONFIGS, CutMachine
from tests.suites.table_machine import CONFIGS, check_random_verbs

pytestmark = pytest.mark.thorough

COUNTS = (1, 2, 3, 7)


def sharded(num_shards, routing=None):
    def make(config, **options):
        if routing is not None:
            options["routing"] = routing(num_shards)
        return ShardedTable.local(config, num_shards, **options)

    return staticmethod(make)


class TestOneShard(TableSuite):
    make = sharded(1)


class TestTwoShards(ShardedSuite, RefusalSuite):
    make = sharded(2)


@pytest.mark.slow
class TestThreeShards(ShardedSuite):
    make = sharded(3)


@pytest.mark.slow
class TestSevenShards(ShardedSuite):
    make = sharded(7)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_random_verbs_equal_the_reference(config):
    check_random_verbs(sharded(7).__func__, config, max_examples=10)


@pytest.mark.parametrize("name", ["two-segments", "bf16-beside-fp32", "views", "probabilistic"])
def test_random_verbs_on_floor_mod_shards_equal_the_reference(name):
    check_random_verbs(sharded(3, FloorModRouting).__func__, CONFIGS[name], max_examples=10)


def test_random_cuts_equal_the_reference():
    check_random_verbs(
        sharded(3).__func__, CUT_CONFIGS["min-count"], max_examples=10, machine=CutMachine
    )


def run_of(table):
    """What a table says and holds after calls that depend on seed, call number, step and time."""
    numbers = random_keys(600)[torch.arange(900) % 600]
    said = []
    for i in range(4):
        applied = table.apply_gradients(numbers, random_floats(900, 9, seed=i), step=i, now=NOW + i)
        said.append(list(applied))
        table.assign_add(numbers[i::4].contiguous(), random_floats(225, 9, seed=i), now=NOW + 9)
        said.append(table.erase(numbers[i::7].contiguous()).tolist())
    said.append(table.lookup(numbers, step=3).tolist())
    stats = table.stats()
    counters = {name: stats[name] for name in ReferenceTable(table.config).stats()}
    return said, exported(table), counters


@pytest.mark.req("NT-DPS-T12")
@pytest.mark.parametrize("routing", [PartitionRouting, FloorModRouting])
@pytest.mark.parametrize(
    "options", [{}, {"admission": MinCount(2), "expiry": Expiry(1)}], ids=["plain", "admission"]
)
def test_every_number_of_shards_gives_the_same_bits(routing, options):
    segments = [Segment(4, Adagrad(0.3), precision="bf16"), Segment(5, SGD(0.5), precision="fp16")]
    config = TableConfig("user", segments, **options)
    expected, rows, stats = run_of(Table(config, clock=lambda: NOW))
    assert len(rows) > 100
    for num_shards in COUNTS:
        make = sharded(num_shards, routing).__func__
        got, got_rows, got_stats = run_of(make(config, clock=lambda: NOW))
        assert got == expected
        assert_equal_rows(got_rows, rows)
        assert got_stats == stats


@pytest.mark.req("NT-DPS-T12")
def test_rows_of_fixed_ids_and_seed():
    config = TableConfig("golden", Segment(2, SGD(0.5)), seed=7)
    for num_shards in COUNTS:
        table = ShardedTable.local(config, num_shards)
        table.apply_gradients(keys(-1, 5, 5, 12), torch.ones(4, 2))
        rows = table.lookup(keys(-1, 5, 12, 40)).view(torch.int32).tolist()
        assert rows == [
            [-1090175860, -1090779470],
            [-1081995051, -1081993060],
            [-1090203980, -1090606844],
            [-1135083744, 1023749735],
        ]


@pytest.mark.parametrize("routing", [PartitionRouting, FloorModRouting])
@pytest.mark.parametrize("chunk_rows", [1, 7, 299, 300, 301])
def test_chunks_are_full_except_the_last_and_in_order(routing, chunk_rows):
    config, numbers = TableConfig("user", Segment(1)), random_keys(300)
    one, many = Table(config), sharded(7, routing).__func__(config)
    for table in (one, many):
        table.assign(numbers, column(*range(300)), now=NOW)
    for source in (many, many.cut()):
        sizes = [len(chunk) for chunk in source.export(chunk_rows=chunk_rows)]
        full, rest = divmod(300, chunk_rows)
        assert sizes == [chunk_rows] * full + [rest] * (rest > 0)
        assert_equal_rows(exported(source, chunk_rows=chunk_rows), exported(one))


def test_candidates_of_floor_mod_shards_are_in_order_of_their_partition():
    config = TableConfig("user", Segment(1), admission=MinCount(2))
    one, many = Table(config), sharded(3, FloorModRouting).__func__(config)
    for table in (one, many):
        table.assign(random_keys(50), torch.zeros(50, 1), now=NOW)
    columns = many.export_candidates()
    for name, values in one.export_candidates().items():
        assert_same_bits(columns[name], values)
    other = sharded(2, FloorModRouting).__func__(config)
    other.import_candidates(columns)
    assert_same_bits(other.export_candidates()["key"], columns["key"])


def table_and_shards(num_shards, segment):
    """A table, and the tables that are its shards."""
    config = TableConfig("user", segment)
    places = [PartitionRouting(num_shards).placement_of(shard) for shard in range(num_shards)]
    hosts = [make_shard(config, place) for place in places]
    table = ShardedTable(config, [LocalTransport(host) for host in hosts])
    return table, [host.table for host in hosts]


def test_a_cut_that_one_shard_refuses_stays_open_on_no_other():
    table, shards = table_and_shards(3, Segment(1))
    snapshots = [table.cut() for _ in range(3)]
    with shards[1].cut(), pytest.raises(FailedPreconditionError, match="at most 4 open cuts"):
        table.cut()
    snapshots.append(table.cut())
    assert len(snapshots) == 4


def test_clear_is_refused_on_every_shard_when_one_has_a_cut():
    table, shards = table_and_shards(3, Segment(1))
    table.assign(random_keys(100), torch.zeros(100, 1))
    with shards[2].cut():
        text = "[Table.clear] expected no open cut, got one; close it first (table 'user')"
        with refuses(table, FailedPreconditionError, text):
            table.clear()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_bad_gradient_of_one_shard_is_refused_by_all(bad):
    table, numbers = ShardedTable.local(TableConfig("user", Segment(1)), 7), torch.arange(50)
    grads = torch.ones(50, 1)
    grads[31] = bad
    text = (
        f"[Table.apply_gradients] expected finite gradients, got {bad} at row 31, column 0 "
        "(table 'user'); see TableConfig.non_finite"
    )
    with refuses(table, ValueError, text):
        table.apply_gradients(numbers, grads)
    assert table.num_update_calls == 0


def test_shards_share_the_budget():
    config = TableConfig("user", Segment(1), budget=Budget(70_000))
    table = ShardedTable.local(config, 7)
    for part in torch.arange(5000).split(500):
        table.assign(part, torch.ones(500, 1))
        assert table.memory_report()["total_bytes"] <= 70_000
    stats = table.stats()
    assert stats["num_rows"] > 200
    assert stats["num_rows"] + stats["num_refused"] == 5000


def test_a_budget_too_small_for_the_shards_is_refused():
    text = (
        r"\[ShardedTable\] expected a budget for 7 shards, got 10000 bytes; of each: "
        r"\[TableConfig\] expected a budget of at least \d+ bytes, a table of one row, got 1428"
    )
    with pytest.raises(ValueError, match=text):
        shard_config(TableConfig("user", Segment(1), budget=Budget(10_000)), 7)


class Kept(LocalTransport):
    """The way to a shard that keeps the calls; it may lie about the answers."""

    answer = None

    def __init__(self, host):
        super().__init__(host)
        self.calls = []

    def send(self, call):
        self.calls.append(call)
        pending = super().send(call)
        return pending if self.answer is None else pending._replace(value=self.answer)


@pytest.mark.parametrize("routing", [PartitionRouting(2), FloorModRouting(2)])
def test_equal_keys_are_sent_once(routing):
    config = TableConfig("user", Segment(1, SGD(1.0), Zeros()))
    hosts = [make_shard(config, routing.placement_of(i)) for i in range(2)]
    ways = [Kept(host) for host in hosts]
    table, numbers = ShardedTable(config, ways, routing=routing), keys(7, 8).repeat(1000)
    table.apply_gradients(numbers, torch.ones(2000, 1))
    assert torch.equal(table.lookup(numbers), torch.full((2000, 1), -1000.0))
    sent = [len(call.arguments[0]) for way in ways for call in way.calls]
    assert sum(sent) == 2 + 2


def test_rows_of_another_shape_are_refused():
    config = TableConfig("user", Segment(2))
    way = Kept(make_shard(config, PartitionRouting(1).placement_of(0)))
    way.answer = torch.zeros(2, 1)
    text = r"\[ShardedTable.lookup\] shard 0: expected an answer of float32 of shape \(2, 2\), got"
    with pytest.raises(DataLossError, match=text):
        ShardedTable(config, [way]).lookup(keys(7, 8, 7))


def test_sums_count_as_many_occurrences():
    config = TableConfig("user", Segment(2, Adagrad(0.3)), admission=MinCount(4))
    counts, now = torch.tensor([3, 5], dtype=torch.int32), NOW
    for make in (Table, ReferenceTable, lambda c: Table(c, record=Record())):
        table, seen = make(config), []
        for _ in range(3):
            applied = table._apply_sums(keys(7, 8), random_floats(2, 2), counts, [0.3], 0, now, 1)
            seen.append(tuple(applied))
        assert seen == [(0, 0, 2, 0), (1, 1, 1, 0), (2, 1, 0, 0)]


def test_routing_of_another_number_of_shards_is_refused():
    text = r"\[ShardedTable\] expected a transport for each of the 3 shards, got 2 \(table 'user'\)"
    with pytest.raises(ValueError, match=text):
        ShardedTable.local(TableConfig("user", Segment(1)), 2, routing=PartitionRouting(3))


def test_updates_that_run_at_once_count_alike_on_every_shard():
    table, shards = table_and_shards(3, Segment(1, SGD(1.0)))

    def job():
        for _ in range(50):
            table.apply_gradients(keys(1, 2, 3), column(1, 1, 1))

    run_together(*[job] * 4)
    assert [shard.num_update_calls for shard in shards] == [200] * 3


def test_a_table_saved_in_three_shards_is_restored_in_seven(tmp_path):
    config = TableConfig("user", Segment(4, Adagrad(0.3)), admission=MinCount(1))
    three, seven = (ShardedTable.local(config, n, clock=lambda: NOW) for n in (3, 7))
    for numbers in (random_keys(500), random_keys(300)):
        three.apply_gradients(numbers, random_floats(len(numbers), 4))
    save_tables(three, tmp_path)
    restore_tables(seven, tmp_path)
    assert_same_rows(seven, three)
    assert seven.num_update_calls == three.num_update_calls == 2
    before, after = three.export_candidates(), seven.export_candidates()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_changes_of_a_cut_are_full_if_those_of_a_shard_are():
    table = ShardedTable.local(TableConfig("user", Segment(1)), 2)
    table.changes("a")
    table.assign(keys(1, 2, 3), column(1, 2, 3))
    table.shards()[1].drop_cursor("a")
    with table.cut(cursor="a") as snapshot:
        read = snapshot.changes()
    assert (read.full, len(read.keys), len(read.tombstones)) == (True, 0, 0)
    assert not table.changes("a").full


def test_counters_are_summed_and_maxima_are_not():
    table, shards = table_and_shards(2, Segment(1))
    reports = [{"num_rows": 3, "lock_wait_max_ns": 5}, {"num_rows": 4, "lock_wait_max_ns": 2}]
    for shard, report in zip(shards, reports, strict=True):
        shard._stats = lambda report=report: report
    assert table.stats() == {"num_rows": 7, "lock_wait_max_ns": 5}
