"""apply_gradients: optimizer rules, duplicates, learning rates, segments, NaN and Inf."""

import math

import numpy as np
import pytest
import torch

from monolith.table import Applied, Constant, Rows, Segment, TableConfig, Zeros
from monolith.table.optimizers import SGD, Adagrad
from tests.suites.table_base import (
    TableCase,
    assert_same_bits,
    column,
    exported,
    floats,
    keys,
    read,
    refuses,
    times,
)

NAN, INF = math.nan, math.inf


class Gradients(TableCase):
    def test_sgd_step(self):
        table = self.table()
        assert table.apply_gradients(keys(5), column(1)) == Applied(1, 1, 0, 0)
        assert read(table, 5) == pytest.approx([-0.1])

    def test_step_starts_new_rows_from_the_initial_value(self):
        table = self.table(initializer=Constant(2), optimizer=SGD(0.5))
        table.apply_gradients(keys(5), column(1))
        assert read(table, 5) == [1.5]

    def test_counts_are_of_distinct_keys(self):
        table = self.table()
        table.assign(keys(1), column(0))
        applied = table.apply_gradients(keys(1, 2, 1, 3, 2), column(1, 1, 1, 1, 1))
        assert applied == Applied(num_applied=3, num_inserted=2, num_refused=0, num_skipped=0)

    def test_no_keys_apply_nothing(self):
        table = self.table(3)
        assert table.apply_gradients(keys(), torch.empty(0, 3)) == Applied(0, 0, 0, 0)

    def test_gradients_of_equal_keys_make_one_step_on_their_sum(self):
        table = self.table(optimizer=Adagrad(1, initial_accumulator_value=0))
        table.apply_gradients(keys(1, 1), column(1, 2))
        assert exported(table).columns["state/0/norm"].item() == 9
        assert read(table, 1) == [-1]

    def test_gradients_are_summed_in_occurrence_order(self):
        table = self.table(optimizer=SGD(1))
        table.apply_gradients(keys(1, 2, 1, 2, 1, 2), column(2**24, 1, 1, 1, 1, 2**24))
        assert read(table, 1, 2) == [-(2**24), -(2**24) - 2]

    def test_gradient_that_requires_grad_is_taken(self):
        table = self.table(optimizer=SGD(1))
        table.apply_gradients(keys(1), column(2).requires_grad_())
        assert read(table, 1) == [-2]

    @pytest.mark.parametrize("decay", [0.0, 0.1])
    def test_adagrad_rounds_every_operation_once(self, decay):
        table = self.table(19, optimizer=Adagrad(0.3, 0.1, decay), initializer=Constant(0.7))
        grads = np.linspace(-3, 3, 19, dtype=np.float32).reshape(1, 19)
        w, n = np.full((1, 19), 0.7, np.float32), np.full((1, 19), 0.1, np.float32)
        for _ in range(3):
            table.apply_gradients(keys(1), torch.from_numpy(grads))
            g = grads + np.float32(decay) * w
            n = n + g * g
            w = w - np.float32(0.3) * g / np.sqrt(n)  # torch.sqrt may be off by one bit
        rows = exported(table).columns
        assert_same_bits(rows["weight/0"], torch.from_numpy(w))
        assert_same_bits(rows["state/0/norm"], torch.from_numpy(n))

    def test_adagrad_with_zero_accumulator_and_gradient_stays(self):
        table = self.table(2, optimizer=Adagrad(1, initial_accumulator_value=0))
        table.apply_gradients(keys(1), floats([0, 2]))
        assert table.lookup(keys(1)).tolist() == [[0, -1]]

    def test_adagrad_with_a_gradient_whose_square_is_zero_stays(self):
        table = self.table(optimizer=Adagrad(1, initial_accumulator_value=0))
        table.apply_gradients(keys(1), column(1e-30))
        assert read(table, 1) == [0]


class Rates(TableCase):
    def test_learning_rates_of_the_call_win(self):
        table = self.table(optimizer=SGD(0.1))
        table.apply_gradients(keys(1), column(1), learning_rates=[0.5])
        table.apply_gradients(keys(1), column(1), learning_rates=(2,))
        assert read(table, 1) == [-2.5]

    def test_schedule_gets_the_step(self):
        table = self.table(optimizer=SGD(lambda step: step / 4))
        table.apply_gradients(keys(1), column(1), step=2)
        table.apply_gradients(keys(1), column(1))
        assert read(table, 1) == [-0.5]

    def test_rate_zero_updates_time_only(self):
        table = self.table(optimizer=Adagrad(0, weight_decay_factor=0.5), initializer=Constant(1))
        table.lookup_or_insert(keys(1), now=100)
        assert table.apply_gradients(keys(1), column(3), now=200) == Applied(1, 0, 0, 0)
        rows = exported(table)
        assert rows.times.tolist() == [200]
        assert rows.columns["weight/0"].item() == 1
        assert_same_bits(rows.columns["state/0/norm"], column(0.1))

    def test_rate_zero_inserts_missing_keys_as_they_start(self):
        table = self.table(initializer=Constant(0.5))
        applied = table.apply_gradients(keys(1), column(3), learning_rates=[0])
        assert applied == Applied(1, 1, 0, 0)
        assert read(table, 1) == [0.5]

    def test_rate_that_is_zero_in_float32_changes_nothing(self):
        table = self.table(optimizer=Adagrad(1e-50))
        table.apply_gradients(keys(1), column(3))
        assert_same_bits(exported(table).columns["state/0/norm"], column(0.1))


