import pytest

from monolith.native_training.tables.entry_parts import (
    BatchSoftmaxInitializer,
    ConstantsInitializer,
    DcOptimizer,
    RandomUniformInitializer,
    SlotExpireTime,
    SlotExpireTimeConfig,
    SlotOccurrenceThreshold,
    SlotOccurrenceThresholdConfig,
    StochasticRoundingFloat16OptimizerWrapper,
)
from monolith.table import Constant, Uniform

MAX_UINT32 = (1 << 32) - 1

REFUSALS = [
    (
        lambda: SlotExpireTime(-1, 5),
        f"[SlotExpireTime] expected slot in [0, {MAX_UINT32}], got -1",
    ),
    (
        lambda: SlotExpireTime(1, 1 << 32),
        f"[SlotExpireTime] expected expire_time in [0, {MAX_UINT32}], got {1 << 32}",
    ),
    (
        lambda: SlotExpireTimeConfig(default_expire_time=-1),
        f"[SlotExpireTimeConfig] expected default_expire_time in [0, {MAX_UINT32}], got -1",
    ),
    (
        lambda: SlotExpireTimeConfig([SlotExpireTime(1, 2), SlotExpireTime(1, 3)]),
        "[SlotExpireTimeConfig] expected each slot once, got [1, 1]",
    ),
    (
        lambda: SlotOccurrenceThreshold(1, -1),
        f"[SlotOccurrenceThreshold] expected occurrence_threshold in [0, {MAX_UINT32}], got -1",
    ),
    (
        lambda: SlotOccurrenceThresholdConfig((), -1),
        "[SlotOccurrenceThresholdConfig] expected default_occurrence_threshold in "
        f"[0, {MAX_UINT32}], got -1",
    ),
    (
        lambda: SlotOccurrenceThresholdConfig([SlotOccurrenceThreshold(4, 2)] * 2),
        "[SlotOccurrenceThresholdConfig] expected each slot once, got [4, 4]",
    ),
    (
        lambda: BatchSoftmaxInitializer(0.5),
        "init_step_interval should be >= 1, while got 0.5",
    ),
    (
        lambda: DcOptimizer(0.1),
        "[DcOptimizer] expected another optimizer, got lambda_=0.1; delay compensation is not "
        "supported",
    ),
]


@pytest.mark.parametrize(("make", "text"), REFUSALS)
def test_bad_parts_are_refused(make, text):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        make()
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("make", "arguments", "text"),
    [
        (
            SlotExpireTime,
            {"slot": "1", "expire_time": 5},
            "[SlotExpireTime] expected slot as an integer, got '1'",
        ),
        (
            SlotExpireTimeConfig,
            {"slot_expire_times": [3]},
            "[SlotExpireTimeConfig] expected each of slot_expire_times as SlotExpireTime, got 3",
        ),
        (
            SlotOccurrenceThresholdConfig,
            {"slot_occurrence_thresholds": 3},
            "[SlotOccurrenceThresholdConfig] expected slot_occurrence_thresholds as a sequence, "
            "got 3",
        ),
        (
            BatchSoftmaxInitializer,
            {"init_step_interval": "1"},
            "[BatchSoftmaxInitializer] expected init_step_interval as a number, got '1'",
        ),
        (
            StochasticRoundingFloat16OptimizerWrapper,
            {"optimizer": "sgd"},
            "[StochasticRoundingFloat16OptimizerWrapper] expected optimizer as Optimizer, "
            "got 'sgd'",
        ),
    ],
)
def test_wrong_types_are_refused_by_name(make, arguments, text):
    with pytest.raises(TypeError) as caught:
        make(**arguments)
    assert str(caught.value) == text


def test_initializers_are_ours():
    assert ConstantsInitializer(2.0) == Constant(2.0)
    assert RandomUniformInitializer() == Uniform(-0.05, 0.05)
    assert RandomUniformInitializer(maxval=1.0) == Uniform(-0.05, 1.0)
    assert RandomUniformInitializer(-1.0) == Uniform(-1.0, 0.05)
    assert BatchSoftmaxInitializer(3) == Constant(3)


def test_defaults():
    assert SlotExpireTimeConfig().default_expire_time == 36500
    assert SlotOccurrenceThresholdConfig().default_occurrence_threshold == 0
