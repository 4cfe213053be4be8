"""fp16 and bf16 rows: stochastic rounding after every update, exact bits in exports."""

import numpy as np
import pytest
import torch

from monolith.table import Constant, Segment, TableConfig, Uniform, Zeros
from monolith.table.initializers import philox
from monolith.table.optimizers import SGD, Adagrad
from tests.suites.table_base import (
    TableCase,
    assert_equal_rows,
    assert_same_bits,
    exported,
    floats,
    keys,
    random_floats,
    random_keys,
    refuses,
)

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
LARGEST = {"fp16": 65504.0, "bf16": float(torch.finfo(torch.bfloat16).max)}

both_precisions = pytest.mark.parametrize("precision", DTYPES)


def neighbours(value, precision):
    """The representable numbers around a float32, in float64: (down, up), equal if it is one."""
    near = torch.tensor(value, dtype=torch.float32).to(DTYPES[precision])
    infinity = torch.tensor(float("inf"), dtype=DTYPES[precision])
    if float(near) == value:
        return value, value
    if float(near) < value:
        return float(near), float(torch.nextafter(near, infinity))
    return float(torch.nextafter(near, -infinity)), float(near)


def rounded(config, key, column, value, call):
    """The contract's formula, one weight at a time."""
    down, up = neighbours(value, config.segments[0].precision)
    if down == up:
        return value
    seed, word = config.seed, (call & 0xFFFF) << 16 | column // 4
    counter = np.array([key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF, word, 1], np.uint64)
    x = int(philox(counter, (seed & 0xFFFFFFFF, seed >> 32))[column % 4])
    return up if (x >> 8) * 2.0**-24 < (value - down) / (up - down) else down


class Precision(TableCase):
    def rounding(self, precision, dim=9, **options):
        segment = Segment(dim, SGD(1.0), Zeros(), precision=precision)
        return self.build(TableConfig("user", segment, **options))

    @both_precisions
    def test_rounding_equals_the_formula(self, precision):
        table = self.rounding(precision)
        numbers, values = random_keys(20), random_floats(20, 9) * 10.0 ** torch.arange(-6, 3)
        for call in (1, 2, 3):
            table.assign(numbers, values)
            rows = table.lookup(numbers).tolist()
            for key, row, given in zip(numbers.tolist(), rows, values.tolist(), strict=True):
                assert row == [rounded(table.config, key, c, v, call) for c, v in enumerate(given)]

    @both_precisions
    def test_rounding_depends_on_seed_key_column_and_call(self, precision):
        value = torch.full((64, 9), 1 + 2.0**-12)
        table, other = self.rounding(precision), self.rounding(precision, seed=5)
        numbers = torch.arange(64)
        for t in (table, other):
            t.assign(numbers, value)
        first = table.lookup(numbers)
        assert (first != other.lookup(numbers)).any()
        assert (first[0] != first).any()
        assert (first[:, :1] != first).any()
        table.assign(numbers, value)
        assert (first != table.lookup(numbers)).any()

    @both_precisions
    def test_rounding_is_unbiased(self, precision):
        table = self.rounding(precision, dim=16)
        numbers, value = torch.arange(2000), 0.1 + 2.0**-15
        total, calls = 0.0, 8
        for _ in range(calls):
            table.assign(numbers, torch.full((2000, 16), value))
            total += float(table.lookup(numbers).double().sum())
        exact = float(np.float32(value))
        down, up = neighbours(exact, precision)
        fraction, n = (exact - down) / (up - down), 2000 * 16 * calls
        sigma = (up - down) * (fraction * (1 - fraction) / n) ** 0.5
        assert abs(total / n - exact) < 4 * sigma

    @both_precisions
    def test_representable_values_stay(self, precision):
        table = self.rounding(precision, dim=5)
        values = floats([0.0, -0.0, 1.5, -0.375, 2.0**-14])
        for _ in range(20):
            table.assign(keys(1), values)
            assert_same_bits(table.lookup(keys(1)), values)

    @both_precisions
    def test_values_beyond_the_range_are_held_at_its_end(self, precision):
        table, most = self.rounding(precision, dim=4), LARGEST[precision]
        table.assign(keys(1), floats([3.4e38, -3.4e38, float("inf"), -float("inf")]))
        assert table.lookup(keys(1)).tolist() == [[most, -most, most, -most]]

    @both_precisions
    def test_nan_stays(self, precision):
        table = self.rounding(precision, dim=1)
        table.assign(keys(1), floats([float("nan")]))
        assert table.lookup(keys(1)).isnan().all()

    @both_precisions
    def test_small_steps_move_a_weight_in_the_mean(self, precision):
        table = self.rounding(precision, dim=16)
        numbers = torch.arange(500)
        table.assign(numbers, torch.ones(500, 16))
        for _ in range(100):  # each step is far below the distance of two numbers
            table.apply_gradients(numbers, torch.full((500, 16), 1e-4))
        assert abs(float(table.lookup(numbers).mean()) - 0.99) < 2e-3

    @both_precisions
    def test_columns_are_of_the_precision_and_state_is_float32(self, precision):
        config = TableConfig("user", Segment(3, Adagrad(0.1), precision=precision))
        table = self.build(config)
        table.apply_gradients(keys(1, 2), random_floats(2, 3))
        rows = exported(table)
        assert rows.columns["weight/0"].dtype == DTYPES[precision]
        assert rows.columns["state/0/norm"].dtype == torch.float32
        assert_same_bits(rows.columns["weight/0"].float(), table.lookup(rows.keys))
        assert_equal_rows(table.lookup_entry(rows.keys).rows, rows)

    @both_precisions
    def test_import_keeps_the_bits(self, precision):
        config = TableConfig("user", Segment(5, Adagrad(0.1), precision=precision))
        table, other = self.build(config), self.build(config)
        table.apply_gradients(random_keys(100), random_floats(100, 5))
        other.import_rows(exported(table))
        assert_equal_rows(exported(other), exported(table))

    def test_import_refuses_another_precision(self):
        table = self.rounding("bf16", dim=1)
        other = self.rounding("fp16", dim=1)
        other.assign(keys(1), floats([1.0]))
        text = (
            "[Table.import_rows] expected weight/0 of dtype bfloat16, got float16 "
            "(table 'user'); cast with .to(torch.bfloat16)"
        )
        with refuses(table, TypeError, text):
            table.import_rows(exported(other))

    def test_segments_are_rounded_each_for_itself(self):
        segments = [Segment(3, precision="fp16"), Segment(3), Segment(3, precision="bf16")]
        table = self.build(TableConfig("user", segments))
        values = random_floats(50, 9)
        table.assign(torch.arange(50), values)
        rows = table.lookup(torch.arange(50))
        assert_same_bits(rows[:, 3:6].contiguous(), values[:, 3:6].contiguous())
        assert_same_bits(rows[:, :3].contiguous(), rows[:, :3].half().float())
        assert_same_bits(rows[:, 6:].contiguous(), rows[:, 6:].bfloat16().float())
        assert (rows != values)[:, [0, 1, 2, 6, 7, 8]].float().mean() > 0.9


