"""Cuts that read a cursor: which keys changed up to the cut, and their rows as of the cut."""

import itertools
import threading

import pytest
import torch

from monolith.errors import FailedPreconditionError
from monolith.table import Budget, Rows, Segment, TableConfig
from monolith.table.disk import restore_tables, save_tables
from monolith.table.initializers import key_hashes, partitions_of
from monolith.table.optimizers import Adagrad
from monolith.table.rows import RowMemory
from tests.suites.table_base import (
    NOW,
    TableCase,
    assert_equal_rows,
    assert_same_bits,
    column,
    exported,
    keys,
    random_floats,
    random_keys,
    refuses,
)
from tests.suites.table_changes import Followed, every_effect
from tests.suites.table_concurrency import run_together, times_of, until
from tests.suites.table_cuts import CONFIG, NEW, OLD, VALUES, every_write

ALL = torch.cat([OLD, NEW])
READS = {
    "changes": lambda snapshot: snapshot.changes(),
    "lookup_entry": lambda snapshot: snapshot.lookup_entry(keys(1)),
    "lookup": lambda snapshot: snapshot.lookup(keys(1)),
}
every_read = pytest.mark.parametrize(("verb", "call"), READS.items(), ids=list(READS))


def touched(table, cursor="a"):
    """(keys, tombstones) of a cut that is not full, sorted."""
    with table.cut(cursor=cursor) as snapshot:
        read = snapshot.changes()
    assert read.full is False
    return sorted(read.keys.tolist()), sorted(read.tombstones.tolist())


def is_full(table, cursor="a"):
    with table.cut(cursor=cursor) as snapshot:
        return snapshot.changes().full


def apply_delta(rows, snapshot):
    """The rows of the cursor's previous cut, brought to this one by its changes."""
    read = snapshot.changes()
    assert not read.full
    entries = snapshot.lookup_entry(read.keys)
    assert entries.present.all()
    assert not snapshot.lookup_entry(read.tombstones).present.any()
    gone = torch.cat([read.keys, read.tombstones])
    kept = rows.take(~torch.isin(rows.keys, gone))
    joined = Rows(
        torch.cat([kept.keys, entries.rows.keys]),
        torch.cat([kept.times, entries.rows.times]),
        {n: torch.cat([c, entries.rows.columns[n]]) for n, c in kept.columns.items()},
    )
    return joined.take(torch.from_numpy(key_hashes(joined.keys.numpy()).argsort()))


