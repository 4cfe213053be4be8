"""Rows on the quick way of a load: as `import_rows` would have left them."""

import pytest
import torch

from monolith.table import Budget, Segment, Table, TableConfig
from monolith.table.optimizers import Adagrad
from monolith.table.reference import ReferenceTable
from monolith.table.replay import Record
from monolith.table.rows import Rows

CONFIG = TableConfig("user", Segment(3, optimizer=Adagrad(0.1)))


def rows_of(n, config=CONFIG):
    source = Table(config)
    keys = torch.arange(n) * 7919 - 5
    source.assign(keys, torch.arange(3.0 * n).reshape(n, 3))
    (rows,) = source.export(chunk_rows=n + 1)
    return rows


def content(table):
    found = [(rows.keys, rows.times, *rows.columns.values()) for rows in table.export()]
    return [torch.cat(columns).tolist() for columns in zip(*found, strict=True)]


@pytest.mark.parametrize("expected", [0, 100, 20_000, 1_000_000])
def test_filled_rows_are_those_that_import_rows_leaves(expected):
    filled, imported, rows = Table(CONFIG), Table(CONFIG), rows_of(20_000)
    filled._expect_rows(expected)
    filled._fill_rows(rows)
    imported.import_rows(rows)
    assert content(filled) == content(imported)
    assert len(filled) == 20_000
    assert filled.latest_time == imported.latest_time


def test_an_index_that_expects_the_rows_is_not_made_again():
    table = Table(CONFIG)
    table._expect_rows(20_000)
    table._fill_rows(rows_of(20_000))
    assert table.stats()["num_splits"] == 0


def test_a_table_with_rows_keeps_them_whatever_is_expected():
    table = Table(CONFIG)
    table.assign(torch.tensor([7]), torch.ones(1, 3))
    table._expect_rows(1_000_000)
    assert table.lookup(torch.tensor([7])).tolist() == [[1.0, 1.0, 1.0]]


def test_the_last_of_equal_keys_counts():
    rows = rows_of(2)
    twice = Rows(rows.keys[[0, 0]], rows.times, rows.columns)
    table = Table(CONFIG)
    table._fill_rows(twice)
    assert len(table) == 1
    assert table.lookup(rows.keys[:1]).tolist() == rows.columns["weight/0"][1:].tolist()


def test_a_cursor_sees_filled_rows():
    table, rows = Table(CONFIG), rows_of(1000)
    table.changes("serving")
    table._fill_rows(rows)
    assert sorted(table.changes("serving").keys.tolist()) == sorted(rows.keys.tolist())


def test_a_budget_is_kept():
    config = TableConfig("user", Segment(3), budget=Budget(100_000, policy="refuse"))
    table = Table(config)
    table._expect_rows(20_000)
    table._fill_rows(rows_of(20_000, TableConfig("user", Segment(3))))
    assert len(table) + table.stats()["num_refused"] == 20_000
    assert table.memory_report()["total_bytes"] <= 100_000


def test_a_record_has_filled_rows():
    record, rows = Record(), rows_of(10)
    table, replayed = Table(CONFIG, record=record), ReferenceTable(CONFIG)
    table._fill_rows(rows)
    record.replay(replayed)
    assert content(replayed) == content(table)


def test_an_open_cut_has_no_filled_rows():
    table = Table(CONFIG)
    with table.cut() as cut:
        table._fill_rows(rows_of(10))
        assert len(table) == 10
        assert [len(rows) for rows in cut.export()] == []


def test_rows_before_the_end_of_memory_are_counted():
    table = Table(CONFIG)
    table._core.set_memory_limit(200_000)
    with pytest.raises(MemoryError):
        table._fill_rows(rows_of(20_000))
    assert 0 < len(table) < 20_000
    assert len(content(table)[0]) == len(table)


def test_an_index_without_memory_leaves_the_table_as_it_was():
    table = Table(CONFIG)
    table._core.set_memory_limit(200_000)
    with pytest.raises(MemoryError):
        table._expect_rows(10_000_000)
    table._fill_rows(rows_of(100))
    assert len(table) == 100
