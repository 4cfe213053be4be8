from typing import Any

import pytest

from monolith.native_training.ops import (
    FeatureConfig,
    FeatureConfigs,
    OutConfig,
    OutType,
    ParserContext,
    PoolingType,
    ShardingSparseFidsOpParams,
    SliceConfig,
)
from tests.native_training.ops.layout_oracle import FIRSTN, MEAN, SUM, small_configs

UNKNOWN: tuple[Any, ...] = (2.5,)
CONCAT, STACK, ADDN, NONE = OutType.CONCAT, OutType.STACK, OutType.ADDN, OutType.NONE


def test_the_numbers_are_those_of_the_reference_system():
    assert {kind.name: int(kind) for kind in PoolingType} == {"SUM": 0, "MEAN": 1, "FIRSTN": 3}
    assert [kind.name for kind in OutType] == ["CONCAT", "STACK", "ADDN", "NONE"]


def configs(kind, *slices, shape=()):
    features = {
        "s": FeatureConfig("t", (1, 2), SUM),
        "m": FeatureConfig("t", (1, 2), MEAN),
        "f": FeatureConfig("t", (1, 2), FIRSTN, 2),
        "g": FeatureConfig("t", (1, 2), FIRSTN, 5),
    }
    pieces = [SliceConfig(*piece) for piece in slices]
    return FeatureConfigs(features, {"out": OutConfig(pieces, kind, shape)})


@pytest.mark.parametrize(
    ("kind", "names", "shapes"),
    [
        (CONCAT, "sm", ((-1, 4),)),
        (CONCAT, "ff", ((-1, 2, 4),)),
        (STACK, "sms", ((-1, 3, 2),)),
        (STACK, "gg", ((-1, 2, 5, 2),)),
        (ADDN, "sm", ((-1, 2),)),
        (NONE, "sfg", ((-1, 2), (-1, 2, 2), (-1, 5, 2))),
    ],
)
def test_shapes_follow_from_slices(kind, names, shapes):
    slices = [(name, 1, 3) for name in names]
    found = configs(kind, *slices, shape=shapes)
    assert found.output_shapes == {"out": shapes}


@pytest.mark.parametrize(
    ("kind", "slices", "text"),
    [
        (CONCAT, [("x", 0, 1)], "expected slices of known features, got 'x' .output 'out'."),
        (CONCAT, [("s", 0, 4)], "expected 0 <= start < end <= 3, got start 0 and end 4"),
        (CONCAT, [("s", 1, 1)], "got start 1 and end 1"),
        (CONCAT, [("s", -1, 1)], "got start -1 and end 1"),
        (CONCAT, [("s", 0, 1), ("f", 0, 1)], "none of them, got SUM or MEAN, FIRSTN of 2"),
        (STACK, [("f", 0, 1), ("g", 0, 1)], "STACK as FIRSTN .* got FIRSTN of 2, FIRSTN of 5"),
        (STACK, [("s", 0, 1), ("m", 1, 3)], r"slices of STACK of one width, got \[1, 2\]"),
        (ADDN, [("s", 0, 1), ("m", 1, 3)], r"slices of ADDN of one width, got \[1, 2\]"),
        (ADDN, [("f", 0, 1)], "expected ADDN of SUM and MEAN slices, got FIRSTN"),
    ],
)
def test_outputs_that_cannot_be_made_are_refused(kind, slices, text):
    with pytest.raises(ValueError, match=text):
        configs(kind, *slices)


def test_a_shape_that_the_slices_do_not_make_is_refused():
    with pytest.raises(ValueError, match=r"expected shape \(\(-1, 1\),\) of output 'out', got"):
        configs(CONCAT, ("s", 0, 1), shape=[(-1, 2)])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: FeatureConfig("t", ()), r"slice_dims of at least 1 each, got \(\) .table 't'."),
        (lambda: FeatureConfig("t", (0,)), r"got \(0,\)"),
        (lambda: FeatureConfig("t", (1,), FIRSTN), "max_sequence_length of at least 1 with FIRSTN"),
        (
            lambda: FeatureConfig("t", (1,), *UNKNOWN),
            "PoolingType as one of SUM=0, MEAN=1, FIRSTN=3, got 2.5",
        ),
        (lambda: OutConfig([], CONCAT), "expected at least 1 slice, got none"),
        (
            lambda: OutConfig([SliceConfig("a", 0, 1)], *UNKNOWN),
            "OutType as one of CONCAT=0, .* got 2.5",
        ),
        (
            lambda: ShardingSparseFidsOpParams(-1, small_configs()),
            "expected num_ps of at least 0, got -1",
        ),
    ],
)
def test_configs_without_a_meaning_are_refused(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_later_changes_of_the_mappings_do_not_reach_the_configs():
    features = {"a": FeatureConfig("t", (1,))}
    found = FeatureConfigs(features)
    features.clear()
    assert found.feature_names == ("a",)


def test_two_parser_contexts_know_nothing_of_each_other():
    first, second = ParserContext(), ParserContext()
    first.sharding_sparse_fids_op_params = ShardingSparseFidsOpParams(3, small_configs())
    assert first.sharding_sparse_fids_op_params.num_shards == 3
    assert second.sharding_sparse_fids_op_params is None
