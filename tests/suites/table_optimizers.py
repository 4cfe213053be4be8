"""Published test vectors of every sparse optimizer; weights start at 0 unless said."""

from typing import Any

import pytest
import torch

from monolith.table import Constant, Segment, TableConfig, Zeros
from monolith.table.optimizers import (
    FTRL,
    SGD,
    Adadelta,
    Adam,
    AMSGrad,
    BatchSoftmax,
    DynamicWdAdagrad,
    GroupAdagrad,
    GroupFTRL,
    Momentum,
    MovingAverage,
    RMSprop,
    RMSpropV2,
    RowWiseAdagrad,
)
from tests.suites.table_base import TableCase, column, exported, floats, keys, read

TEN_ONE = [(10, 1), (10, 1)]
ADAM = [(-0.00990099, -0.00909091), (-0.01983060, -0.01842895)]
GROUP: dict[str, Any] = {"beta": 1.0, "initial_accumulator_value": 0.0}

# name: optimizer, gradients of each step, weights after each step
WEIGHTS = {
    "sgd": (SGD(0.1), [(1,)], [(-0.1,)]),
    "ftrl": (FTRL(0.01), TEN_ONE, [(-0.009995, -0.00953463), (-0.0170643, -0.0164353)]),
    "ftrl-l1": (FTRL(0.01, l1_regularization=1), [(10, -10)], [(-0.0089955, 0.0089955)]),
    "ftrl-l2-beta": (
        FTRL(0.01, beta=1, l2_regularization=1),
        [(10,), (10,)],
        [(-0.00907853,), (-0.01567672,)],
    ),
    "group-ftrl": (
        GroupFTRL(0.01, l1_regularization=1),
        TEN_ONE,
        [(-0.00818633, -0.00450248), (-0.01479001, -0.00867126)],
    ),
    "group-adagrad-of-one": (
        GroupAdagrad(0.01, l2_regularization=1, **GROUP),
        [(10,), (10,)],
        [(-0.008182,), (-0.014125,)],
    ),
    "group-adagrad-of-two": (
        GroupAdagrad(0.01, l2_regularization=0.5, **GROUP),
        [(10, 1), (1, 5)],
        [(-0.008639, -0.000864), (-0.009096, -0.004778)],
    ),
    "group-adagrad-no-lasso": (GroupAdagrad(0.01, **GROUP), [(10, 1)], [(-0.009091, -0.000909)]),
    "group-adagrad-all-zero": (
        GroupAdagrad(0.01, l2_regularization=1000, **GROUP),
        [(10, 1)],
        [(0, 0)],
    ),
    "adadelta": (
        Adadelta(0.01),
        TEN_ONE,
        [(-0.0031607, -0.0030151), (-0.0064035, -0.0061047)],
    ),
    "adam": (Adam(0.01), TEN_ONE, ADAM),
    "adam-nesterov": (
        Adam(0.01, use_nesterov=True),
        TEN_ONE,
        [(-0.01881188, -0.01727273), (-0.03297463, -0.03059172)],
    ),
    "amsgrad": (AMSGrad(0.01), TEN_ONE, ADAM),
    "momentum": (Momentum(0.01), TEN_ONE, [(-0.1, -0.01), (-0.29, -0.029)]),
    "momentum-nesterov": (
        Momentum(0.01, use_nesterov=True),
        TEN_ONE,
        [(-0.19, -0.019), (-0.461, -0.0461)],
    ),
    "moving-average": (MovingAverage(), TEN_ONE, [(1, 0.1), (1.9, 0.19)]),
    "rmsprop": (RMSprop(0.01), [(10,), (10,)], [(-0.024025,), (-0.042686,)]),
    "rmsprop-v2": (
        RMSpropV2(0.01),
        TEN_ONE,
        [(-0.0090909, -0.005), (-0.0158549, -0.0092045)],
    ),
    "dynamic-wd-adagrad": (
        DynamicWdAdagrad(
            0.1,
            initial_accumulator_value=1,
            weight_decay_factor=0.1,
            decouple_weight_decay=True,
        ),
        [(1, 2), (1, 2)],
        [(-0.07071068, -0.08944272), (-0.1277386, -0.15521497)],
    ),
    # By hand: s = (9 + 16) / 2 = 12.5, then 25.
    "row-wise-adagrad": (
        RowWiseAdagrad(1.0),
        [(3, 4), (3, 4)],
        [(-0.84852814, -1.1313709), (-1.4485281, -1.9313709)],
    ),
}

# name: optimizer, state column, its values after each step of gradients (10, 1) or (10,)
STATES = {
    "ftrl": (FTRL(0.01), "norm", [(100.1, 1.1)]),
    "group-adagrad": (GroupAdagrad(0.01, 1, 0, 1), "grad_square_sum", [(100,), (200,)]),
    "adadelta": (Adadelta(0.01), "accum", [(10, 0.1)]),
    "adam": (Adam(0.01), "m", [(1, 0.1)]),
    "adam-beta1": (Adam(0.01), "beta1_power", [(0.81,), (0.729,)]),
    "adam-beta2": (Adam(0.01), "beta2_power", [(0.9801,), (0.970299,)]),
    "rmsprop": (RMSprop(0.01), "n", [(10, 0.1)]),
    "rmsprop-v2": (RMSpropV2(0.01), "n", [(100, 1)]),
}