class CutChanges(Followed):
    @every_effect
    def test_effect_of_a_call_before_a_cut(self, call, changed, gone):
        table = self.followed()
        call(table)
        assert touched(table) == (changed, gone)

    @every_effect
    def test_a_call_after_the_cut_is_of_the_next_one(self, call, changed, gone):
        table = self.followed()
        with table.cut(cursor="a") as snapshot:
            call(table)
            assert [len(part) for part in snapshot.changes()[1:]] == [0, 0]
        assert touched(table) == (changed, gone)

    @every_effect
    def test_calls_after_the_cut_do_not_change_its_changes(self, call, changed, gone):
        table = self.followed()
        call(table)
        with table.cut(cursor="a") as snapshot:
            table.erase(keys(1, 2, 9))
            table.assign(keys(*gone), column(*gone))
            read = snapshot.changes()
        assert sorted(read.keys.tolist()) == changed
        assert sorted(read.tombstones.tolist()) == gone

    def test_the_first_cut_of_a_cursor_is_full_and_names_no_key(self):
        table = self.table()
        table.assign(keys(1), column(1))
        with table.cut(cursor="a") as snapshot:
            read = snapshot.changes()
        assert (read.full, len(read.keys), len(read.tombstones)) == (True, 0, 0)
        assert table.cursors() == ["a"]
        assert touched(table) == ([], [])

    def test_a_second_call_returns_the_same(self):
        table = self.followed()
        table.assign(keys(7), column(1))
        with table.cut(cursor="a") as snapshot:
            first = snapshot.changes()
            table.erase(keys(7))
            assert snapshot.changes() is first

    def test_cuts_and_reads_of_a_cursor_follow_each_other(self):
        table = self.followed()
        for i in range(10, 20, 2):
            table.assign(keys(i), column(1))
            assert touched(table) == ([i], [])
            table.assign(keys(i + 1), column(1))
            assert table.changes("a").keys.tolist() == [i + 1]

    def test_keys_of_a_cut_are_each_once_in_order_of_their_hash(self):
        table, numbers = self.followed(), random_keys(2000)
        for part in (numbers, numbers.flip(0), numbers[:500]):
            table.assign(part, torch.ones(len(part), 1))
        table.erase(numbers[1000:])
        with table.cut(cursor="a") as snapshot:
            read = snapshot.changes()
        for part, expected in ((read.keys, numbers[:1000]), (read.tombstones, numbers[1000:])):
            assert sorted(part.tolist()) == sorted(expected.tolist())
            hashes = key_hashes(part.numpy())
            assert (hashes[1:] > hashes[:-1]).all()

    def test_open_cuts_of_one_cursor_have_a_part_each(self):
        table, snapshots = self.followed(), []
        for i in range(4):
            table.assign(keys(i + 10, 30), column(1, i))
            snapshots.append(table.cut(cursor="a"))
        for i in (2, 0, 3, 1):
            assert sorted(snapshots[i].changes().keys.tolist()) == [i + 10, 30]
            snapshots[i].close()
        assert touched(table) == ([], [])

    def test_cuts_of_two_cursors_are_independent(self):
        table = self.followed("a")
        table.assign(keys(1), column(3))
        assert is_full(table, "b")
        table.assign(keys(2), column(3))
        assert touched(table, "a") == ([1, 2], [])
        table.erase(keys(1))
        assert touched(table, "b") == ([2], [1])
        assert touched(table, "a") == ([], [1])

    def test_a_cut_without_a_cursor_reads_none(self):
        table = self.followed()
        table.assign(keys(7), column(1))
        with table.cut():
            assert table.cursors() == ["a"]
        assert touched(table) == ([7], [])

    def test_a_refused_cut_reads_nothing(self):
        table = self.followed()
        table.assign(keys(7), column(1))
        snapshots = [table.cut() for _ in range(4)]
        with pytest.raises(FailedPreconditionError, match="at most 4 open cuts"):
            table.cut(cursor="a")
        snapshots.pop().close()
        assert touched(table) == ([7], [])

    def test_rows_that_go_for_the_budget_after_the_cut_are_changes_of_it(self):
        table, numbers = self.table(budget=Budget(40_000, "evict_oldest")), torch.arange(2000)
        table.changes("a")
        table.assign(numbers, torch.ones(2000, 1), now=1)
        before = exported(table).keys
        with table.cut(cursor="a") as snapshot:
            table.assign(numbers[:200] + 5000, torch.ones(200, 1), now=2)
            assert snapshot.changes().keys.equal(before)

    def test_changes_of_many_rows_while_the_table_grows(self):
        table, numbers = self.followed(), random_keys(3000)
        table.assign(numbers, torch.ones(3000, 1))
        with table.cut(cursor="a") as snapshot:
            table.erase(numbers[::2].contiguous())
            table.lookup_or_insert(torch.arange(20_000))
            assert sorted(snapshot.changes().keys.tolist()) == sorted(numbers.tolist())


