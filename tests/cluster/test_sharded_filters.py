"""`SlidingFilter` where every shard has keys of each partition: filters of its own, saved whole."""

import pytest
import torch

from monolith.checkpoint import Contents, open_checkpoint, write
from monolith.cluster import LocalServers, ShardedTable
from monolith.cluster.sharded_table import shard_config, spread_config
from monolith.errors import InvalidArgumentError
from monolith.native_training.tables import DistributedHashTable, DistributedMultiTypeHashTable
from monolith.table import Segment, SlidingFilter, Table, TableConfig, load_table
from monolith.table.disk import restore_tables, save_tables
from monolith.table.disk.difference import diff_saves
from monolith.table.reference import ReferenceTable
from monolith.table.routing import FloorModRouting, Routing
from tests.suites.table_base import NOW, column, keys, random_keys

CAPACITY = 4096 * 3000
RULE = SlidingFilter(2, capacity=CAPACITY)
CONFIG = TableConfig("user", Segment(1), admission=RULE)
NUMBERS = random_keys(500, seed=1)


def floor_mod(num_shards, config=CONFIG):
    routing = FloorModRouting(num_shards)
    return ShardedTable.local(config, num_shards, routing=routing, clock=lambda: NOW)


def see(table, numbers=NUMBERS, times=1):
    for _ in range(times):
        table.assign(numbers, torch.ones(len(numbers), 1))
    return table


