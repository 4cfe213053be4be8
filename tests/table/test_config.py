import dataclasses

import pytest
import torch

from monolith.table import Constant, Normal, Rows, Segment, TableConfig, Uniform, Zeros
from monolith.table.config import column_sizes, name_seed
from monolith.table.optimizers import SGD, Adagrad
from tests.suites.table_base import keys

MAX = "3.40282e+38"


def assert_refused(text, make):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        make()
    assert str(caught.value) == text


@pytest.mark.parametrize("dim", [0, -1, 65537])
def test_segment_refuses_dim(dim):
    assert_refused(f"[Segment] expected 1 <= dim <= 65536, got {dim}", lambda: Segment(dim))


@pytest.mark.parametrize("name", ["", "a/b"])
def test_segment_refuses_name(name):
    text = f"[Segment] expected a name without '/', got {name!r}; it names columns"
    assert_refused(text, lambda: Segment(1, name=name))


def test_table_refuses_no_segments():
    text = "[TableConfig] expected at least one segment (table 'user')"
    assert_refused(text, lambda: TableConfig("user", []))


def test_table_refuses_equal_segment_names():
    text = "[TableConfig] expected distinct segment names, got ['1', '1']"
    assert_refused(text, lambda: TableConfig("user", [Segment(1, name="1"), Segment(1)]))


@pytest.mark.parametrize("seed", [-1, 1 << 64])
def test_table_refuses_seed(seed):
    text = f"[TableConfig] expected 0 <= seed < 2**64, got {seed}"
    assert_refused(text, lambda: TableConfig("user", Segment(1), seed=seed))


def test_table_refuses_unknown_non_finite():
    text = "[TableConfig] expected non_finite 'refuse', 'skip' or 'clip', got 'drop'"
    assert_refused(text, lambda: TableConfig("user", Segment(1), non_finite="drop"))


@pytest.mark.parametrize(("rule", "value"), [("clip", None), ("skip", 1.0), ("refuse", 1.0)])
def test_clip_value_goes_with_clip(rule, value):
    text = (
        "[TableConfig] expected clip_value exactly with non_finite='clip', "
        f"got clip_value={value} with {rule!r}"
    )
    make = dataclasses.replace
    config = TableConfig("user", Segment(1))
    assert_refused(text, lambda: make(config, non_finite=rule, clip_value=value))


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan"), 1e39])
def test_table_refuses_clip_value(value):
    text = f"[TableConfig] expected clip_value in (0, {MAX}], got {value}"
    segment = Segment(1)
    assert_refused(text, lambda: TableConfig("user", segment, non_finite="clip", clip_value=value))


def test_one_segment_and_a_list_of_one_are_equal():
    assert TableConfig("user", Segment(2)) == TableConfig("user", [Segment(2)])


def test_config_is_hashable_and_dim_is_the_sum():
    config = TableConfig("user", [Segment(2), Segment(3)])
    assert hash(config) == hash(TableConfig("user", (Segment(2), Segment(3))))
    assert config.dim == 5


def test_default_seed_is_the_low_half_of_md5():
    # md5("user") = ee11cbb19052e40b07aac0ca060c23ee
    assert name_seed("user") == 0x07AAC0CA060C23EE
    assert TableConfig("user", Segment(1)).seed == 0x07AAC0CA060C23EE
    assert TableConfig("user", Segment(1), seed=0).seed == 0


def test_columns_are_weights_then_state():
    segments = [Segment(2, Adagrad(), name="a"), Segment(3, SGD()), Segment(4, Adagrad())]
    assert list(column_sizes(TableConfig("user", segments)).items()) == [
        ("weight/a", 2),
        ("weight/1", 3),
        ("weight/2", 4),
        ("state/a/norm", 2),
        ("state/2/norm", 4),
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e39])
def test_initializers_refuse_values_beyond_float32(value):
    assert_refused(f"[Constant] expected |value| <= {MAX}, got {value}", lambda: Constant(value))
    half = "1.70141e+38"
    text = f"[Uniform] expected |minval| <= {half}, got {value}"
    assert_refused(text, lambda: Uniform(value, 1))
    text = f"[Uniform] expected |maxval| <= {half}, got {value}"
    assert_refused(text, lambda: Uniform(-1, value))


def test_uniform_refuses_bounds_in_the_wrong_order():
    assert_refused("[Uniform] expected minval <= maxval, got 2 > 1", lambda: Uniform(2, 1))


def test_defaults():
    segment = Segment(1)
    assert segment.optimizer == SGD(0.01)
    assert segment.initializer == Uniform(-0.05, 0.05)
    assert Adagrad() == Adagrad(0.001, 0.1, 0.0)
    assert Zeros() == Zeros()


def test_rows_refuse_columns_of_unequal_length():
    text = "[Rows] expected 2 rows in 'times', got 1"
    assert_refused(text, lambda: Rows(keys(1, 2), keys(1), {}))
    text = "[Rows] expected 2 rows in 'weight/0', got 3"
    columns = {"weight/0": torch.zeros(3, 1)}
    assert_refused(text, lambda: Rows(keys(1, 2), keys(1, 2), columns))


def test_segment_refuses_precision_and_view():
    text = "[Segment] expected precision 'fp32', 'fp16', 'bf16', got 'int8'"
    assert_refused(text, lambda: Segment(1, precision="int8"))
    with pytest.raises(TypeError) as caught:
        Segment(1, view="fixed_r8")
    text = "[Segment] expected view FixedR8, OneBit or None, got 'fixed_r8'"
    assert str(caught.value) == text


def test_table_refuses_kind_and_skip_zero():
    text = "[TableConfig] expected kind 'training' or 'serving', got 'other'"
    assert_refused(text, lambda: TableConfig("user", Segment(1), kind="other"))
    text = "[TableConfig] expected skip_zero with kind='serving' only, got 'training'"
    assert_refused(text, lambda: TableConfig("user", Segment(1), skip_zero=True))


def test_table_refuses_more_rounded_columns_than_the_counter_has():
    segments = [Segment(65536, precision="fp16"), *[Segment(65536)] * 3]
    assert TableConfig("user", segments).dim == 1 << 18
    text = "[TableConfig] expected dim <= 262144 with a precision other than 'fp32', got 262145"
    assert_refused(text, lambda: TableConfig("user", [*segments, Segment(1)]))


def test_normal_refuses_values_out_of_range():
    text = "[Normal] expected |mean| <= 2.12676e+37, got 1e+38"
    assert_refused(text, lambda: Normal(1e38))
    assert_refused("[Normal] expected stddev >= 0, got -1", lambda: Normal(0, -1))
