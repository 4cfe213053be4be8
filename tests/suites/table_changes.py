"""The touched log: which keys changed or went since a cursor's last read."""

import pytest
import torch

from monolith.errors import FailedPreconditionError
from monolith.table import Budget, Expiry, MinCount, Rows, Segment, TableConfig
from monolith.table.disk import load_table, restore_tables, save_tables
from monolith.table.initializers import key_hashes
from tests.suites.table_base import (
    NOW,
    TableCase,
    column,
    keys,
    random_floats,
    random_keys,
    refuses,
)


def touched(table, cursor="a"):
    """(keys, tombstones) of a read that is not full, sorted."""
    read = table.changes(cursor)
    assert read.full is False
    assert read.keys.dtype == read.tombstones.dtype == torch.int64
    return sorted(read.keys.tolist()), sorted(read.tombstones.tolist())


def rows_of(*numbers):
    n = len(numbers)
    return Rows(keys(*numbers), torch.full((n,), 5), {"weight/0": torch.ones(n, 1)})


# What a call does to the log of a table that holds 1 and 2: (call, keys, tombstones).
EFFECTS = {
    "lookup": (lambda table: table.lookup(keys(1, 9)), [], []),
    "contains": (lambda table: table.contains(keys(1, 9)), [], []),
    "lookup_entry": (lambda table: table.lookup_entry(keys(1, 9)), [], []),
    "export": (lambda table: list(table.export()), [], []),
    "lookup_or_insert": (lambda table: table.lookup_or_insert(keys(1, 9)), [9], []),
    "assign": (lambda table: table.assign(keys(1, 9, 1), column(1, 1, 1)), [1, 9], []),
    "assign_add": (lambda table: table.assign_add(keys(1, 9), column(1, 1)), [1, 9], []),
    "apply": (lambda table: table.apply_gradients(keys(9, 1, 1), column(1, 1, 1)), [1, 9], []),
    "apply_rate_0": (
        lambda table: table.apply_gradients(keys(1), column(1), learning_rates=[0.0]),
        [1],
        [],
    ),
    "apply_skipped": (
        lambda table: table.apply_gradients(keys(1, 2, 9), column(1, float("nan"), float("inf"))),
        [1],
        [],
    ),
    "reinitialize": (lambda table: table.reinitialize(keys(1, 9)), [1, 9], []),
    "import_rows": (lambda table: table.import_rows(rows_of(1, 9)), [1, 9], []),
    "erase": (lambda table: table.erase(keys(1, 9)), [], [1]),
    "evict": (lambda table: table.evict(NOW + 86_400), [], [1, 2]),
    "evict_nothing": (lambda table: table.evict(NOW), [], []),
    "erase_and_insert": (
        lambda table: (table.erase(keys(1)), table.lookup_or_insert(keys(1))),
        [1],
        [],
    ),
    "insert_and_erase": (
        lambda table: (table.assign(keys(9), column(1)), table.erase(keys(9))),
        [],
        [9],
    ),
    "nothing": (lambda table: table.assign(keys(), column()), [], []),
}
every_effect = pytest.mark.parametrize(
    ("call", "changed", "gone"), EFFECTS.values(), ids=list(EFFECTS)
)


class Followed(TableCase):
    def followed(self, cursor="a", **options):
        """A table that holds 1 and 2, and a cursor that knows it."""
        table = self.table(non_finite="skip", expiry=Expiry(1), **options)
        table.assign(keys(1, 2), column(1, 2))
        assert table.changes(cursor).full
        return table