def test_every_shard_has_its_share_of_the_capacity():
    table = floor_mod(3)
    assert table.config.admission == SlidingFilter(2, capacity=CAPACITY, num_shards=3)
    shards = [host.host.table.config for host in table._client.transports]
    assert shards == [shard_config(table.config, 3)] * 3
    assert shards[0].admission == SlidingFilter(2, capacity=CAPACITY // 3)
    assert ShardedTable.local(CONFIG, 3).config == CONFIG


def test_a_key_is_admitted_as_its_shard_alone_would():
    table = see(floor_mod(3), times=2)
    for shard, part in enumerate(table.shards()):
        own = NUMBERS[FloorModRouting(3).shard_of(NUMBERS) == shard]
        reference = see(ReferenceTable(part.config), own, 2)
        columns, expected = part.export_candidates(), reference.export_candidates()
        assert all(torch.equal(columns[name], expected[name]) for name in expected)
    assert len(table) == 0
    see(table)
    assert torch.equal(table.contains(NUMBERS), torch.ones(len(NUMBERS), dtype=torch.bool))


def test_candidates_name_their_shard():
    table = see(floor_mod(2))
    columns = table.export_candidates()
    assert list(columns) == ["shard", "partition", "split", "cell", "value"]
    assert columns["shard"].unique().tolist() == [0, 1]
    assert columns["partition"].diff().min() >= 0
    other = floor_mod(2)
    other.import_candidates(columns)
    assert all(torch.equal(c, columns[n]) for n, c in other.export_candidates().items())


@pytest.mark.parametrize("save", ["folder", "checkpoint"])
def test_a_save_restores_into_as_many_shards(tmp_path, save):
    old, new = see(floor_mod(3), times=2), floor_mod(3)
    if save == "folder":
        restore_tables(new, save_tables(old, tmp_path) or tmp_path)
    else:
        write(Contents(tables=old), tmp_path / "model")
        open_checkpoint(tmp_path / "model").restore_tables(new)
    assert see(new).contains(NUMBERS).all()
    assert len(see(floor_mod(3))) == 0


def test_one_shard_restores_its_filters_alone(tmp_path):
    save_tables(old := see(floor_mod(2), times=2), tmp_path)
    table = floor_mod(2)
    restore_tables(table, tmp_path, shards=[1])
    columns, expected = table.export_candidates(), old.export_candidates()
    is_second = expected["shard"] == 1
    assert all(torch.equal(c, expected[name][is_second]) for name, c in columns.items())
    see(table)
    assert torch.equal(table.contains(NUMBERS), NUMBERS % 2 == 1)


@pytest.mark.parametrize(
    ("make", "got"),
    [
        (lambda: floor_mod(3), 3),
        (lambda: ShardedTable.local(CONFIG, 2), 1),
        (lambda: Table(CONFIG), 1),
    ],
)
def test_another_number_of_filters_is_refused_with_the_reason(tmp_path, make, got):
    save_tables(see(floor_mod(2)), tmp_path)
    text = rf"expected filters of 2 shards as in .*, got those of {got} \(table 'user'\); a filter "
    with pytest.raises(InvalidArgumentError, match=text):
        restore_tables(make(), tmp_path)
    save_tables(see(make()), tmp_path)
    with pytest.raises(InvalidArgumentError, match=rf"expected filters of {got} shards"):
        restore_tables(floor_mod(2), tmp_path)


def test_rows_alone_move_to_another_number_of_shards():
    old, new = see(floor_mod(2), times=3), floor_mod(3)
    for rows in old.export():
        new.import_rows(rows)
    assert new.contains(NUMBERS).all()
    assert new.stats()["num_candidates"] == 0


def test_one_shard_is_one_table(tmp_path):
    save_tables(see(Table(CONFIG), times=2), tmp_path)
    table = floor_mod(1)
    restore_tables(table, tmp_path)
    assert see(table).contains(NUMBERS).all()


def test_a_single_table_has_no_filters_of_shards(tmp_path):
    text = r"\[Table\] expected a SlidingFilter with num_shards=1, got 2 .*FloorModRouting\(2\)"
    with pytest.raises(ValueError, match=text):
        Table(spread_config(CONFIG, FloorModRouting(2)))
    save_tables(see(floor_mod(2)), tmp_path)
    with pytest.raises(ValueError, match=text):
        load_table(tmp_path)


def test_filters_of_another_number_of_shards_are_refused():
    config = spread_config(CONFIG, FloorModRouting(2))
    text = r"expected a SlidingFilter with num_shards=3 for FloorModRouting\(3\), got 2"
    with pytest.raises(ValueError, match=text):
        floor_mod(3, config)
    with pytest.raises(ValueError, match=r"num_shards=1 for PartitionRouting\(2\), got 2"):
        ShardedTable.local(config, 2)


class _Custom(Routing):
    def shard_of(self, keys):
        return torch.zeros_like(keys)

    def partitions_of(self, shard):
        return range(4096)


def test_a_routing_of_the_callers_own_is_refused():
    text = r"expected PartitionRouting or FloorModRouting with a SlidingFilter, got _Custom"
    with pytest.raises(ValueError, match=text):
        ShardedTable.local(CONFIG, 2, routing=_Custom(2))
    with LocalServers(2) as servers:
        with pytest.raises(ValueError, match=text):
            servers.shards(CONFIG, _Custom(2))
        assert servers[0].table_names == []


def test_a_shard_that_is_none_is_refused():
    columns = see(floor_mod(2)).export_candidates()
    columns["shard"] += 1
    with pytest.raises(ValueError, match=r"expected shard in \[0, 1\], got \[1, 2\]"):
        floor_mod(2).import_candidates(columns)


def test_saves_of_filters_are_compared_shard_by_shard(tmp_path):
    save_tables(see(floor_mod(2), keys(4, 7)), tmp_path / "one")
    save_tables(see(floor_mod(2), keys(4, 7, 9)), tmp_path / "two")
    (found,) = diff_saves(tmp_path / "one", tmp_path / "two")
    assert (found.num_candidates, found.num_other_candidates) == (2, 3)
    assert (found.num_added_candidates, found.num_changed_candidates) == (1, 0)


@pytest.mark.parametrize("num_servers", [1, 2])
def test_distributed_tables_take_filters(num_servers):
    with LocalServers(num_servers) as servers:
        one = DistributedHashTable(CONFIG, servers, clock=lambda: NOW)
        many = DistributedMultiTypeHashTable(
            {"a": TableConfig("a", Segment(1), admission=RULE)}, servers, clock=lambda: NOW
        )
        for _ in range(3):
            assert (len(one.table), len(many.tables["a"])) == (0, 0)
            one.assign(keys(4, 7), column(1, 1))
            many.apply_gradients({"a": (keys(4, 7), column(1, 1))})
        assert (len(one.table), len(many.tables["a"])) == (2, 2)
