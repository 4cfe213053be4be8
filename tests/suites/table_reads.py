"""Reading: lookup, contains, lookup_entry, len, initial values."""

import numpy as np
import torch

from monolith.table import Constant, Normal, Segment, TableConfig, Uniform, Zeros
from monolith.table.initializers import uniform
from monolith.table.optimizers import Adagrad
from tests.suites.table_base import (
    EDGE_KEYS,
    NOW,
    TableCase,
    assert_same_bits,
    column,
    floats,
    keys,
    random_keys,
    read,
)


class Reads(TableCase):
    def test_lookup_of_an_empty_table_reads_initial_values(self):
        table = self.table(3, initializer=Constant(0.5))
        assert table.lookup(keys(5, 6)).tolist() == [[0.5] * 3] * 2

    def test_lookup_with_missing_zeros_reads_zeros(self):
        table = self.table(3, initializer=Constant(0.5))
        assert table.lookup(keys(5, 6), missing="zeros").tolist() == [[0.0] * 3] * 2

    def test_lookup_with_missing_zeros_reads_existing_rows(self):
        table = self.table(2)
        table.assign(keys(5), floats([1, 2]))
        assert table.lookup(keys(6, 5), missing="zeros").tolist() == [[0, 0], [1, 2]]

    def test_lookup_stores_nothing(self):
        table = self.table()
        table.lookup(keys(1, 2, 3))
        assert len(table) == 0
        assert table.contains(keys(1, 2, 3)).tolist() == [False] * 3

    def test_lookup_returns_float32_n_by_dim(self):
        result = self.table(4).lookup(keys(1, 2, 3))
        assert result.dtype == torch.float32
        assert result.shape == (3, 4)

    def test_lookup_of_no_keys_returns_no_rows(self):
        assert self.table(4).lookup(keys()).shape == (0, 4)

    def test_lookup_of_equal_keys_repeats_the_row(self):
        table = self.table()
        table.assign(keys(5), column(2.5))
        assert read(table, 5, 6, 5) == [2.5, 0, 2.5]

    def test_lookup_result_is_a_copy(self):
        table = self.table()
        table.assign(keys(5), column(1))
        table.lookup(keys(5)).fill_(9)
        assert read(table, 5) == [1]

    def test_missing_key_reads_the_row_that_it_gets(self):
        table = self.table(16, initializer=Uniform(-1, 1))
        before = table.lookup(keys(*EDGE_KEYS))
        assert_same_bits(table.lookup_or_insert(keys(*EDGE_KEYS)), before)
        assert_same_bits(table.lookup(keys(*EDGE_KEYS)), before)

    def test_edge_keys_have_rows_of_their_own(self):
        table = self.table()
        numbers = column(*range(len(EDGE_KEYS)))
        table.assign(keys(*EDGE_KEYS), numbers)
        assert_same_bits(table.lookup(keys(*EDGE_KEYS)), numbers)
        assert len(table) == len(EDGE_KEYS)

    def test_keys_that_differ_in_high_bits_alone_have_rows_of_their_own(self):
        table = self.table()
        twins = keys(*(number << 32 | 7 for number in range(500)))
        numbers = column(*range(250))
        table.assign(twins[:250], numbers)
        assert_same_bits(table.lookup(twins[:250]), numbers)
        assert not table.contains(twins[250:]).any()

    def test_contains_answers_per_key(self):
        table = self.table()
        table.assign(keys(1, 3), column(0, 0))
        result = table.contains(keys(1, 2, 3, 1))
        assert result.dtype == torch.bool
        assert result.tolist() == [True, False, True, True]

    def test_contains_of_no_keys_is_empty(self):
        assert self.table().contains(keys()).shape == (0,)

    def test_lookup_entry_gives_weights_state_and_time(self):
        table = self.table(2, optimizer=Adagrad(initial_accumulator_value=0.5))
        table.assign(keys(7), floats([1, 2]), now=100)
        entry = table.lookup_entry(keys(7))
        assert entry.present.tolist() == [True]
        assert entry.rows.keys.tolist() == [7]
        assert entry.rows.times.tolist() == [100]
        assert entry.rows.columns["weight/0"].tolist() == [[1, 2]]
        assert entry.rows.columns["state/0/norm"].tolist() == [[0.5, 0.5]]

    def test_lookup_entry_marks_absent_keys_and_reads_zeros(self):
        table = self.table(initializer=Constant(3), optimizer=Adagrad())
        table.lookup_or_insert(keys(7))
        entry = table.lookup_entry(keys(5, 7, 5))
        assert entry.present.tolist() == [False, True, False]
        assert entry.rows.keys.tolist() == [5, 7, 5]
        assert entry.rows.times.tolist() == [0, NOW, 0]
        assert entry.rows.columns["weight/0"].tolist() == [[0], [3], [0]]
        assert entry.rows.columns["state/0/norm"][0].item() == 0

    def test_lookup_entry_keeps_a_copy_of_the_keys(self):
        numbers = keys(7)
        entry = self.table().lookup_entry(numbers)
        numbers.fill_(8)
        assert entry.rows.keys.tolist() == [7]

    def test_results_do_not_depend_on_the_default_device(self):
        table, numbers = self.table(2, optimizer=Adagrad()), keys(1)
        with torch.device("meta"):
            table.reinitialize(numbers)
            rows, entry = table.lookup_or_insert(numbers), table.lookup_entry(numbers)
            (chunk,) = table.export()
            flags = table.contains(numbers), table.erase(numbers)
        results = (rows, entry.present, entry.rows.times, chunk.keys, *chunk.columns.values())
        assert {result.device.type for result in (*results, *flags)} == {"cpu"}

    def test_results_do_not_depend_on_the_default_dtype(self):
        table = self.table(2)
        torch.set_default_dtype(torch.float64)
        try:
            result = table.lookup_or_insert(keys(1))
            (chunk,) = table.export()
        finally:
            torch.set_default_dtype(torch.float32)
        assert result.dtype == chunk.columns["weight/0"].dtype == torch.float32

    def test_lookup_entry_of_no_keys_has_every_column(self):
        entry = self.table(2, optimizer=Adagrad()).lookup_entry(keys())
        assert entry.present.shape == (0,)
        shapes = {name: tuple(values.shape) for name, values in entry.rows.columns.items()}
        assert shapes == {"weight/0": (0, 2), "state/0/norm": (0, 2)}