class OptimizerVectors(TableCase):
    @pytest.mark.parametrize(("optimizer", "grads", "expected"), WEIGHTS.values(), ids=WEIGHTS)
    def test_weights_after_each_step(self, optimizer, grads, expected):
        table = self.table(len(grads[0]), optimizer=optimizer)
        for grad, weights in zip(grads, expected, strict=True):
            table.apply_gradients(keys(1), floats(grad))
            assert table.lookup(keys(1))[0].tolist() == pytest.approx(list(weights), abs=1e-6)

    @pytest.mark.parametrize(("optimizer", "name", "expected"), STATES.values(), ids=STATES)
    def test_state_after_each_step(self, optimizer, name, expected):
        table = self.table(2, optimizer=optimizer)
        for values in expected:
            table.apply_gradients(keys(1), floats((10, 1)))
            got = exported(table).columns[f"state/0/{name}"][0].tolist()
            assert got == pytest.approx(list(values), rel=1e-6)

    def test_rmsprop_uses_the_rate_of_the_call(self):
        table = self.table(optimizer=RMSprop(0.5))
        table.apply_gradients(keys(1), column(10), learning_rates=[0.01])
        assert read(table, 1) == pytest.approx([-0.024025], abs=1e-6)

    def test_moving_average_ignores_the_learning_rate_unless_it_is_zero(self):
        table = self.table(optimizer=MovingAverage())
        table.apply_gradients(keys(1), column(10), learning_rates=[0])
        assert read(table, 1) == [0]
        table.apply_gradients(keys(1), column(10), learning_rates=[123])
        assert read(table, 1) == pytest.approx([1], abs=1e-6)

    def test_warmup_raises_the_rate_from_zero(self):
        table = self.table(optimizer=SGD(0.5, warmup_steps=10))
        for step in (0, 1, 10, 11):
            table.apply_gradients(keys(step), column(1), step=step)
        assert read(table, 0, 1, 10, 11) == pytest.approx([0, -0.05, -0.5, -0.5])

    def test_group_ftrl_is_zero_up_to_its_l1(self):
        table = self.table(2, optimizer=GroupFTRL(0.1, l1_regularization=5))
        table.apply_gradients(keys(1), floats((3, 4)))
        assert table.lookup(keys(1)).tolist() == [[0, 0]]

    def test_group_adagrad_without_accumulator_and_gradient_stays(self):
        optimizer = GroupAdagrad(0.1, initial_accumulator_value=0, l2_regularization=1)
        table = self.table(2, optimizer=optimizer, initializer=Constant(3))
        table.apply_gradients(keys(1), torch.zeros(1, 2))
        assert table.lookup(keys(1)).tolist() == [[3, 3]]


class BatchSoftmaxVectors(TableCase):
    def test_weight_moves_towards_the_number_of_steps_passed(self):
        table = self.table(optimizer=BatchSoftmax(0.1))
        table.apply_gradients(keys(0), column(123), step=1)
        assert read(table, 0) == pytest.approx([0.1], abs=1e-6)

    def test_estimates_how_often_a_key_comes(self):
        table = self.table(optimizer=BatchSoftmax(0.1), initializer=Constant(1))
        for step in range(0, 1000, 5):
            batch = [0, 1] if step % 10 == 0 else [0]
            table.apply_gradients(keys(*batch), torch.zeros(len(batch), 1), step=step)
        intervals = torch.tensor(read(table, 0, 1)).clamp(min=1)
        assert (1 / intervals).tolist() == pytest.approx([0.2, 0.1], abs=0.01)

    def test_step_survives_export_import_and_lookup_exactly(self):
        step = (1 << 62) + 12345  # no float holds it
        segments = [Segment(3, SGD(1)), Segment(1, BatchSoftmax(), Zeros()), Segment(2, Adam())]
        config = TableConfig("user", segments)
        table, restored = self.build(config), self.build(config)
        table.apply_gradients(keys(7, -7), torch.ones(2, 6), step=step)
        restored.import_rows(exported(table))
        for rows in (exported(restored), table.lookup_entry(keys(7, -7)).rows):
            assert rows.columns["state/1/global_step"].dtype == torch.int64
            assert rows.columns["state/1/global_step"].tolist() == [[step], [step]]

    def test_absent_entry_has_step_zero(self):
        table = self.table(optimizer=BatchSoftmax())
        entries = table.lookup_entry(keys(7))
        assert entries.present.tolist() == [False]
        assert entries.rows.columns["state/0/global_step"].tolist() == [[0]]
