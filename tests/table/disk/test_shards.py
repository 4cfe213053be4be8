"""Restores of some shards of a table."""

import pytest
import torch

from monolith.cluster import LocalServers, ShardedTable
from monolith.errors import FailedPreconditionError, NotFoundError
from monolith.table import Table
from monolith.table.disk import restore_tables, save_tables
from monolith.table.routing import FloorModRouting, PartitionRouting
from tests.suites.table_base import NOW, assert_same_rows
from tests.table.disk.cases import filled, plain

KEYS = torch.arange(300)
both_routings = pytest.mark.parametrize("routing", [FloorModRouting(3), PartitionRouting(3)])


def sharded(routing, value, name="user"):
    table = ShardedTable.local(plain(name=name), 3, routing=routing, clock=lambda: NOW)
    table.assign(KEYS, torch.full((300, 1), value))
    return table


@both_routings
@pytest.mark.parametrize("shards", [[0], [2, 1], [0, 1, 2], []])
def test_named_shards_are_restored_and_the_others_stay(tmp_path, routing, shards):
    table = sharded(routing, 1.0)
    save_tables(table, tmp_path)
    table.assign(torch.arange(400), torch.full((400, 1), 2.0))
    assert restore_tables(table, tmp_path, shards=shards) == []
    is_restored = torch.isin(routing.shard_of(torch.arange(400)), torch.tensor(shards))
    expected = torch.where(is_restored, (torch.arange(400) < 300).float(), 2.0)
    assert torch.equal(table.lookup(torch.arange(400))[:, 0], expected)
    assert len(table) == int(expected.count_nonzero())


@pytest.mark.parametrize(
    "others", [PartitionRouting(3), FloorModRouting(3), PartitionRouting(2), FloorModRouting(5)]
)
@both_routings
def test_a_save_is_restored_into_another_routing(tmp_path, routing, others):
    table = sharded(routing, 1.0)
    save_tables(table, tmp_path)
    with LocalServers(others.num_shards) as servers:
        other = ShardedTable.over(
            table.config, servers.shards(table.config, others), routing=others
        )
        restore_tables(other, tmp_path)
        assert_same_rows(other, table)
        assert other.lookup(KEYS).tolist() == [[1.0]] * 300


def test_a_save_of_one_table_fills_a_shard(tmp_path):
    whole = filled()
    save_tables(whole, tmp_path)
    table = ShardedTable.local(whole.config, 2, clock=lambda: NOW)
    for shard in (1, 0):
        restore_tables(table, tmp_path, shards=[shard])
    assert_same_rows(table, whole)
    assert (table.num_update_calls, table.latest_time) == (3, whole.latest_time)


def test_partitions_of_a_shard_are_restored(tmp_path):
    table = sharded(PartitionRouting(3), 1.0)
    save_tables(table, tmp_path)
    restore_tables(table, tmp_path, shards=[0], partitions=range(100, 2000))
    partitions = torch.tensor([len(list(table.export([p]))) > 0 for p in range(4096)])
    assert not partitions[:100].any()
    assert partitions[100:1366].any()
    assert partitions[1366:].any()


def test_shards_of_several_tables_are_restored_together(tmp_path):
    tables = [sharded(FloorModRouting(3), 1.0, name) for name in "ab"]
    save_tables(tables, tmp_path)
    for table in tables:
        table.clear()
    restore_tables(tables, tmp_path, shards=[1])
    assert [len(table) for table in tables] == [100, 100]


def test_shards_are_restored_or_left_alone_where_the_save_has_no_table(tmp_path):
    one, other = (sharded(FloorModRouting(3), 1.0, name) for name in "ab")
    save_tables(one, tmp_path)
    with pytest.raises(NotFoundError, match=r"expected table 'b' in "):
        restore_tables([one, other], tmp_path, shards=[1])
    assert restore_tables([one, other], tmp_path, shards=[1], allow_missing=True) == ["b"]
    assert len(other) == 300


@both_routings
def test_a_restore_that_is_stopped_leaves_only_its_shards_empty(tmp_path, routing):
    table = sharded(routing, 1.0)
    save_tables(table, tmp_path)

    def stop(progress):
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough") as caught:
        restore_tables(table, tmp_path, shards=[1], progress=stop)
    note = "loading had begun, so the tables ['user (shard 1)'] are empty now"
    assert caught.value.__notes__ == [note]
    shards = routing.shard_of(KEYS)
    assert torch.equal(table.contains(KEYS), shards != 1)


def test_a_table_is_not_cut_while_a_shard_is_restored(tmp_path):
    table, texts = sharded(FloorModRouting(3), 1.0), []
    save_tables(table, tmp_path)

    def cut(progress):
        with pytest.raises(FailedPreconditionError) as caught:
            table.cut()
        texts.append(str(caught.value))

    restore_tables(table, tmp_path, shards=[1], progress=cut)
    assert "expected a table at rest, got one that restore_tables fills" in texts[0]
    with table.cut(), pytest.raises(FailedPreconditionError, match="expected no open cut"):
        restore_tables(table, tmp_path, shards=[1])


def test_shards_that_a_table_does_not_have_are_refused(tmp_path):
    table = sharded(FloorModRouting(3), 1.0)
    text = r"^\[restore_tables\] expected shards in \[0, 3\), got {} \(table 'user'\)$"
    for shard in (3, -1):
        with pytest.raises(ValueError, match=text.format(shard)):
            restore_tables(table, tmp_path, shards=[shard])


def test_shards_of_a_table_without_shards_are_refused(tmp_path):
    text = r"expected tables in shards with shards=\[1\], got Table \(table 'user'\)$"
    with Table(plain()) as table, pytest.raises(TypeError, match=text):
        restore_tables(table, tmp_path, shards=[1])