class InitialValues(TableCase):
    def test_uniform_values_are_philox_of_seed_key_and_column(self):
        table = self.table(9, initializer=Uniform(-0.5, 1.5), seed=(7 << 32) | 5)
        numbers = random_keys(100)
        u = uniform((7 << 32) | 5, numbers.numpy(), np.arange(9))
        expected = np.float32(-0.5) + u * np.float32(2)
        assert_same_bits(table.lookup(numbers), torch.from_numpy(expected))

    def test_uniform_range_is_computed_in_float32(self):
        table = self.table(16, initializer=Uniform(-0.05, 0.05), seed=3)
        low, high = np.float32(-0.05), np.float32(0.05)
        u = uniform(3, np.arange(50), np.arange(16))
        expected = low + u * (high - low)
        assert_same_bits(table.lookup(torch.arange(50)), torch.from_numpy(expected))

    def test_normal_values_are_box_muller_of_the_uniform_ones(self):
        segments = [Segment(3), Segment(6, initializer=Normal(2.0, 0.5))]
        table = self.build(TableConfig("user", segments, seed=9))
        numbers = random_keys(100)
        u = uniform(9, numbers.numpy(), np.arange(10)).astype(np.float64)
        size = np.sqrt(-2 * np.log(u[:, 0::2] + 2.0**-24))
        turn = 2 * np.pi * u[:, 1::2]
        z = np.stack([size * np.cos(turn), size * np.sin(turn)], axis=-1).reshape(100, 10)
        error = table.lookup(numbers)[:, 3:].numpy() - (2 + 0.5 * z[:, 3:9])
        assert abs(error).max() < 1e-6

    def test_normal_values_have_their_mean_and_deviation(self):
        table = self.table(20, initializer=Normal(-1.0, 0.25))
        values = table.lookup(torch.arange(2000))
        assert abs(float(values.mean()) + 1) < 4 * 0.25 / 200
        assert abs(float(values.std()) - 0.25) < 0.005
        assert_same_bits(table.lookup_or_insert(torch.arange(2000)), values)

    def test_default_seed_comes_from_the_table_name(self):
        segment = Segment(8)
        user, item = (self.build(TableConfig(name, segment)) for name in ("user", "item"))
        again = self.build(TableConfig("user", segment))
        assert_same_bits(user.lookup(keys(1)), again.lookup(keys(1)))
        assert not torch.equal(user.lookup(keys(1)), item.lookup(keys(1)))

    def test_column_is_that_of_the_row_across_segments(self):
        one = self.build(TableConfig("user", Segment(7)))
        two = self.build(TableConfig("user", [Segment(3), Segment(4)]))
        assert_same_bits(one.lookup(random_keys(20)), two.lookup(random_keys(20)))

    def test_values_do_not_depend_on_order_or_batch(self):
        table = self.table(5, initializer=Uniform())
        numbers = random_keys(64)
        together = table.lookup(numbers)
        apart = torch.cat([table.lookup(numbers[i : i + 1]) for i in range(64)])
        assert_same_bits(together, apart)

    def test_equal_bounds_give_that_value(self):
        table = self.table(3, initializer=Uniform(0.25, 0.25))
        assert table.lookup(keys(9)).tolist() == [[0.25] * 3]

    def test_every_segment_has_its_own_initializer(self):
        segments = [
            Segment(1, initializer=Zeros()),
            Segment(2, initializer=Constant(-2.5)),
            Segment(1, initializer=Uniform(4, 5)),
        ]
        row = self.build(TableConfig("user", segments)).lookup(keys(3))[0].tolist()
        assert row[:3] == [0, -2.5, -2.5]
        assert 4 <= row[3] < 5
