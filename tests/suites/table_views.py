"""Views: what lookups in training make of the weights, and what that makes of gradients."""

import math

import pytest
import torch

from monolith.table import Constant, FixedR8, OneBit, Segment, TableConfig, Uniform, Zeros
from monolith.table.optimizers import SGD
from tests.suites.table_base import (
    TableCase,
    assert_same_bits,
    exported,
    floats,
    keys,
    random_floats,
    refuses,
)


class Views(TableCase):
    def viewed(self, view, dim=1, initializer=None):
        segment = Segment(dim, SGD(1.0), initializer or Zeros(), view=view)
        return self.build(TableConfig("user", segment))

    def gradient(self, view, weight, gradient, step):
        """What a gradient of the view takes from a weight."""
        table = self.viewed(view)
        table.assign(keys(1), floats([weight]))
        table.apply_gradients(keys(1), floats([gradient]), step=step)
        return weight - float(exported(table).columns["weight/0"])

    @pytest.mark.parametrize(
        ("weight", "seen"),
        [
            (100.0, 127.0),
            (-100.0, -128.0),
            (0.0, 0.0),
            (3.5, 90.0),
            (1.4 * 0.0390625, 1.0),
            (1.6 * 0.0390625, 2.0),
            (-1.4 * 0.0390625, -1.0),
            (-1.6 * 0.0390625, -2.0),
            (float("nan"), 0.0),
        ],
    )
    def test_fixed_r8_vectors(self, weight, seen):
        table = self.viewed(FixedR8(5.0))
        table.assign(keys(1), floats([weight]))
        assert table.lookup(keys(1)).tolist() == [[seen * 0.0390625]]

    def test_fixed_r8_segments_and_a_step(self):
        segments = [Segment(5, SGD(1.0), Constant(1.0), view=FixedR8(r)) for r in (1.0, 0.5)]
        table = self.build(TableConfig("user", segments))
        row = table.lookup_or_insert(keys(1))
        assert row.tolist() == [[127 / 128] * 5 + [0.5 * 127 / 128] * 5]
        table.apply_gradients(keys(1), torch.ones(1, 10))
        assert table.lookup(keys(1)).tolist() == [[0.0] * 10]

    def test_stored_weights_stay_raw(self):
        for view in (FixedR8(), OneBit()):
            table = self.viewed(view, dim=3)
            table.assign(keys(1), floats([0.1, 0.2, 5.0]))
            assert not torch.equal(table.lookup(keys(1)), floats([0.1, 0.2, 5.0]))
            assert_same_bits(exported(table).columns["weight/0"], floats([0.1, 0.2, 5.0]))

    def test_missing_keys_are_seen_too(self):
        for view in (FixedR8(0.1), OneBit()):
            table = self.viewed(view, dim=5, initializer=Uniform(-1, 1))
            before = table.lookup(keys(1, 2))
            assert_same_bits(table.lookup_or_insert(keys(1, 2)), before)
            assert_same_bits(table.lookup(keys(1, 2)), before)
            assert table.lookup(keys(3), missing="zeros").tolist() == [[0.0] * 5]

    @pytest.mark.parametrize(
        ("weight", "step", "seen"),
        [(1.0, 0, 0.07615941), (2.0, 0, 0.09640275), (2.0, 1001, 0.09998888)],
    )
    def test_one_bit_vectors(self, weight, step, seen):
        table = self.viewed(OneBit(1000, amplitude=0.1))
        table.assign(keys(1), floats([weight]))
        for rows in (table.lookup(keys(1), step=step), table.lookup_or_insert(keys(1), step=step)):
            assert float(rows) == pytest.approx(seen, rel=1e-6)

    @pytest.mark.parametrize(
        ("gradient", "step", "expected"),
        [
            (1.0, 0, 0.00706508),
            (2.0, 999, 0.01413016),
            (100.0, 1000, 0.005442613),
            (200.0, 1001, 0.01088523),
        ],
    )
    def test_one_bit_gradient_vectors(self, gradient, step, expected):
        taken = self.gradient(OneBit(1000, amplitude=0.1), 2.0, gradient, step)
        assert taken == pytest.approx(expected, rel=2e-4)

    def test_one_bit_gradient_at_a_multiple_of_step_size(self):
        taken = self.gradient(OneBit(100, amplitude=0.1), 1.0, 1.0, 100)
        assert taken == pytest.approx(0.035840667, rel=1e-5)

    def test_one_bit_sees_tanh(self):
        table = self.viewed(OneBit(amplitude=1.0), dim=2000)
        values = random_floats(1, 2000) * torch.logspace(-20, 2, 2000)
        table.assign(keys(1), values)
        expected = torch.tanh(values.double())
        error = (table.lookup(keys(1)) - expected).abs() / expected.abs()
        assert float(error.max()) < 1e-6

    def test_each_option_of_one_bit_changes_the_result(self):
        def seen(**options):
            table = self.viewed(OneBit(**options))
            table.assign(keys(1), floats([0.7]))
            return float(table.lookup(keys(1), step=300))

        base = seen()
        for name, value in {
            "step_size": 7,
            "amplitude": 0.06,
            "init_scale": 2.0,
            "max_scale": 1.1,
        }.items():
            assert seen(**{name: value}) != base, name

    def test_the_callers_gradients_stay(self):
        table = self.viewed(OneBit(), dim=2)
        grads = floats([1.0, 2.0])
        table.apply_gradients(keys(1), grads, step=500)
        assert grads.tolist() == [[1.0, 2.0]]

    def test_equal_keys_are_summed_before_the_derivative(self):
        one, two = self.viewed(OneBit()), self.viewed(OneBit())
        one.apply_gradients(keys(1, 1), floats([1.0], [2.0]))
        two.apply_gradients(keys(1), floats([3.0]))
        assert_same_bits(one.lookup(keys(1)), two.lookup(keys(1)))

    def test_huge_weights_and_gradients_make_no_nan(self):
        table = self.viewed(OneBit(1, amplitude=1.0), dim=2)
        table.assign(keys(1), floats([3e38, 0.0]))
        table.apply_gradients(keys(1), floats([3e38, -3e38]), step=10**9)
        row = exported(table).columns["weight/0"][0].tolist()
        assert row[0] == pytest.approx(3e38)
        assert math.isfinite(row[1])

    @pytest.mark.parametrize("verb", ["lookup", "lookup_or_insert"])
    def test_reads_refuse_a_negative_step(self, verb):
        table = self.table(1)
        text = f"[Table.{verb}] expected step in [0, 2**63), got -1 (table 'user')"
        with refuses(table, ValueError, text):
            getattr(table, verb)(keys(1), step=-1)