class Changes(Followed):
    @every_effect
    def test_effect_of_a_call(self, call, changed, gone):
        table = self.followed()
        call(table)
        assert touched(table) == (changed, gone)

    @every_effect
    def test_effect_of_a_call_beside_a_cut(self, call, changed, gone):
        table = self.followed()
        with table.cut():
            call(table)
        assert touched(table) == (changed, gone)

    def test_the_first_read_is_full_and_names_no_key(self):
        table = self.table()
        table.assign(keys(1), column(1))
        read = table.changes("a")
        assert read.full is True
        assert (len(read.keys), len(read.tombstones)) == (0, 0)

    def test_a_change_is_read_once(self):
        table = self.followed()
        table.assign(keys(1), column(3))
        assert touched(table) == ([1], [])
        assert touched(table) == ([], [])
        table.assign(keys(1), column(4))
        assert touched(table) == ([1], [])

    def test_a_change_before_and_after_a_cut_is_one(self):
        table = self.followed()
        table.assign(keys(1), column(3))
        with table.cut():
            table.assign(keys(1), column(4))
        assert table.changes("a").keys.tolist() == [1]

    def test_a_tombstone_is_read_once(self):
        table = self.followed()
        table.erase(keys(1))
        assert touched(table) == ([], [1])
        table.erase(keys(1))
        assert touched(table) == ([], [])

    def test_keys_are_read_each_once_in_order_of_their_hash(self):
        table, numbers = self.followed(), random_keys(2000)
        for part in (numbers, numbers.flip(0), numbers[:500]):
            table.assign(part, torch.ones(len(part), 1))
        table.erase(numbers[1000:])
        read = table.changes("a")
        for found, expected in ((read.keys, numbers[:1000]), (read.tombstones, numbers[1000:])):
            assert sorted(found.tolist()) == sorted(expected.tolist())
            hashes = key_hashes(found.numpy())
            assert (hashes[1:] > hashes[:-1]).all()

    def test_two_cursors_are_independent(self):
        table = self.followed("a")
        table.assign(keys(1), column(3))
        assert table.changes("b").full
        table.assign(keys(2), column(3))
        assert touched(table, "a") == ([1, 2], [])
        table.erase(keys(1))
        assert touched(table, "b") == ([2], [1])
        assert touched(table, "a") == ([], [1])

    def test_a_refused_key_is_not_touched(self):
        table = self.table(admission=MinCount(1))
        table.changes("a")
        table.assign(keys(9), column(1))
        assert touched(table) == ([], [])
        table.assign(keys(9), column(1))
        assert touched(table) == ([9], [])

    def test_candidates_are_not_touched(self):
        table = self.table(admission=MinCount(5))
        table.changes("a")
        table.import_candidates({"key": keys(1), "count": keys(2), "time": keys(3)})
        assert touched(table) == ([], [])

    def test_a_refused_call_touches_nothing(self):
        table = self.table()
        table.changes("a")
        with pytest.raises(ValueError, match="expected finite gradients"):
            table.apply_gradients(keys(1, 2), column(1, float("nan")))
        assert touched(table) == ([], [])

    def test_keys_that_the_budget_refuses_are_not_touched(self):
        table = self.table(budget=Budget(10_000, "refuse"))
        table.changes("a")
        table.assign(torch.arange(500), torch.ones(500, 1))
        present = torch.arange(500)[table.contains(torch.arange(500))].tolist()
        assert 0 < len(present) < 500
        assert touched(table) == (present, [])

    @pytest.mark.parametrize("policy", ["evict_oldest", "evict_least_frequent"])
    def test_rows_that_go_for_the_budget_leave_tombstones(self, policy):
        table, numbers = self.table(budget=Budget(20_000, policy)), torch.arange(1000)
        table.assign(numbers, torch.ones(1000, 1))
        table.changes("a")
        before = numbers[table.contains(numbers)]
        table.assign(numbers[:50] + 1000, torch.ones(50, 1))
        gone = before[~table.contains(before)].tolist()
        assert len(gone) > 0
        assert touched(table) == (list(range(1000, 1050)), gone)

    def test_a_serving_row_of_zeros_leaves_a_tombstone(self):
        table = self.build(TableConfig("user", Segment(1), kind="serving", skip_zero=True))
        table.assign(keys(1, 2), column(1, 2))
        table.changes("a")
        table.assign(keys(1, 2), column(0, 3))
        assert touched(table) == ([2], [1])

    def test_a_cursor_that_nobody_reads_leaves_the_others_alone(self):
        table = self.followed("idle")
        table.changes("a")
        for i in range(5):
            table.assign(keys(i), column(1))
            assert touched(table) == ([i], [])
        assert touched(table, "idle") == ([0, 1, 2, 3, 4], [])

    @pytest.mark.parametrize("changes_bytes", [0, 1000])
    def test_a_cursor_behind_the_bound_starts_anew(self, changes_bytes):
        config = TableConfig("user", Segment(1))
        table = self.build(config, changes_bytes=changes_bytes)
        table.changes("a")
        table.assign(random_keys(1000), random_floats(1000, 1))
        assert table.changes("a").full
        assert touched(table) == ([], [])

    def test_few_changes_stay_below_a_small_bound(self):
        table = self.build(TableConfig("user", Segment(1)), changes_bytes=1000)
        table.changes("a")
        for i in range(100):
            table.assign(keys(i), column(1))
            assert touched(table) == ([i], [])

    def test_only_the_cursor_behind_the_bound_starts_anew(self):
        table = self.build(TableConfig("user", Segment(1)), changes_bytes=1000)
        table.changes("a")
        table.changes("b")
        for i in range(200):
            table.assign(keys(i), column(1))
            assert touched(table) == ([i], [])
        assert table.changes("b").full

    def test_clear_sends_every_cursor_back_to_the_start(self):
        table = self.followed()
        table.changes("b")
        table.clear()
        table.assign(keys(7), column(1))
        assert table.changes("a").full
        assert table.changes("b").full
        assert touched(table) == ([], [])

    def test_clear_of_an_empty_table_sends_cursors_back_too(self):
        table = self.table()
        table.changes("a")
        table.clear()
        assert table.changes("a").full

    def test_a_restore_sends_every_cursor_back_to_the_start(self, tmp_path):
        table = self.followed()
        save_tables(table, tmp_path)
        table.changes("b")
        restore_tables(table, tmp_path)
        assert table.changes("a").full
        assert table.changes("b").full
        assert touched(table) == ([], [])

    def test_a_loaded_table_has_no_cursors(self, tmp_path):
        table = self.followed()
        save_tables(table, tmp_path)
        with load_table(tmp_path) as loaded:
            assert loaded.cursors() == []
            assert loaded.changes("a").full

    def test_cursors_are_listed_and_dropped(self):
        table = self.table()
        for cursor in ("b", "a", "serving/1"):
            table.changes(cursor)
        assert table.cursors() == ["a", "b", "serving/1"]
        table.drop_cursor("b")
        assert table.cursors() == ["a", "serving/1"]

    def test_a_dropped_cursor_that_comes_back_is_new(self):
        table = self.followed()
        table.drop_cursor("a")
        table.assign(keys(9), column(1))
        assert table.changes("a").full
        assert touched(table) == ([], [])

    def test_a_log_that_everybody_read_has_no_bytes(self):
        table = self.followed()
        table.assign(keys(1), column(3))
        table.changes("a")
        assert table.memory_report()["log_bytes"] == 0