class CursorsOfCuts(Followed):
    """Cuts that end before their changes are read, and cursors that start anew."""

    @pytest.mark.parametrize("read", [is_full, lambda table: table.changes("a").full])
    def test_a_cut_that_was_not_read_leaves_its_cursor_behind(self, read):
        table = self.followed()
        table.assign(keys(7), column(1))
        with table.cut(cursor="a"):
            table.assign(keys(8), column(1))
        assert read(table)
        assert touched(table) == ([], [])

    def test_a_cut_that_nobody_holds_leaves_its_cursor_behind(self):
        table = self.followed()
        table.cut(cursor="a")
        assert is_full(table)

    def test_changes_that_did_not_arrive_leave_the_cursor_behind(self):
        table = self.followed()
        snapshot = table.cut(cursor="a")
        snapshot.changes()
        snapshot.close(is_read=False)
        assert is_full(table)

    def test_an_earlier_cut_that_was_not_read_leaves_the_cursor_behind(self):
        table = self.followed()
        first, second = table.cut(cursor="a"), table.cut(cursor="a")
        assert not second.changes().full
        second.close()
        first.close()
        assert is_full(table)

    def test_a_full_read_is_a_read(self):
        table = self.table()
        assert is_full(table)
        assert touched(table) == ([], [])

    def test_a_cut_does_not_bring_a_dropped_cursor_back(self):
        table = self.followed()
        with table.cut(cursor="a"):
            table.drop_cursor("a")
        assert table.cursors() == []

    def test_a_cut_of_a_dropped_cursor_leaves_the_next_of_its_name_alone(self):
        table = self.followed()
        with table.cut(cursor="a"):
            table.drop_cursor("a")
            assert table.changes("a").full
            table.assign(keys(7), column(1))
        assert touched(table) == ([7], [])

    def test_a_cut_has_its_changes_also_if_the_cursor_is_dropped(self):
        table = self.followed()
        table.assign(keys(7), column(1))
        with table.cut(cursor="a") as snapshot:
            table.drop_cursor("a")
            table.assign(keys(8), column(1))
            assert snapshot.changes().keys.tolist() == [7]

    def test_a_cut_after_clear_is_full(self):
        table = self.followed()
        table.clear()
        assert is_full(table)
        assert touched(table) == ([], [])

    def test_a_cut_after_a_restore_is_full(self, tmp_path):
        table = self.followed()
        save_tables(table, tmp_path)
        restore_tables(table, tmp_path)
        assert is_full(table)

    def test_a_cut_of_a_cursor_behind_the_bound_is_full(self):
        table = self.build(TableConfig("user", Segment(1)), changes_bytes=1000)
        assert is_full(table)
        table.assign(random_keys(1000), random_floats(1000, 1))
        assert is_full(table)
        assert touched(table) == ([], [])

    def test_a_cut_whose_changes_the_log_dropped_is_full(self):
        table = self.build(TableConfig("user", Segment(1)), changes_bytes=1000)
        table.changes("a")
        table.assign(keys(7), column(1))
        with table.cut(cursor="a") as snapshot:
            table.assign(random_keys(1000), random_floats(1000, 1))
            assert snapshot.changes().full
        assert is_full(table)

    def test_changes_within_the_bound_wait_for_their_reader(self):
        table = self.build(TableConfig("user", Segment(1)), changes_bytes=100_000)
        table.changes("a")
        for i in range(20):
            table.assign(keys(i), column(1))
            with table.cut(cursor="a") as snapshot:
                table.assign(random_keys(500), random_floats(500, 1))
                table.changes("a")
                assert snapshot.changes().keys.tolist() == [i]


class CutEntries(TableCase):
    def with_old_rows(self):
        table = self.build(CONFIG)
        table.apply_gradients(OLD, VALUES, now=NOW - 5)
        return table

    @every_write
    def test_entries_of_a_cut_are_as_they_were(self, write):
        table = self.with_old_rows()
        before = table.lookup_entry(ALL)
        with table.cut() as snapshot:
            write(table)
            entries = snapshot.lookup_entry(ALL)
        assert_same_bits(entries.present, before.present)
        assert_equal_rows(entries.rows, before.rows)

    @every_write
    def test_entries_come_in_the_order_of_the_keys(self, write):
        table, places = self.with_old_rows(), torch.randint(len(ALL), (2000,))
        with table.cut() as snapshot:
            write(table)
            in_order, entries = (snapshot.lookup_entry(k) for k in (ALL, ALL[places]))
        assert_same_bits(entries.present, in_order.present[places])
        assert_equal_rows(entries.rows, in_order.rows.take(places))

    def test_absent_entries_are_zeros(self):
        table, absent = self.with_old_rows(), NEW[~torch.isin(NEW, OLD)]
        with table.cut() as snapshot:
            table.assign(NEW, VALUES)
            entries = snapshot.lookup_entry(absent)
        assert not entries.present.any()
        assert all((c == 0).all() for c in (entries.rows.times, *entries.rows.columns.values()))

    def test_no_keys_have_no_entries(self):
        with self.with_old_rows().cut() as snapshot:
            assert len(snapshot.lookup_entry(keys()).rows) == 0

    def test_entries_in_one_memory_are_those_in_their_own(self):
        table, memory = self.with_old_rows(), RowMemory()
        with table.cut() as snapshot:
            table.assign(OLD[:150], -VALUES[:150])
            for part in (ALL, OLD[:7], NEW, ALL.flip(0)):
                own, entries = (snapshot.lookup_entry(part, memory=m) for m in (None, memory))
                assert_same_bits(entries.present, own.present)
                assert_equal_rows(entries.rows, own.rows)

    def test_four_open_cuts_have_entries_of_their_own(self):
        table, snapshots = self.table(), []
        for i in range(4):
            table.assign(keys(1, i + 10), column(i, i))
            snapshots.append(table.cut())
        table.erase(keys(1, 10, 11))
        for i, snapshot in enumerate(snapshots):
            entries = snapshot.lookup_entry(keys(1, 10, 11, 12, 13))
            assert entries.present.tolist() == [True, *(j <= i for j in range(4))]
            assert entries.rows.columns["weight/0"][0] == i
            snapshot.close()

    def test_entries_of_many_rows_while_the_table_grows(self):
        table, numbers = self.build(CONFIG), random_keys(6000)
        table.apply_gradients(numbers, random_floats(6000, 4))
        before = exported(table)
        with table.cut() as snapshot:
            table.erase(numbers[::3].contiguous())
            table.assign(numbers[1000:2000], VALUES[:1].repeat(1000, 1))
            table.lookup_or_insert(torch.arange(30_000))
            assert_equal_rows(snapshot.lookup_entry(before.keys).rows, before)

    @pytest.mark.parametrize("precision", ["bf16", "fp16"])
    def test_entries_are_as_stored(self, precision):
        config = TableConfig("user", Segment(4, Adagrad(0.5), precision=precision))
        table = self.build(config)
        table.assign(OLD, VALUES)
        before = table.lookup_entry(ALL)
        with table.cut() as snapshot:
            table.apply_gradients(ALL, torch.ones(600, 4))
            assert_equal_rows(snapshot.lookup_entry(ALL).rows, before.rows)

    def test_entries_of_a_serving_table(self):
        table = self.build(TableConfig("user", Segment(4, precision="fp16"), kind="serving"))
        table.assign(OLD, VALUES)
        before = table.lookup_entry(ALL)
        with table.cut() as snapshot:
            table.assign(ALL, torch.ones(600, 4))
            assert_equal_rows(snapshot.lookup_entry(ALL).rows, before.rows)


