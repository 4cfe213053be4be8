import pytest

from monolith.native_training.ops import OutConfig, OutType, PoolingType
from monolith.native_training.slots.combiners import Combiner, FirstN, ReduceSum
from monolith.native_training.tables.feature_plan import FeatureSpec, gen_feature_configs
from monolith.native_training.tables.table_merge import get_sub_table_name
from tests.native_training.tables.partitioned_oracle import (
    FEATURES,
    ONE,
    OUTPUTS,
    THREE,
    TWO,
    slices,
)


def test_features_have_tables_slices_and_pooling():
    params = gen_feature_configs(2, FEATURES, OUTPUTS)
    found = params.feature_configs.feature_configs
    assert [found[name].table for name in "abcd"] == ["a", "b", "c", "d"]
    assert (found["a"].slice_dims, found["a"].pooling_type) == ((1, 2), PoolingType.SUM)
    assert (found["c"].pooling_type, found["c"].max_sequence_length) == (PoolingType.FIRSTN, 2)
    assert list(params.sub_table_name_to_config) == ["a", "b", "c", "d"]


def test_fids_share_tables():
    params = gen_feature_configs(2, FEATURES, OUTPUTS, ids_carry_slot=True)
    names = [get_sub_table_name(pair)[1] for pair in ("ab", "cd")]
    assert list(params.sub_table_name_to_config) == names


@pytest.mark.parametrize("num_ps", [0, 1])
def test_no_server_means_one_local_shard(num_ps):
    assert gen_feature_configs(num_ps, FEATURES, OUTPUTS).num_shards == 1


@pytest.mark.parametrize(("is_half", "expected"), [(False, True), (True, False)])
def test_native_tables_are_used_without_float16_only(is_half, expected):
    params = gen_feature_configs(2, FEATURES, OUTPUTS, transfer_float16=is_half)
    assert params.use_native_multi_hash_table is expected


@pytest.mark.req("NT-DPS-T8")
@pytest.mark.parametrize("out_type", [OutType.CONCAT, OutType.STACK])
@pytest.mark.parametrize("other", [ReduceSum(), FirstN(3)])
def test_an_output_of_mixed_lengths_is_refused(out_type, other):
    features = {"c": FEATURES["c"], "e": FeatureSpec(TWO, [2], other)}
    outputs = {"out": OutConfig(slices(("c", 0, 2), ("e", 0, 2)), out_type)}
    with pytest.raises(ValueError, match="as FIRSTN with one length, or none of them"):
        gen_feature_configs(2, features, outputs)


def test_a_combiner_that_layouts_do_not_have():
    with pytest.raises(Exception, match=r"^pooling_type error!$"):
        gen_feature_configs(2, {"a": FeatureSpec(ONE, [1], Combiner())}, {})


def test_slices_that_do_not_fill_a_row():
    text = r"expected slices of 3 columns, the row of the table, got \[1, 1\] \(feature 'a'\)"
    with pytest.raises(ValueError, match=text):
        gen_feature_configs(2, {"a": FeatureSpec(THREE, [1, 1], ReduceSum())}, {})
