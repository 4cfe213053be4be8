import dataclasses

import numpy as np
import pytest

from monolith.table import Segment, TableConfig
from monolith.table.config import column_dtypes, column_sizes
from monolith.table.optimizers import (
    FTRL,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    AMSGrad,
    BatchSoftmax,
    DynamicWdAdagrad,
    GroupAdagrad,
    GroupFTRL,
    Momentum,
    MovingAverage,
    PolynomialDecay,
    RMSprop,
    RMSpropV2,
    RowWiseAdagrad,
)
from tests.suites.optimizer_cases import CLASSES

MAX = "3.40282e+38"

STATES = [
    (SGD(), []),
    (MovingAverage(), []),
    (Momentum(), [("n", 8, 0)]),
    (RMSprop(), [("n", 8, 0)]),
    (RMSpropV2(), [("n", 8, 0)]),
    (Adagrad(), [("norm", 8, 0.1)]),
    (DynamicWdAdagrad(), [("norm", 8, 0.1)]),
    (RowWiseAdagrad(), [("norm", 1, 0)]),
    (GroupAdagrad(), [("grad_square_sum", 1, 0.1)]),
    (FTRL(), [("zero", 8, 0), ("norm", 8, 0.1)]),
    (GroupFTRL(), [("zero", 8, 0), ("norm", 8, 0)]),
    (Adadelta(), [("accum", 8, 0), ("accum_update", 8, 0)]),
    (Adam(), [("m", 8, 0), ("v", 8, 0), ("beta1_power", 1, 0.9), ("beta2_power", 1, 0.99)]),
]

DEFAULTS = [
    (SGD(), SGD(0.01, 0)),
    (Adagrad(), Adagrad(0.001, 0.1, 0.0, 0, 1)),
    (DynamicWdAdagrad(), DynamicWdAdagrad(0.001, 0.1, 0.0, False, 0, 1, False, False, 1.0)),
    (RowWiseAdagrad(), RowWiseAdagrad(0.01, 0.0, 1e-8)),
    (GroupAdagrad(), GroupAdagrad(0.01, 0.0, 0.1, 0.0, 0.0, 0)),
    (FTRL(), FTRL(0.01, 0.1, 0.0, 0.0, 0.0, 0)),
    (GroupFTRL(), GroupFTRL(0.01, 0.0, 1.0, 0.0, 0.0, 0)),
    (Adadelta(), Adadelta(0.01, 0.0, 0.9, 0.01, 0)),
    (Adam(), Adam(0.01, 0.9, 0.99, 0.0, False, 0.01, 0, False)),
    (AMSGrad(), AMSGrad(0.01, 0.9, 0.99, 0.0, False, 0.01, 0)),
    (Momentum(), Momentum(0.01, 0.0, False, 0.9, 0)),
    (MovingAverage(), MovingAverage(0.9)),
    (RMSprop(), RMSprop(0.01, 0.0, 0.9)),
    (RMSpropV2(), RMSpropV2(0.01, 0.0, 0.9)),
    (BatchSoftmax(), BatchSoftmax(0.1)),
]

REFUSED = [
    (Adagrad, "hessian_compression_times", 2, "1"),
    (DynamicWdAdagrad, "hessian_compression_times", 2, "1"),
    (DynamicWdAdagrad, "enable_dynamic_wd", True, "False"),
    (DynamicWdAdagrad, "flip_direction", True, "False"),
    (DynamicWdAdagrad, "dynamic_wd_temperature", 0.5, "1.0"),
    (Adam, "use_beta1_warmup", True, "False"),
]


def options_with(kind):
    return [
        (cls, option)
        for cls in CLASSES
        for option in dataclasses.fields(cls)
        if kind in option.metadata
    ]


def refusal(error, make):
    with pytest.raises(error) as caught:
        make()
    return str(caught.value)


@pytest.mark.parametrize(("optimizer", "columns"), STATES)
def test_state_columns(optimizer, columns):
    got = [(column.name, column.size, column.initial) for column in optimizer.state(8)]
    assert got == columns
    assert {column.dtype for column in optimizer.state(8)} <= {"float32"}


def test_amsgrad_keeps_the_largest_v_between_v_and_the_powers():
    names = [column.name for column in AMSGrad().state(8)]
    assert names == ["m", "v", "vhat", "beta1_power", "beta2_power"]


