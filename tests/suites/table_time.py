"""Times of rows, the clock, counters, and the life of a table."""

import pytest

from monolith.errors import FailedPreconditionError
from monolith.table import Rows
from monolith.table.optimizers import Adagrad
from tests.suites.table_base import NOW, TableCase, column, keys, times
from tests.suites.table_verbs import WRITERS

MAX_TIME = (1 << 32) - 1


class Times(TableCase):
    @pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
    def test_time_of_a_call_without_now_is_the_clocks(self, write):
        table = self.table(clock=lambda: 4321)
        write(table, keys(1))
        assert times(table, 1) == [4321]

    @pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
    def test_new_row_has_the_time_of_the_call(self, write):
        table = self.table()
        write(table, keys(1), now=100)
        assert times(table, 1) == [100]

    @pytest.mark.parametrize("verb", ["assign", "assign_add", "apply_gradients"])
    def test_update_keeps_the_later_time(self, verb):
        table = self.table()
        for now, expected in ((100, 100), (50, 100), (200, 200)):
            WRITERS[verb](table, keys(1), now=now)
            assert times(table, 1) == [expected]

    def test_reinitialize_sets_the_time_of_the_call(self):
        table = self.table()
        for now in (100, 50):
            table.reinitialize(keys(1), now=now)
            assert times(table, 1) == [now]

    def test_lookup_or_insert_leaves_the_time_of_existing_rows(self):
        table = self.table()
        table.lookup_or_insert(keys(1), now=100)
        table.lookup_or_insert(keys(1, 2), now=200)
        assert times(table, 1, 2) == [100, 200]

    def test_reads_leave_times_alone(self):
        table = self.table()
        table.assign(keys(1), column(1), now=100)
        table.lookup(keys(1))
        table.contains(keys(1))
        assert times(table, 1) == [100]

    def test_times_of_the_whole_range_are_kept(self):
        table = self.table(clock=lambda: MAX_TIME)
        table.assign(keys(1), column(1), now=0)
        table.assign(keys(2), column(1), now=MAX_TIME)
        assert times(table, 1, 2) == [0, MAX_TIME]

    @pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
    def test_now_beyond_one_hour_is_clamped_and_counted_per_call(self, write):
        table = self.table()
        write(table, keys(1), now=NOW + 3600)
        assert table.stats()["num_clamped_times"] == 0
        write(table, keys(2, 3, 4), now=NOW + 3601)
        write(table, keys(5), now=1 << 60)
        assert times(table, 1, 2, 3, 4, 5) == [NOW + 3600] * 5
        assert table.stats()["num_clamped_times"] == 2

    def test_imported_times_are_not_clamped(self):
        table = self.table()
        table.import_rows(Rows(keys(1), keys(MAX_TIME), {"weight/0": column(1)}))
        assert times(table, 1) == [MAX_TIME]
        assert table.stats()["num_clamped_times"] == 0


class Facts(TableCase):
    def test_stats_count_rows_inserted_and_erased(self):
        table = self.table()
        table.lookup_or_insert(keys(1, 1, 2))
        table.assign(keys(2, 3), column(1, 1))
        table.assign_add(keys(3, 4), column(1, 1))
        table.apply_gradients(keys(4, 5), column(1, 1))
        table.reinitialize(keys(5, 6))
        table.import_rows(Rows(keys(6, 7), keys(1, 1), {"weight/0": column(1, 1)}))
        table.erase(keys(1, 1, 99))
        stats = table.stats()
        assert (stats["num_rows"], stats["num_inserted"], stats["num_erased"]) == (6, 7, 1)

    def test_clear_counts_its_rows_as_erased(self):
        table = self.table()
        table.lookup_or_insert(keys(1, 2))
        table.clear()
        stats = table.stats()
        assert (stats["num_rows"], stats["num_inserted"], stats["num_erased"]) == (0, 2, 2)

    def test_stats_of_a_new_table_are_zero(self):
        stats = self.table().stats()
        names = ("rows", "inserted", "erased", "refused", "skipped", "clamped_times")
        assert {f"num_{name}": stats[f"num_{name}"] for name in names} == {
            f"num_{name}": 0 for name in names
        }

    def test_memory_report_adds_up_and_grows(self):
        table = self.table(64, optimizer=Adagrad())
        empty = table.memory_report()
        table.lookup_or_insert(keys(*range(1000)))
        full = table.memory_report()
        assert full["total_bytes"] >= full["row_bytes"] + full["index_bytes"]
        assert full["row_bytes"] >= 1000 * 128 * 4
        assert full["total_bytes"] > empty["total_bytes"]

    def test_table_knows_its_config_name_and_dim(self):
        table = self.table(3)
        assert (table.config.name, table.name, table.dim) == ("user", "user", 3)


class Life(TableCase):
    @pytest.mark.parametrize("verb", [*WRITERS, "lookup", "contains", "lookup_entry", "erase"])
    def test_closed_table_refuses_key_verbs(self, verb):
        table = self.table()
        table.close()
        with pytest.raises(FailedPreconditionError) as caught:
            WRITERS.get(verb, lambda table, keys: getattr(table, verb)(keys))(table, keys(1))
        assert str(caught.value) == (
            f"[Table.{verb}] expected an open table, got a closed one (table 'user')"
        )

    @pytest.mark.parametrize("verb", ["export", "clear", "memory_report", "stats"])
    def test_closed_table_refuses_other_verbs(self, verb):
        table = self.table()
        table.close()
        with pytest.raises(FailedPreconditionError, match=rf"\[Table.{verb}\] expected an open"):
            getattr(table, verb)()

    def test_closed_table_has_no_length_and_takes_no_rows(self):
        table = self.table()
        table.close()
        with pytest.raises(FailedPreconditionError, match=r"\[Table.len\] expected an open"):
            len(table)
        with pytest.raises(FailedPreconditionError, match=r"\[Table.import_rows\] expected an"):
            table.import_rows(Rows(keys(1), keys(1), {"weight/0": column(1)}))

    def test_export_ends_with_an_error_when_the_table_is_closed(self):
        table = self.table()
        table.lookup_or_insert(keys(1, 2))
        chunks = table.export(chunk_rows=1)
        next(chunks)
        table.close()
        with pytest.raises(FailedPreconditionError, match=r"\[Table.export\] expected an open"):
            next(chunks)

    def test_closing_twice_is_fine(self):
        table = self.table()
        table.close()
        table.close()

    def test_with_closes_the_table(self):
        with self.table() as table:
            table.assign(keys(1), column(1))
        with pytest.raises(FailedPreconditionError):
            table.lookup(keys(1))

    def test_two_tables_share_nothing(self):
        first, second = self.table(), self.table()
        first.assign(keys(1), column(5))
        assert second.contains(keys(1)).tolist() == [False]
        first.close()
        assert second.lookup(keys(1)).tolist() == [[0]]