class BadCursors(TableCase):
    @pytest.mark.parametrize("verb", ["changes", "drop_cursor"])
    @pytest.mark.parametrize("cursor", ["", 7, None, b"a"])
    def test_a_cursor_is_a_name(self, verb, cursor):
        table = self.table()
        text = f"[Table.{verb}] expected cursor as a name, got {cursor!r} (table 'user')"
        with refuses(table, TypeError, text):
            getattr(table, verb)(cursor)
        assert table.cursors() == []

    def test_a_cursor_that_is_not_there_cannot_be_dropped(self):
        table = self.table()
        table.changes("a")
        text = "[Table.drop_cursor] expected one of the cursors ['a'], got 'b' (table 'user')"
        with refuses(table, FailedPreconditionError, text):
            table.drop_cursor("b")

    @pytest.mark.parametrize(
        ("changes_bytes", "error", "text"),
        [
            (-1, ValueError, "expected changes_bytes in [0, 2**63), got -1"),
            (1 << 63, ValueError, f"expected changes_bytes in [0, 2**63), got {1 << 63}"),
            (1.5, TypeError, "expected changes_bytes as an integer, got 1.5"),
        ],
    )
    def test_the_bound_of_the_log_is_a_number_of_bytes(self, changes_bytes, error, text):
        with pytest.raises(error) as caught:
            self.build(TableConfig("user", Segment(1)), changes_bytes=changes_bytes)
        assert str(caught.value) == f"[Table] {text} (table 'user')"

    @pytest.mark.parametrize(
        ("verb", "arguments"), [("changes", ["a"]), ("drop_cursor", ["a"]), ("cursors", [])]
    )
    def test_the_log_of_a_closed_table_is_refused(self, verb, arguments):
        table = self.table()
        table.changes("a")
        table.close()
        text = rf"\[Table\.{verb}\] expected an open table, got a closed one \(table 'user'\)"
        with pytest.raises(FailedPreconditionError, match=text):
            getattr(table, verb)(*arguments)