class RoundedInitialValues(TableCase):
    """Initial values are rounded as of call 0: a function of seed, key and column alone."""

    @both_precisions
    def test_a_missing_key_reads_the_row_it_gets(self, precision):
        table = self.build(TableConfig("user", Segment(7, precision=precision)))
        numbers = random_keys(50)
        before = table.lookup(numbers)
        table.assign(keys(5), torch.zeros(1, 7))
        assert_same_bits(table.lookup_or_insert(numbers), before)
        table.assign_add(numbers, torch.ones(50, 7))
        table.reinitialize(numbers)
        assert_same_bits(table.lookup(numbers), before)

    def test_they_equal_the_formula(self):
        config = TableConfig("user", Segment(6, initializer=Constant(0.1), precision="bf16"))
        row = self.build(config).lookup(keys(-9))[0].tolist()
        value = float(np.float32(0.1))
        assert row == [rounded(config, -9, c, value, 0) for c in range(6)]

    def test_they_lie_beside_those_of_fp32(self):
        plain = self.build(TableConfig("user", Segment(40, initializer=Uniform(-1, 1))))
        segment = Segment(40, initializer=Uniform(-1, 1), precision="fp16")
        half = self.build(TableConfig("user", segment))
        numbers = random_keys(30)
        distance = (half.lookup(numbers) - plain.lookup(numbers)).abs().max()
        assert 0 < float(distance) < 2.0**-11


class UpdateCalls(TableCase):
    """The number of updating calls seeds the rounding."""

    def test_it_counts_the_calls_that_round(self):
        table, one = self.table(1), floats([1.0])
        calls = [
            lambda: table.assign(keys(1), one),
            lambda: table.assign_add(keys(1), one),
            lambda: table.apply_gradients(keys(1), one),
            lambda: table.assign(keys(), floats().reshape(0, 1)),
        ]
        for number, call in enumerate(calls, start=1):
            call()
            assert table.num_update_calls == number

    def test_other_verbs_and_refused_calls_do_not_count(self):
        table = self.table(1)
        table.lookup_or_insert(keys(1))
        table.reinitialize(keys(2))
        table.import_rows(exported(table))
        table.erase(keys(1))
        with pytest.raises(ValueError, match="finite"):
            table.apply_gradients(keys(1), floats([float("nan")]))
        assert table.num_update_calls == 0

    def test_a_restored_number_gives_the_same_rows(self):
        config = TableConfig("user", Segment(8, SGD(0.1), precision="bf16"))
        whole, first, second = self.build(config), self.build(config), self.build(config)
        for step in range(4):
            for table in (whole, first if step < 2 else second):
                if table is second and step == 2:
                    second.import_rows(exported(first))
                    second.num_update_calls = first.num_update_calls
                table.apply_gradients(torch.arange(50), random_floats(50, 8, seed=step))
        assert_equal_rows(exported(second), exported(whole))

    def test_the_low_16_bits_decide(self):
        config = TableConfig("user", Segment(8, precision="fp16"))
        rows = []
        for number in (6, 6 + 65536, 7):
            table = self.build(config)
            table.num_update_calls = number
            table.assign(torch.arange(50), random_floats(50, 8))
            rows.append(table.lookup(torch.arange(50)))
        assert_same_bits(rows[0], rows[1])
        assert not torch.equal(rows[0], rows[2])

    @pytest.mark.parametrize("number", [-1, 1 << 63])
    def test_it_refuses_numbers_out_of_range(self, number):
        table = self.table(1)
        text = (
            f"[Table.num_update_calls] expected a number in [0, 2**63), got {number} (table 'user')"
        )
        with refuses(table, ValueError, text):
            table.num_update_calls = number
