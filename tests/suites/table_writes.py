"""Writing without gradients: insert, assign, assign_add, reinitialize, erase, clear."""

import torch

from monolith.table import Constant, Uniform
from monolith.table.optimizers import SGD, Adagrad
from tests.suites.table_base import (
    TableCase,
    assert_same_bits,
    column,
    exported,
    floats,
    keys,
    read,
    times,
)


class Inserts(TableCase):
    def test_lookup_or_insert_stores_missing_keys(self):
        table = self.table(2, initializer=Constant(0.5))
        assert table.lookup_or_insert(keys(1, 2, 1)).tolist() == [[0.5, 0.5]] * 3
        assert len(table) == 2

    def test_lookup_or_insert_leaves_existing_rows(self):
        table = self.table(initializer=Constant(0.5))
        table.assign(keys(1), column(7))
        assert table.lookup_or_insert(keys(1, 2)).tolist() == [[7], [0.5]]

    def test_inserted_row_has_initial_state(self):
        table = self.table(optimizer=Adagrad(initial_accumulator_value=0.25))
        table.lookup_or_insert(keys(1))
        assert exported(table).columns["state/0/norm"].tolist() == [[0.25]]


class Assigns(TableCase):
    def test_assign_sets_weights(self):
        table = self.table(2)
        table.assign(keys(-10, 13), floats([1, 2], [3, 4]))
        assert table.lookup(keys(13, -10)).tolist() == [[3, 4], [1, 2]]

    def test_assign_keeps_state_of_existing_rows(self):
        table = self.table(optimizer=Adagrad(1, initial_accumulator_value=1))
        table.apply_gradients(keys(1), column(2))
        table.assign(keys(1), column(9))
        entry = table.lookup_entry(keys(1)).rows.columns
        assert entry["weight/0"].item() == 9
        assert entry["state/0/norm"].item() == 5

    def test_assign_gives_new_rows_fresh_state(self):
        table = self.table(optimizer=Adagrad(initial_accumulator_value=0.25))
        table.assign(keys(1), column(9))
        assert exported(table).columns["state/0/norm"].item() == 0.25

    def test_assign_of_equal_keys_takes_the_last(self):
        table = self.table()
        table.assign(keys(1, 2, 1, 1), column(3, 4, 5, 6))
        assert read(table, 1, 2) == [6, 4]
        assert len(table) == 2

    def test_assign_keeps_the_bits_of_special_values(self):
        table = self.table(4)
        special = floats([-0.0, float("nan"), float("-inf"), 1e-45])
        table.assign(keys(1), special)
        assert_same_bits(table.lookup(keys(1)), special)

    def test_assign_does_not_keep_the_callers_memory(self):
        table = self.table()
        values = column(1)
        table.assign(keys(1), values)
        values.fill_(2)
        assert read(table, 1) == [1]

    def test_writes_of_no_keys_change_nothing(self):
        table = self.table(2)
        table.assign(keys(), torch.empty(0, 2))
        table.assign_add(keys(), torch.empty(0, 2))
        assert table.lookup_or_insert(keys()).shape == (0, 2)
        assert len(table) == 0

    def test_assign_add_adds_to_the_row(self):
        table = self.table()
        table.assign(keys(1), column(1.5))
        table.assign_add(keys(1), column(2))
        assert read(table, 1) == [3.5]

    def test_assign_add_starts_new_rows_from_the_initial_value(self):
        table = self.table(initializer=Constant(0.5))
        table.assign_add(keys(1), column(2))
        assert read(table, 1) == [2.5]

    def test_assign_add_sums_equal_keys_before_it_adds(self):
        table = self.table()
        table.assign(keys(1), column(2**24))
        table.assign_add(keys(1, 1), column(1, 1))  # one by one, each 1 would be rounded away
        assert read(table, 1) == [2**24 + 2]

    def test_assign_add_sums_in_occurrence_order(self):
        table = self.table()
        table.assign_add(keys(1, 1, 1), column(2**24, 1, 1))
        table.assign_add(keys(2, 2, 2), column(1, 1, 2**24))
        assert read(table, 1, 2) == [2**24, 2**24 + 2]

    def test_sum_of_negative_zeros_stays_negative(self):
        table = self.table(initializer=Constant(-0.0))
        table.assign_add(keys(1, 1), column(-0.0, -0.0))
        assert_same_bits(table.lookup(keys(1)), column(-0.0))

    def test_assign_add_keeps_state(self):
        table = self.table(optimizer=Adagrad(1, initial_accumulator_value=1))
        table.apply_gradients(keys(1), column(2))
        table.assign_add(keys(1), column(9))
        assert exported(table).columns["state/0/norm"].item() == 5


class Removals(TableCase):
    def test_reinitialize_resets_weights_state_and_reports_existence(self):
        table = self.table(optimizer=Adagrad(0.1), initializer=Uniform(1, 2))
        fresh = table.lookup(keys(1))
        table.apply_gradients(keys(1), column(3))
        status = table.reinitialize(keys(1, 2))
        assert status.dtype == torch.int32
        assert status.tolist() == [1, 0]
        entry = table.lookup_entry(keys(1)).rows.columns
        assert_same_bits(entry["weight/0"], fresh)
        assert_same_bits(entry["state/0/norm"], column(0.1))

    def test_reinitialize_reports_every_occurrence_as_before_the_call(self):
        table = self.table()
        assert table.reinitialize(keys(1, 1, 2)).tolist() == [0, 0, 0]
        assert table.reinitialize(keys(1, 3, 1, 3)).tolist() == [1, 0, 1, 0]
        assert len(table) == 3

    def test_reinitialize_of_no_keys_is_empty(self):
        assert self.table().reinitialize(keys()).shape == (0,)

    def test_erase_removes_and_reports_existence(self):
        table = self.table()
        table.assign(keys(1, 2), column(1, 2))
        existed = table.erase(keys(2, 3))
        assert existed.dtype == torch.bool
        assert existed.tolist() == [True, False]
        assert table.contains(keys(1, 2)).tolist() == [True, False]
        assert len(table) == 1

    def test_erase_reports_every_occurrence_as_before_the_call(self):
        table = self.table()
        table.assign(keys(1), column(1))
        assert table.erase(keys(1, 2, 1)).tolist() == [True, False, True]
        assert len(table) == 0

    def test_erase_of_no_keys_is_empty(self):
        assert self.table().erase(keys()).shape == (0,)

    def test_erased_key_is_like_one_never_seen(self):
        table = self.table(optimizer=Adagrad(1), initializer=Constant(0.5))
        table.apply_gradients(keys(1), column(3), now=500)
        table.erase(keys(1))
        assert read(table, 1) == [0.5]
        table.assign_add(keys(1), column(1), now=100)
        assert read(table, 1) == [1.5]
        assert times(table, 1) == [100]
        assert_same_bits(exported(table).columns["state/0/norm"], column(0.1))

    def test_clear_removes_every_row(self):
        table = self.table()
        table.assign(keys(1, 2), column(1, 2))
        table.clear()
        assert len(table) == 0
        assert read(table, 1, 2) == [0, 0]
        assert list(table.export()) == []

    def test_cleared_table_takes_rows_again(self):
        table = self.table(optimizer=SGD(1))
        table.assign(keys(1), column(5))
        table.clear()
        table.apply_gradients(keys(1), column(2))
        assert read(table, 1) == [-2]
