"""Vectors of the reference system about save and restore, and random runs with reloads."""

import random

import pytest
import torch

from monolith.table import Expiry, MinCount, SlidingFilter, Table
from monolith.table.disk import load_table, restore_tables, save_tables
from monolith.table.reference import ReferenceTable
from tests.suites.table_admission import in_partition, step
from tests.suites.table_base import NOW, column, keys, random_floats, read
from tests.suites.table_machine import CONFIGS, POOL
from tests.table.disk.cases import assert_same_table, make, ones, plain, sliding

DAY = 86_400


def test_26000_keys_of_ten_shards_restored_by_ten_shards(tmp_path):
    table = make(plain())
    table.assign(torch.arange(26_000), torch.arange(26_000.0).reshape(-1, 1))
    parts = [[p for p in range(4096) if p // 64 % 10 == i] for i in range(10)]
    for i, part in enumerate(parts):
        save_tables(table, tmp_path / str(i), partitions=part, num_threads=2)
    shards = [load_table(tmp_path / str(i), partitions=parts[i]) for i in range(10)]
    assert sum(map(len, shards)) == 26_000
    values = sum(shard.lookup(torch.arange(26_000), missing="zeros") for shard in shards)
    assert torch.equal(values[:, 0], torch.arange(26_000.0))


@pytest.mark.parametrize("rule", [MinCount(2), SlidingFilter(2)])
def test_filter_and_table_are_restored_together(tmp_path, rule):
    table = make(plain(admission=rule))

    def add():
        table.assign_add(keys(7), column(1))
        return read(table, 7)[0]

    assert add() == 0
    save_tables(table, tmp_path)
    assert [add(), add()] == [0, 1]
    for _ in range(2):
        restore_tables(table, tmp_path)
        assert read(table, 7) == [0]
        assert [add(), add()] == [0, 1]


@pytest.mark.parametrize(
    ("days", "times", "kept"),
    [
        (1, (10_000_000 - DAY - 1, 10_000_000 - DAY + 1, 10_000_000), [0, 2, 3]),
        (1, (10_000_000 - DAY, 10_000_000 - DAY + 1, 10_000_000), [0, 2, 3]),
        (0, (9_000_000, 10_000_000, 10_000_000), [0, 0, 0]),
        (1, (10_000_000,) * 3, [1, 2, 3]),
        (1, (0, 0, 0), [1, 2, 3]),
    ],
)
def test_rows_that_expired_by_the_largest_time_are_not_saved(tmp_path, days, times, kept):
    table = Table(plain(expiry=Expiry(days)), clock=lambda: 10_000_000)
    for i, time in enumerate(times):
        table.assign(keys(i), column(i + 1), now=time)
    save_tables(table, tmp_path)
    assert read(load_table(tmp_path), 0, 1, 2) == kept
    assert read(table, 0, 1, 2) == [1, 2, 3]
    restore_tables(table, tmp_path)
    assert read(table, 0, 1, 2) == kept


def test_expiry_of_slots_at_save(tmp_path):
    table = Table(plain(expiry=Expiry(3600, {1: 0, 2: 1})), clock=lambda: 100)
    table.assign(keys(1 << 48, 2 << 48), column(1, 2), now=100)
    save_tables(table, tmp_path)
    assert read(load_table(tmp_path), 1 << 48, 2 << 48) == [0, 2]


def test_the_largest_time_outlives_the_row_that_had_it(tmp_path):
    table = Table(plain(expiry=Expiry(1)), clock=lambda: 10 * DAY)
    table.assign(keys(1, 2), column(1, 2), now=9 * DAY)
    table.assign(keys(3), column(3))
    table.erase(keys(3))
    save_tables(table, tmp_path)
    loaded = load_table(tmp_path)
    assert loaded.latest_time == 10 * DAY
    assert len(loaded) == 0


def test_tables_with_similar_names_are_not_confused(tmp_path):
    for name, value in (("table1", 1), ("table10", 10)):
        table = make(plain(name=name))
        table.assign(keys(5), column(value))
        save_tables(table, tmp_path / name)
    for name, value in (("table1", 1), ("table10", 10)):
        assert read(load_table(tmp_path / name), 5) == [value]


def test_filters_of_many_splits_go_on_after_a_restore(tmp_path):
    a, b, c = in_partition(3, 3).tolist()
    table = make(sliding(2, capacity=1, split_num=100))

    def run(target):
        step(target, a, b, c, a)
        return target.contains(keys(a, b, c)).tolist()

    assert run(table) == [False, False, False]
    assert run(table) == [True, False, False]
    save_tables(table, tmp_path)
    loaded = load_table(tmp_path)
    assert_same_table(loaded, table)
    for target in (loaded, table):
        assert run(target) == run(target) == [True, True, True]


def test_a_ring_of_filters_is_restored_with_its_head_and_two_elements_per_split(tmp_path):
    a, b, c = in_partition(3, 3).tolist()
    table = make(sliding(4, capacity=1, split_num=100))
    for number in (a, b, c, a) * 2:  # one call for each: the reference counts occurrences apart
        assert step(table, number).num_inserted == 0
    save_tables(table, tmp_path)
    loaded = load_table(tmp_path, clock=lambda: NOW)
    columns = loaded.export_candidates()
    splits = columns["split"].tolist()
    assert splits == [-1, 0, 0, 1, 1, 2, 2, 3, 3]
    assert (columns["cell"][0], columns["value"][0]) == (4, 4)  # head and its increments
    for each in (loaded, table):
        assert [step(each, number).num_inserted for number in (a, b, c)] == [1, 0, 0]
    assert_same_table(loaded, table)


def test_restored_filter_counts_on_from_where_it_was(tmp_path):
    table = make(sliding(100))
    for i in range(100):
        step(table, 1)
        if i % 10 == 0:
            save_tables(table, tmp_path)
            table = load_table(tmp_path, clock=lambda: NOW)
    assert step(table, 1).num_inserted == 1


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_random_updates_with_reloads_equal_the_reference_without(tmp_path, config):
    numbers = random.Random(1)
    table, reference = make(config), ReferenceTable(config, clock=lambda: NOW)
    for i in range(60):
        batch = keys(*numbers.choices(POOL, k=8))
        values = random_floats(8, config.dim, i)
        now, verb = NOW - numbers.randrange(200_000), numbers.choice(["apply", "assign", "erase"])
        for each in (table, reference):
            if verb == "apply":
                each.apply_gradients(batch, values, step=i, now=now)
            elif verb == "assign":
                each.assign(batch, values, now=now)
            else:
                each.erase(batch[:2])
        if i % 12 == 11:
            reference.evict()
            save_tables(table, tmp_path)
            table = load_table(tmp_path, clock=lambda: NOW)
    for each in (table, reference):
        each.evict()
    assert_same_table(table, reference)


def test_an_update_after_a_load_rounds_like_the_next_call(tmp_path):
    config = CONFIGS["bf16-beside-fp32"]
    table = make(config)
    table.assign(keys(1), ones(1, config.dim))
    save_tables(table, tmp_path)
    loaded = load_table(tmp_path, clock=lambda: NOW)
    for each in (table, loaded):
        each.assign_add(keys(1), torch.full((1, config.dim), 0.001))
    assert_same_table(loaded, table)