class Segments(TableCase):
    def test_every_segment_has_its_own_optimizer_and_rate(self):
        segments = [
            Segment(1, SGD(1), Zeros(), name="bias"),
            Segment(2, Adagrad(2, initial_accumulator_value=0), Zeros()),
        ]
        table = self.build(TableConfig("user", segments))
        table.apply_gradients(keys(1), floats([3, 4, -5]))
        columns = exported(table).columns
        assert list(columns) == ["weight/bias", "weight/1", "state/1/norm"]
        assert columns["weight/bias"].tolist() == [[-3]]
        assert columns["weight/1"].tolist() == [[-2, 2]]
        assert columns["state/1/norm"].tolist() == [[16, 25]]

    def test_rate_zero_freezes_only_its_segment(self):
        segments = [Segment(1, SGD(1), Zeros()), Segment(1, Adagrad(1), Zeros())]
        table = self.build(TableConfig("user", segments))
        table.apply_gradients(keys(1), floats([3, 4]), learning_rates=[1, 0], now=50)
        columns = exported(table).columns
        assert table.lookup(keys(1)).tolist() == [[-3, 0]]
        assert_same_bits(columns["state/1/norm"], column(0.1))
        assert times(table, 1) == [50]

    def test_two_sgd_segments(self):
        segments = [Segment(1, SGD(1), Zeros()), Segment(2, SGD(2), Zeros())]
        table = self.build(TableConfig("user", segments))
        table.apply_gradients(keys(1), floats([1, 2, 3]))
        assert table.lookup(keys(1)).tolist() == [[-1, -4, -6]]

    def test_two_adagrad_segments_and_their_state_restored_into_a_zero_row(self):
        segments = [
            Segment(1, Adagrad(1, initial_accumulator_value=1), Zeros()),
            Segment(2, Adagrad(2, initial_accumulator_value=2), Zeros()),
        ]
        table = self.build(TableConfig("user", segments))
        table.apply_gradients(keys(1), floats([1, 2, 3]))
        first = table.lookup(keys(1))[0].tolist()
        assert first == pytest.approx([-0.70710677, -1.6329931, -1.8090681], abs=1e-6)
        row = exported(table)
        zeroed = {name: v * (not name.startswith("weight")) for name, v in row.columns.items()}
        table.import_rows(Rows(row.keys, row.times, zeroed))
        table.apply_gradients(keys(1), floats([1, 2, 3]))
        second = table.lookup(keys(1))[0].tolist()
        assert second == pytest.approx([-0.57735026, -1.264911, -1.3416407], abs=1e-6)


class NonFinite(TableCase):
    @pytest.mark.parametrize(("value", "shown"), [(NAN, "nan"), (INF, "inf"), (-INF, "-inf")])
    def test_refuse_names_the_first_bad_value(self, value, shown):
        table = self.table(6)
        table.assign(keys(1), torch.ones(1, 6))
        grads = torch.ones(5, 6)
        grads[3, 5], grads[4, 0] = value, NAN
        text = (
            f"[Table.apply_gradients] expected finite gradients, got {shown} at row 3, column 5 "
            "(table 'user'); see TableConfig.non_finite"
        )
        with refuses(table, ValueError, text):
            table.apply_gradients(keys(1, 2, 3, 4, 5), grads)

    def test_skip_drops_the_occurrence_only(self):
        table = self.table(2, optimizer=SGD(1), non_finite="skip")
        grads = floats([1, 2], [NAN, 1], [3, 4], [1, -INF])
        assert table.apply_gradients(keys(1, 1, 1, 2), grads) == Applied(1, 1, 0, 2)
        assert table.lookup(keys(1)).tolist() == [[-4, -6]]
        assert table.contains(keys(2)).tolist() == [False]

    def test_skip_starts_the_sum_from_the_first_kept_value(self):
        table = self.table(optimizer=SGD(1), initializer=Constant(-0.0), non_finite="skip")
        table.apply_gradients(keys(1, 1), column(NAN, -0.0))  # from 0, the sum would be +0.0
        assert_same_bits(table.lookup(keys(1)), column(0.0))

    def test_clip_replaces_nan_by_zero_and_inf_by_the_limit(self):
        table = self.table(4, optimizer=SGD(1), non_finite="clip", clip_value=8)
        applied = table.apply_gradients(keys(1), floats([NAN, INF, -INF, 100]))
        assert applied == Applied(1, 1, 0, 0)
        assert table.lookup(keys(1)).tolist() == [[0, -8, 8, -100]]

    def test_clip_happens_before_the_sum(self):
        table = self.table(optimizer=SGD(1), non_finite="clip", clip_value=8)
        table.apply_gradients(keys(1, 1, 1), column(INF, 1, INF))
        assert read(table, 1) == [-17]

    def test_skipped_occurrences_are_counted(self):
        table = self.table(non_finite="skip")
        for _ in range(2):
            table.apply_gradients(keys(1, 2), column(NAN, 1))
        assert table.stats()["num_skipped"] == 2