class CutDeltas(TableCase):
    """Rows of a cut and the deltas of later ones give the rows of each, while writers run."""

    def test_base_and_deltas_are_the_rows_of_each_cut(self):
        table, numbers, stop = self.build(CONFIG), random_keys(900), threading.Event()
        turns, cut_turns = itertools.count(), []
        table.assign(numbers, torch.zeros(900, 4))
        table.assign(NEW, VALUES, now=NOW + 3000)  # rows that stay
        with table.cut(cursor="a") as snapshot:
            assert snapshot.changes().full
            rows = exported(snapshot)

        def write():
            turn = next(turns)
            part = numbers[turn % 7 :: 3].contiguous()
            table.assign(part, torch.full((len(part), 4), float(turn)), now=NOW + turn % 50)
            table.erase(numbers[turn % 11 :: 5].contiguous())
            if turn % 4 == 0:
                table.evict(NOW + 25 + 30 * 86_400)
            if turn % 8 == 0:
                table.lookup_or_insert(torch.arange(60) + 60 * turn)

        def cut():
            nonlocal rows
            with table.cut(cursor="a") as snapshot:
                rows = apply_delta(rows, snapshot)
                assert_equal_rows(rows, exported(snapshot))
                cut_turns.append(len(rows))

        run_together(times_of(12, stop, cut), until(stop, write), until(stop, write))
        assert len(cut_turns) == 12

    def test_each_changed_key_is_in_one_cut(self):
        table, stop, seen = self.table(), threading.Event(), []
        table.changes("a")
        parts = iter(random_keys(4000).split(20))

        def cut():
            with table.cut(cursor="a") as snapshot:
                seen.extend(snapshot.changes().keys.tolist())

        def write():
            for part in parts:
                table.assign(part, torch.ones(20, 1))
            stop.set()

        run_together(until(stop, cut), write)
        cut()
        assert sorted(seen) == sorted(random_keys(4000).tolist())


