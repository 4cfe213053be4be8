"""Published test vectors of the reference system, as the contract settles them."""

import pytest
import torch

from monolith.table.optimizers import SGD, Adagrad, PolynomialDecay
from tests.suites.table_base import TableCase, column, exported, floats, keys, read, times


class Vectors(TableCase):
    def test_add_step_assign_and_read(self):
        table = self.table(optimizer=SGD(0.01))
        assert read(table, 5) == [0]
        table.assign_add(keys(-10), column(2.5), now=100)
        assert read(table, -10) == [2.5]
        table.apply_gradients(keys(13), column(1), now=0)
        assert read(table, 13) == pytest.approx([-0.01])
        table.assign(keys(-10, 13, 100), column(1, 2, 3), now=0)
        assert read(table, 5, -10, 13, 100) == [0, 1, 2, 3]
        assert table.lookup_entry(keys(5)).present.tolist() == [False]
        assert times(table, -10) == [100]

    def test_rows_survive_export_and_import(self):
        table, restored = self.table(), self.table()
        table.assign(keys(5, -3), column(2.5, -0.5))
        restored.import_rows(exported(table))
        assert read(restored, 5, -3) == [2.5, -0.5]

    def test_export_in_steps_of_one_yields_both_keys_once(self):
        table = self.table()
        table.assign(keys(5, -3), column(2.5, -0.5))
        first = next(table.export(chunk_rows=1)).keys.tolist()
        second = next(table.export(chunk_rows=1, after=first[0])).keys.tolist()
        assert sorted(first + second) == [-3, 5]

    def test_gradients_of_a_summed_loss(self):
        table = self.table(optimizer=SGD(0.1))
        table.apply_gradients(keys(0, 0, 1), column(-1, -1, -1))
        assert read(table, 0, 1) == pytest.approx([0.2, 0.1])

    def test_gradients_of_a_summed_loss_in_ten_columns(self):
        table = self.table(10, optimizer=SGD(0.1))
        table.apply_gradients(keys(0, 1, 0, 1, 0), torch.full((5, 10), -1.0))
        expected = torch.tensor([[0.3], [0.2]]).expand(2, 10)
        torch.testing.assert_close(table.lookup(keys(0, 1)), expected)

    def test_learning_rate_schedule(self):
        table = self.table(optimizer=SGD(PolynomialDecay(0.01, 10, 0.11)))
        table.apply_gradients(keys(0, 0, 1), column(-1, -1, -1), step=1)
        assert read(table, 0, 1) == pytest.approx([0.04, 0.02])

    def test_equal_keys_without_a_lookup_before(self):
        table = self.table(2, optimizer=SGD(1))
        table.apply_gradients(keys(2, 2), floats([1.1, 3.1], [2.2, 4.2]))
        assert table.lookup(keys(2))[0].tolist() == pytest.approx([-3.3, -7.3])

    def test_adagrad_two_steps(self):
        table = self.table(2, optimizer=Adagrad(0.1, initial_accumulator_value=1))
        table.apply_gradients(keys(1), floats([1, 2]))
        assert table.lookup(keys(1))[0].tolist() == pytest.approx(
            [-0.07071067, -0.08944272], abs=1e-6
        )
        table.apply_gradients(keys(1), floats([1, 1]))
        assert table.lookup(keys(1))[0].tolist() == pytest.approx(
            [-0.1284457, -0.1302675], abs=1e-6
        )

    def test_adagrad_with_weight_decay(self):
        table = self.table(2, optimizer=Adagrad(0.1, 1, weight_decay_factor=0.1))
        for _ in range(2):
            table.apply_gradients(keys(1), floats([1, 2]))
        assert table.lookup(keys(1))[0].tolist() == pytest.approx([-0.128173, -0.155943], abs=1e-6)

    def test_adagrad_weight_decay_acts_in_every_column(self):
        table = self.table(8, optimizer=Adagrad(0.1, 1, weight_decay_factor=0.1))
        for _ in range(2):
            table.apply_gradients(keys(1), torch.arange(1.0, 9).reshape(1, 8))
        assert read(table, 1) == pytest.approx([-0.12817258], abs=1e-6)

    def test_adagrad_row_goes_on_after_export_and_import(self):
        table, restored = (self.table(optimizer=Adagrad(1)) for _ in range(2))
        table.apply_gradients(keys(1), column(1))
        assert read(table, 1) == pytest.approx([-0.95346254], abs=1e-6)
        restored.import_rows(exported(table))
        restored.apply_gradients(keys(1), column(1))
        assert read(restored, 1) == pytest.approx([-1.643528], abs=1e-6)
