"""Restores of tables that a save has under another name."""

import pytest
import torch

from monolith.checkpoint import Contents, open_checkpoint, write
from monolith.cluster import ShardedTable
from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.table import Segment, Table, TableConfig, Uniform
from monolith.table.disk import restore_tables, save_tables
from monolith.table.routing import FloorModRouting, PartitionRouting
from tests.suites.table_base import NOW, assert_same_rows
from tests.table.disk.cases import CONFIG, filled, make, plain, saved

KEYS = torch.arange(300)


def renamed(*others, name="user2", **options):
    """An empty table with the config of `CONFIG` but for the name, and other names."""
    config = TableConfig(name, CONFIG.segments, admission=CONFIG.admission, expiry=CONFIG.expiry)
    table = make(config)
    table.restore_names = others
    return table


@pytest.mark.req("NT-DPS-T15")
def test_a_table_is_found_under_an_older_name(tmp_path):
    old, new = filled(), renamed("user1", "user")
    assert old.config.seed != new.config.seed
    restore_tables(new, saved(tmp_path, old))
    assert_same_rows(new, old)
    assert (new.num_update_calls, new.latest_time) == (old.num_update_calls, old.latest_time)
    assert new.stats()["num_candidates"] == old.stats()["num_candidates"] > 0


@pytest.mark.parametrize("routing", [FloorModRouting, PartitionRouting])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2)])
@pytest.mark.req("NT-DPS-T15")
def test_an_older_name_restores_into_any_number_of_shards(tmp_path, routing, before, after):
    old = ShardedTable.local(plain(name="old"), before, routing=routing(before), clock=lambda: NOW)
    old.assign(KEYS, torch.rand(300, 1))
    write(Contents(tables=old), tmp_path / "model")
    new = ShardedTable.local(plain(name="new"), after, routing=routing(after), clock=lambda: NOW)
    new.restore_names = ["old"]
    open_checkpoint(tmp_path / "model").restore_tables(new)
    assert_same_rows(new, old)


@pytest.mark.req("NT-DPS-T15")
def test_one_shard_is_restored_under_an_older_name(tmp_path):
    save_tables(old := filled(), tmp_path)
    new = ShardedTable.local(renamed().config, 2, clock=lambda: NOW)
    new.restore_names = ["user"]
    restore_tables(new, tmp_path, shards=[1])
    keys = torch.cat([rows.keys for rows in new.export()])
    assert (new.routing.shard_of(keys) == 1).all()
    assert torch.equal(new.lookup(keys), old.lookup(keys))


def test_two_names_of_a_table_are_refused(tmp_path):
    save_tables([filled(), renamed()], tmp_path)
    table = renamed("user")
    text = r"\[restore_tables\] expected one of the names \['user2', 'user'\] of table 'user2'"
    with pytest.raises(InvalidArgumentError, match=text):
        restore_tables(table, tmp_path)


def test_the_name_of_another_table_is_its_own(tmp_path):
    save_tables([old := filled(), other := renamed()], tmp_path)
    user, user2 = make(), renamed("user")
    restore_tables([user, user2], tmp_path)
    assert_same_rows(user, old)
    assert_same_rows(user2, other)


def test_two_tables_do_not_share_a_saved_one(tmp_path):
    tables = [renamed("user", name="a"), renamed("user", name="b")]
    text = r"expected a saved table for each table, got 'user' of .* for both 'a' and 'b'"
    with pytest.raises(InvalidArgumentError, match=text):
        restore_tables(tables, saved(tmp_path))
    assert [len(table) for table in tables] == [0, 0]


def test_an_error_names_all_that_was_looked_for(tmp_path):
    table = renamed("x", "y", "x")
    text = r"expected table 'user2' or 'x' or 'y' in .*, got tables \['user'\]"
    with pytest.raises(NotFoundError, match=text):
        restore_tables(table, saved(tmp_path))
    assert restore_tables(table, tmp_path, allow_missing=True) == ["user2"]


def test_a_seed_that_is_no_names_must_be_equal(tmp_path):
    save_tables(Table(TableConfig("a", Segment(1, initializer=Uniform()), seed=7)), tmp_path)
    table = Table(TableConfig("b", Segment(1, initializer=Uniform())))
    table.restore_names = ["a"]
    with pytest.raises(InvalidArgumentError, match=r"expected seed 7 as in .* \(table 'b'\)"):
        restore_tables(table, tmp_path)
    other = Table(TableConfig("b", Segment(1, initializer=Uniform()), seed=7))
    other.restore_names = ["a"]
    assert restore_tables(other, tmp_path) == []


def test_a_single_word_is_no_list_of_names(tmp_path):
    table = renamed()
    table.restore_names = "user"
    with pytest.raises(TypeError, match=r"\[restore_tables\] expected names as a sequence of str"):
        restore_tables(table, saved(tmp_path))
