"""What the native table's cuts and log hold, and when they let it go."""

import functools
import gc

import pytest
import torch

from monolith import _native
from monolith.errors import FailedPreconditionError
from monolith.table import Expiry, Segment, Table, TableConfig
from monolith.table.reference import ReferenceTable
from monolith.table.replay import Record
from monolith.table.rows import RowMemory
from tests.suites.table_base import assert_same_rows, column, keys, random_floats, random_keys
from tests.suites.table_concurrency import run_together
from tests.suites.table_cuts import cuts_beside

CONFIG = TableConfig("user", Segment(4))
NUMBERS, VALUES = random_keys(1000), random_floats(1000, 4)


def filled():
    table = Table(CONFIG)
    table.assign(NUMBERS, VALUES)
    return table


def cut_bytes(table):
    return table.memory_report()["cut_bytes"]


def test_a_cut_takes_memory_only_for_rows_that_change():
    table = filled()
    with table.cut():
        assert cut_bytes(table) == 0
        table.lookup_or_insert(NUMBERS)
        table.lookup_or_insert(random_keys(500, seed=1))
        assert cut_bytes(table) == 0
        table.assign(NUMBERS, -VALUES)
        held = cut_bytes(table)
        assert held >= 1000 * 16
        table.assign(NUMBERS, VALUES)
        assert cut_bytes(table) == held


def test_an_eviction_is_wholly_before_or_after_a_cut():
    config = TableConfig("user", Segment(1), expiry=Expiry(1))
    table, n = Table(config), 400_000  # more than one slice
    numbers, values = torch.arange(n), torch.ones(n, 1)

    def write(_):
        table.assign(numbers, values, now=1)
        assert table.evict(86_401) == n

    for snapshot in cuts_beside(table, write, 40):
        assert len(snapshot) in (0, n)


def test_a_release_gives_memory_back():
    table = filled()
    with table.cut() as snapshot:
        table.assign(NUMBERS, -VALUES)
        held = cut_bytes(table)
        snapshot.release(range(2048))
        assert 0.3 * held < cut_bytes(table) < 0.7 * held


def test_cuts_and_log_stand_beside_the_total():
    table, twin = filled(), filled()
    table.changes("a")
    with table.cut():
        table.assign(NUMBERS, -VALUES)
        report = table.memory_report()
        assert report["log_bytes"] >= 8000
        assert report["total_bytes"] == twin.memory_report()["total_bytes"]


def test_a_closed_cut_that_is_still_referred_to_holds_nothing():
    table = filled()
    with table.cut() as snapshot:
        table.assign(NUMBERS, -VALUES)
    assert snapshot._storage._cut.num_bytes == 0


def test_a_cut_may_outlive_its_table():
    table = filled()
    snapshot = table.cut()
    table.assign(NUMBERS, -VALUES)
    table.close()
    del table
    gc.collect()
    assert len(snapshot) == 1000
    snapshot.close()


def test_the_log_keeps_to_its_bound():
    table = Table(CONFIG, changes_bytes=10_000)
    table.changes("a")
    for i in range(100):
        table.assign(NUMBERS[10 * i : 10 * i + 10], VALUES[:10])
        assert table.memory_report()["log_bytes"] <= 10_000


def test_the_memory_of_notes_that_were_read_is_kept_for_the_next_ones():
    table = filled()
    table.changes("a")
    table.assign(NUMBERS, VALUES)
    assert len(table.changes("a").keys) == 1000
    report = table.memory_report()
    assert report["log_bytes"] == 0
    assert report["spare_log_bytes"] >= 8000
    table.assign(NUMBERS, VALUES)
    kept = table.memory_report()
    assert kept["log_bytes"] + kept["spare_log_bytes"] == report["spare_log_bytes"]


def test_the_log_keeps_the_notes_of_a_cut_until_they_are_read():
    table = filled()
    table.changes("a")
    table.assign(NUMBERS, VALUES)
    with table.cut(cursor="a") as snapshot:
        assert table.memory_report()["log_bytes"] >= 8000
        assert len(snapshot.changes().keys) == 1000
        assert table.memory_report()["log_bytes"] == 0


def test_a_cut_that_was_not_read_holds_no_notes():
    table = filled()
    table.changes("a")
    table.assign(NUMBERS, VALUES)
    with table.cut(cursor="a"):
        table.drop_cursor("a")
        assert table.memory_report()["log_bytes"] >= 8000
    report = table.memory_report()
    assert (report["log_bytes"], report["spare_log_bytes"]) == (0, 0)


def test_cuts_of_a_cursor_nobody_closes_keep_the_log_to_its_bound():
    table = Table(CONFIG, changes_bytes=10_000)
    table.changes("a")
    snapshots = []
    for i in range(4):
        table.assign(NUMBERS[250 * i : 250 * i + 250], VALUES[:250])
        snapshots.append(table.cut(cursor="a"))
    table.assign(NUMBERS, VALUES)
    assert table.memory_report()["log_bytes"] <= 10_000
    assert [snapshot.changes().full for snapshot in snapshots][:2] == [True, True]