class BadCutReads(Followed):
    @pytest.mark.parametrize("cursor", ["", 7, b"a"])
    def test_the_cursor_of_a_cut_is_a_name(self, cursor):
        table = self.table()
        text = f"[Table.cut] expected cursor as a name, got {cursor!r} (table 'user')"
        with refuses(table, TypeError, text):
            table.cut(cursor=cursor)
        assert table.cursors() == []

    def test_changes_of_a_cut_without_a_cursor_are_refused(self):
        table = self.table()
        with table.cut() as snapshot:
            text = (
                "[Snapshot.changes] expected a cut with a cursor, got one without; open it with "
                "cut(cursor=...) (table 'user')"
            )
            with refuses(table, FailedPreconditionError, text):
                snapshot.changes()

    @every_read
    def test_reads_of_a_closed_cut_are_refused(self, verb, call):
        table = self.table()
        with table.cut(cursor="a") as snapshot:
            pass
        text = f"[Snapshot.{verb}] expected an open cut, got a closed one (table 'user')"
        with refuses(table, FailedPreconditionError, text):
            call(snapshot)

    @every_read
    def test_reads_that_meet_the_close_of_their_cut_are_refused(self, monkeypatch, verb, call):
        table = self.followed()
        snapshot = table.cut(cursor="a")
        read = getattr(snapshot._storage, verb)

        def read_and_close(*arguments):
            result = read(*arguments)
            snapshot.close()
            return result

        monkeypatch.setattr(snapshot._storage, verb, read_and_close)
        with pytest.raises(FailedPreconditionError, match="expected an open cut"):
            call(snapshot)
        assert is_full(table)

    @pytest.mark.parametrize("verb", ["lookup_entry", "lookup"])
    def test_rows_of_released_partitions_are_refused(self, verb):
        table = self.table()
        table.assign(OLD, torch.ones(300, 1))
        released = int(partitions_of(OLD.numpy())[0])
        others = OLD[torch.from_numpy(partitions_of(OLD.numpy()) != released)]
        with table.cut() as snapshot:
            snapshot.release([released])
            text = (
                f"[Snapshot.{verb}] expected partitions that were not released, got "
                f"{released} (table 'user')"
            )
            with refuses(table, FailedPreconditionError, text):
                getattr(snapshot, verb)(OLD)
            assert snapshot.lookup_entry(others).present.all()
            assert (snapshot.lookup(others) == 1).all()

    @every_read
    def test_reads_that_meet_a_release_are_refused(self, monkeypatch, verb, call):
        with self.table().cut(cursor="a") as snapshot:
            read = getattr(snapshot._storage, verb)

            def read_and_release(*arguments):
                result = read(*arguments)
                snapshot.release(range(4096))
                return result

            monkeypatch.setattr(snapshot._storage, verb, read_and_release)
            with pytest.raises(FailedPreconditionError, match="that were not released, got"):
                call(snapshot)

    def test_changes_after_a_release_are_those_before_it_or_refused(self):
        table = self.followed()
        table.assign(keys(7), column(1))
        with table.cut(cursor="a") as snapshot:
            snapshot.release([5])
            text = (
                "[Snapshot.changes] expected partitions that were not released, got 5 "
                "(table 'user')"
            )
            with refuses(table, FailedPreconditionError, text):
                snapshot.changes()
        assert is_full(table)
        with table.cut(cursor="a") as snapshot:
            read = snapshot.changes()
            snapshot.release(range(4096))
            assert snapshot.changes() is read

    @pytest.mark.parametrize("verb", ["lookup_entry", "lookup"])
    def test_rows_of_other_tensors_are_refused(self, verb):
        table = self.table()
        with table.cut() as snapshot:
            text = (
                f"[Table.{verb}] expected keys of dtype int64, got int32 (table 'user'); "
                "cast with .to(torch.int64)"
            )
            with refuses(table, TypeError, text):
                getattr(snapshot, verb)(keys(1).int())

    def test_a_lookup_at_a_negative_step_is_refused(self):
        table = self.table()
        with table.cut() as snapshot:
            text = "[Table.lookup] expected step in [0, 2**63), got -1 (table 'user')"
            with refuses(table, ValueError, text):
                snapshot.lookup(keys(1), step=-1)

    def test_reads_of_a_closed_table_are_refused(self):
        table = self.table()
        snapshot = table.cut(cursor="a")
        table.close()
        text = r"\[Table\.{}\] expected an open table, got a closed one \(table 'user'\)"
        for verb, call in {
            "cut": lambda: table.cut(cursor="a"),
            "changes": snapshot.changes,
            "lookup_entry": lambda: snapshot.lookup_entry(keys(1)),
            "lookup(_entry)?": lambda: snapshot.lookup(keys(1)),
        }.items():
            with pytest.raises(FailedPreconditionError, match=text.format(verb)):
                call()
        snapshot.close()

    def test_a_cut_that_fails_half_way_drops_its_cursor(self, monkeypatch):
        table = self.followed()
        opened = table._open_cut

        def open_and_fail(cursor):
            opened(cursor)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(table, "_open_cut", open_and_fail)
            with pytest.raises(KeyboardInterrupt):
                table.cut(cursor="a")
        assert table.cursors() == []