def test_batch_softmax_keeps_an_int64():
    (column,) = BatchSoftmax().state(1)
    assert (column.name, column.size, column.dtype) == ("global_step", 1, "int64")
    config = TableConfig("user", [Segment(2, FTRL()), Segment(1, BatchSoftmax())])
    assert column_dtypes(config)["state/1/global_step"] == "int64"
    assert list(column_dtypes(config)) == list(column_sizes(config))


@pytest.mark.parametrize(("optimizer", "expected"), DEFAULTS)
def test_defaults(optimizer, expected):
    assert optimizer == expected


@pytest.mark.parametrize("cls", CLASSES)
def test_none_stands_for_the_default(cls):
    names = [option.name for option in dataclasses.fields(cls) if option.init]
    assert cls(**dict.fromkeys(names)) == cls()


@pytest.mark.parametrize("cls", CLASSES)
def test_an_option_that_an_optimizer_does_not_have_is_refused_by_name(cls):
    with pytest.raises(TypeError, match="no_such_option"):
        cls(no_such_option=1)


def test_moving_average_has_no_learning_rate():
    with pytest.raises(TypeError, match="learning_rate"):
        MovingAverage(learning_rate=0.1)


@pytest.mark.parametrize(("cls", "name", "value", "default"), REFUSED)
def test_options_without_a_published_rule_are_refused(cls, name, value, default):
    text = f"[{cls.__name__}] expected {name}={default}, got {value}; no rule for it was published"
    assert refusal(ValueError, lambda: cls(**{name: value})) == text


@pytest.mark.parametrize("value", [-0.5, float("nan"), float("inf"), 1e39])
@pytest.mark.parametrize(("cls", "option"), options_with("most"))
def test_numbers_outside_their_range_are_refused(cls, option, value):
    text = refusal(ValueError, lambda: cls(**{option.name: value}))
    limit = {1.0: "1]", 1 - 2.0**-24: "1)"}.get(option.metadata["most"], f"{MAX}]")
    assert text == f"[{cls.__name__}] expected {option.name} in [0, {limit}, got {value}"


@pytest.mark.parametrize("value", [-0.5, float("nan"), float("inf"), 1e39])
@pytest.mark.parametrize("cls", [cls for cls in CLASSES if cls is not MovingAverage])
def test_learning_rates_outside_their_range_are_refused(cls, value):
    text = f"[{cls.__name__}] expected learning_rate in [0, {MAX}], got {value}"
    assert refusal(ValueError, lambda: cls(learning_rate=value)) == text


@pytest.mark.parametrize(("cls", "option"), options_with("is_flag"))
def test_flags_are_true_or_false(cls, option):
    text = f"[{cls.__name__}] expected {option.name} as True or False, got 1"
    assert refusal(TypeError, lambda: cls(**{option.name: 1})) == text


@pytest.mark.parametrize(("cls", "option"), options_with("is_steps"))
def test_warmup_is_a_number_of_steps(cls, option):
    text = f"[{cls.__name__}] expected {option.name} as an integer, got 0.5"
    assert refusal(TypeError, lambda: cls(**{option.name: 0.5})) == text
    text = f"[{cls.__name__}] expected {option.name} >= 0, got -1"
    assert refusal(ValueError, lambda: cls(**{option.name: -1})) == text
    assert cls(**{option.name: np.int64(3)}) == cls(**{option.name: 3})


def test_warmup_beside_a_schedule_is_refused():
    schedule = PolynomialDecay(0.1, 10)
    text = "[SGD] expected warmup_steps=0 beside a schedule, got 5"
    assert refusal(ValueError, lambda: SGD(schedule, warmup_steps=5)) == text
    assert SGD(schedule).schedule == schedule


def test_warmup_is_a_straight_line():
    optimizer = Adagrad(0.5, warmup_steps=4)
    assert optimizer.schedule == PolynomialDecay(0.0, 4, 0.5)
    assert [optimizer.rate(step) for step in range(6)] == [0, 0.125, 0.25, 0.375, 0.5, 0.5]
    assert Adagrad(0.5).schedule == 0.5


def test_batch_softmax_refuses_more_than_one_column():
    text = "[BatchSoftmax] expected a segment of dim 1, got 2"
    assert refusal(ValueError, lambda: Segment(2, BatchSoftmax())) == text


def test_segment_refuses_what_is_no_optimizer():
    text = "[Segment] expected a sparse optimizer, got 'adam'"
    assert refusal(TypeError, lambda: Segment(2, "adam")) == text


def test_bytes_of_a_column():
    assert [column.num_bytes for column in Adam().state(8)] == [32, 32, 4, 4]
    assert BatchSoftmax().state(1)[0].num_bytes == 8
