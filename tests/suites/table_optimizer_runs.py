"""Many random steps of every sparse optimizer: against an oracle, the reference, and itself."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith.table import Constant, Segment, TableConfig, Uniform
from monolith.table.initializers import MAX_FLOAT32
from monolith.table.reference import ReferenceTable
from tests.suites.optimizer_cases import CASES, CLASSES, dims_of, small_dim
from tests.suites.optimizer_oracle import OracleTable
from tests.suites.table_base import (
    NOW,
    TableCase,
    assert_equal_rows,
    assert_same_rows,
    exported,
    floats,
    keys,
)

NUM_KEYS, NUM_STEPS = 12, 100
HUGE = [0.0, -0.0, 1e-45, -1e-30, 1e-20, 1.0, -1.0, 1e10, 1.9e19, -2e19, 1e38, MAX_FLOAT32]
RATES = [1e-45, 1e-30, 1e-3, 1.0, 1e30, MAX_FLOAT32]


def random_batch(step, dim):
    """Some of the keys, each once, and gradients for them."""
    generator = torch.Generator().manual_seed(step)
    batch = torch.randperm(NUM_KEYS, generator=generator)[: 1 + step % NUM_KEYS]
    return batch, torch.randn(len(batch), dim, generator=generator)


def run(table, steps, dim):
    for step in steps:
        table.apply_gradients(*random_batch(step, dim), step=step)


def options():
    """(class, option) of every option that is not always refused."""
    for cls in CLASSES:
        for option in dataclasses.fields(cls):
            if option.init and "is_refused" not in option.metadata:
                yield pytest.param(cls, option, id=f"{cls.__name__}-{option.name}")


def other_value(option):
    if "is_steps" in option.metadata:
        return 10
    return not option.default if option.type is bool else option.default / 2 + 0.03


class OptimizerRuns(TableCase):
    @pytest.mark.parametrize("optimizer", CASES.values(), ids=CASES)
    def test_a_hundred_steps_follow_the_oracle(self, optimizer):
        dim = small_dim(optimizer)
        table = self.table(dim, optimizer=optimizer, initializer=Constant(0.3))
        oracle = OracleTable(optimizer, [0.3] * dim)
        for step in range(NUM_STEPS):
            batch, grads = random_batch(step, dim)
            table.apply_gradients(batch, grads, step=step)
            oracle.apply(batch, grads, step)
        got = table.lookup(torch.arange(NUM_KEYS)).double().numpy()
        expected = np.stack([oracle.rows[key]["w"] for key in range(NUM_KEYS)])
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * abs(expected).max())

    @pytest.mark.parametrize("optimizer", CASES.values(), ids=CASES)
    def test_a_run_goes_on_after_export_and_import(self, optimizer):
        dim = dims_of(optimizer)[-1]
        config = TableConfig("user", Segment(dim, optimizer))
        unbroken, first, second = (self.build(config) for _ in range(3))
        run(unbroken, range(20), dim)
        run(first, range(10), dim)
        second.import_rows(exported(first))
        run(second, range(10, 20), dim)
        assert_same_rows(unbroken, second)

    @pytest.mark.parametrize("optimizer", CASES.values(), ids=CASES)
    def test_rate_zero_changes_the_time_only(self, optimizer):
        dim = dims_of(optimizer)[-1]
        table = self.table(dim, optimizer=optimizer)
        run(table, range(5), dim)
        before = exported(table)
        batch, grads = torch.arange(NUM_KEYS), torch.ones(NUM_KEYS, dim)
        batch = batch[table.contains(batch)]
        table.apply_gradients(batch, grads[: len(batch)], learning_rates=[0], step=9)
        assert_equal_rows(exported(table), before)

    @pytest.mark.parametrize(("cls", "option"), list(options()))
    def test_every_option_changes_the_result(self, cls, option):
        needed = {} if option.name != "decouple_weight_decay" else {"weight_decay_factor": 0.1}
        weights = []
        for value in (option.default, other_value(option)):
            optimizer = cls(**{**needed, option.name: value})
            dim = small_dim(optimizer)
            table = self.table(dim, optimizer=optimizer, initializer=Constant(0.5))
            run(table, range(1, 4), dim)
            weights.append(table.lookup(torch.arange(NUM_KEYS)))
        assert not torch.equal(*weights)


EXTREMES = {
    **CASES,
    **{
        f"{cls.__name__}-{name}": cls(
            **{
                option.name: min(value, option.metadata["most"])
                for option in dataclasses.fields(cls)
                if "most" in option.metadata
            }
        )
        for cls in CLASSES
        for name, value in {"zeros": 0.0, "ones": 1.0, "largest": MAX_FLOAT32}.items()
    },
}


class OptimizersEqualReference(TableCase):
    """For every implementation but the reference itself."""

    @pytest.mark.thorough
    @pytest.mark.parametrize("optimizer", CASES.values(), ids=CASES)
    def test_a_hundred_steps_equal_the_reference_bit_for_bit(self, optimizer):
        segments = [Segment(dim, optimizer, Uniform(-1, 1)) for dim in dims_of(optimizer)]
        config = TableConfig("user", segments)
        table, reference = self.build(config), ReferenceTable(config, clock=lambda: NOW)
        for each in (table, reference):
            run(each, range(NUM_STEPS), config.dim)
        assert_same_rows(table, reference)

    @pytest.mark.parametrize("optimizer", EXTREMES.values(), ids=EXTREMES)
    def test_extreme_gradients_keep_rows_finite_and_equal_to_the_reference(self, optimizer):
        dim = small_dim(optimizer)
        config = TableConfig("user", Segment(dim, optimizer, Uniform(-1, 1)))
        values = st.sampled_from(HUGE + [-x for x in HUGE])
        grads = st.lists(values, min_size=dim, max_size=dim)
        steps = st.lists(st.tuples(grads, st.sampled_from(RATES)), min_size=1, max_size=8)

        @settings(max_examples=settings().max_examples // 5, database=None)
        @given(steps)
        def check(steps):
            table, reference = self.make(config), ReferenceTable(config)
            for step, (grad, rate) in enumerate(steps):
                call = {"step": step, "learning_rates": [rate], "now": NOW}
                for each in (table, reference):
                    each.apply_gradients(keys(1), floats(grad), **call)
            rows = exported(table)
            assert all(bool(torch.isfinite(column).all()) for column in rows.columns.values())
            assert_equal_rows(rows, exported(reference))
            table.close()

        check()