def test_entries_of_a_cut_are_written_into_its_memory():
    table, memory = filled(), RowMemory()
    with table.cut() as snapshot:
        first = snapshot.lookup_entry(NUMBERS, memory=memory).rows
        second = snapshot.lookup_entry(NUMBERS[:10].contiguous(), memory=memory).rows
    assert first.keys.data_ptr() == second.keys.data_ptr()


def test_the_last_cursor_takes_the_spare_memory_along():
    table = filled()
    table.changes("a")
    table.assign(NUMBERS, VALUES)
    table.changes("a")
    table.drop_cursor("a")
    assert table.memory_report()["spare_log_bytes"] == 0


def test_without_cursors_nothing_is_logged():
    table = filled()
    table.changes("a")
    table.drop_cursor("a")
    table.assign(NUMBERS, -VALUES)
    assert table.memory_report()["log_bytes"] == 0


def test_a_clear_beside_a_read_is_not_missed():
    table, numbers = Table(TableConfig("user", Segment(1))), torch.arange(50_000)
    for _ in range(20):
        table.changes("a")
        table.lookup_or_insert(numbers)
        read, _ = run_together(lambda: table.changes("a"), table.clear)
        assert read.full or table.changes("a").full


def test_a_cut_that_outlives_all_generations_is_named(monkeypatch):
    late = functools.partial(_native.Table, first_generation=(1 << 23) - 2)
    monkeypatch.setattr("monolith.table.native._native.Table", late)
    table = filled()
    snapshot = table.cut()
    with pytest.raises(FailedPreconditionError) as caught:
        table.cut(cursor="b")
    assert table.cursors() == []
    assert str(caught.value) == (
        "[Table.cut] expected open cuts to end within 8 million cuts and reads of changes, "
        "got one that did not; close it (table 'user')"
    )
    assert [table.changes("a").full for _ in range(3)] == [True, True, True]
    snapshot.close()
    assert [table.changes("a").full for _ in range(2)] == [True, False]
    table.cut().close()


def test_a_read_that_fails_half_way_is_full_the_next_time(monkeypatch):
    table = filled()
    table.changes("a")
    table.assign(NUMBERS, -VALUES)
    with monkeypatch.context() as patch:
        patch.setattr("monolith.table.native.int64_rows", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            table.changes("a")
    assert table.changes("a").full
    assert not table.changes("a").full


def test_changes_of_a_cut_that_fail_half_way_can_be_read_again(monkeypatch):
    table = filled()
    table.changes("a")
    table.assign(NUMBERS, -VALUES)
    with table.cut(cursor="a") as snapshot:
        with monkeypatch.context() as patch:
            patch.setattr("monolith.table.native.int64_rows", raise_interrupt)
            with pytest.raises(KeyboardInterrupt):
                snapshot.changes()
        assert snapshot.changes().full  # the log has let the keys go
    assert not table.changes("a").full


def test_a_cut_whose_changes_failed_leaves_its_cursor_behind(monkeypatch):
    table = filled()
    table.changes("a")
    with monkeypatch.context() as patch, table.cut(cursor="a") as snapshot:
        patch.setattr("monolith.table.native.int64_rows", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            snapshot.changes()
    assert table.changes("a").full


def raise_interrupt(*arguments):
    raise KeyboardInterrupt


@pytest.mark.thorough
def test_a_bound_that_is_passed_beside_a_read_is_not_missed():
    table = Table(TableConfig("user", Segment(1)), changes_bytes=1 << 20)
    numbers, others = torch.arange(50_000), torch.arange(140_000) + 50_000
    for _ in range(20):
        table.changes("a")
        table.lookup_or_insert(numbers)
        read, _ = run_together(lambda: table.changes("a"), lambda: table.lookup_or_insert(others))
        following = table.changes("a")
        seen = len(read.keys) + len(following.keys)
        assert read.full or following.full or seen == 190_000
        table.erase(torch.arange(190_000))


def test_a_record_is_of_one_table():
    record = Record()
    Table(CONFIG, record=record)
    with pytest.raises(ValueError, match="record of its own") as caught:
        Table(CONFIG, record=record)
    text = "[Record] expected a record of its own for each table, got a used one"
    assert str(caught.value) == text


def test_a_record_without_a_table_is_empty():
    assert len(Record()) == 0


def test_a_record_keeps_the_values_of_the_call():
    record = Record()
    table, reference = Table(CONFIG, record=record), ReferenceTable(CONFIG)
    values = VALUES.clone()
    table.assign(NUMBERS, values)
    values.zero_()
    record.replay(reference)
    assert len(record) == 1000
    assert_same_rows(reference, table)


def test_a_part_of_a_record_is_replayed():
    record, config = Record(), TableConfig("user", Segment(1))
    table, reference = Table(config, record=record), ReferenceTable(config)
    for i in range(4):
        table.assign(keys(i), column(i))
    record.replay(reference, 1, 3)
    assert reference.contains(keys(0, 1, 2, 3)).tolist() == [False, True, True, False]
