import dataclasses

import pytest

from monolith.native_training.distributed_ps import PartitionedHashTable
from monolith.native_training.tables.table_merge import (
    get_sub_table_name,
    merge_feature_config,
    no_merge_feature_config,
)
from monolith.native_training.test_utils import generate_test_hash_table_config

FOUR, TWO = (generate_test_hash_table_config(dim) for dim in (4, 2))


def md5(*names):
    return get_sub_table_name(names)[1]


@pytest.mark.req("NT-DPS-T7")
def test_a_table_is_named_by_the_md5_of_its_features():
    assert get_sub_table_name(["a", "b"]) == ("a,b", "b345e1dc09f20fdefdea469f09167892")
    assert md5("slot0", "slot1") == "e21904dd414d1780e5fc904866dc69c2"


@pytest.mark.req("NT-DPS-T7")
def test_a_slot_column_has_the_older_name_of_its_table_too():
    merged = merge_feature_config({"fc_slot_12": FOUR}, ids_carry_slot=True)
    assert list(merged.sub_table_name_to_config) == [md5("fc_slot_12")]
    config = merged.sub_table_name_to_config[md5("fc_slot_12")]
    assert config.extra_restore_names == (md5("slot_12"),)


@pytest.mark.parametrize(
    "name", ["slot_12", "fc_slot_a", "my_fc_slot_12", "fc_slot_12x", "fc_slot_12\n", "user"]
)
def test_other_names_have_no_older_name(name):
    merged = merge_feature_config({name: FOUR}, ids_carry_slot=True)
    assert merged.sub_table_name_to_config[md5(name)].extra_restore_names is None


def test_equal_configs_share_a_table_in_the_order_of_names():
    merged = merge_feature_config({"b": FOUR, "c": TWO, "a": FOUR}, ids_carry_slot=True)
    assert merged.feature_to_sub_table_name == {
        "a": md5("a", "b"),
        "b": md5("a", "b"),
        "c": md5("c"),
    }
    assert merged.sub_table_name_to_config == {md5("a", "b"): FOUR, md5("c"): TWO}


def test_restore_names_that_were_given_stay():
    config = dataclasses.replace(FOUR, extra_restore_names=["old"])
    merged = merge_feature_config({"fc_slot_1": config, "user": FOUR}, ids_carry_slot=True)
    (table,) = merged.sub_table_name_to_config.values()
    assert table.extra_restore_names == ("old", md5("slot_1", "user"))


def test_a_partitioned_table_has_both_ways():
    one, other = {"b": FOUR, "a": FOUR}, no_merge_feature_config({"a": FOUR, "b": FOUR})
    assert PartitionedHashTable.no_merge_feature_config(one) == other
    merged = PartitionedHashTable.merge_feature_config(one, ids_carry_slot=True)
    assert list(merged.sub_table_name_to_config) == [md5("a", "b")]


def test_plain_ids_are_never_merged():
    merged = merge_feature_config({"b": FOUR, "a": FOUR}, ids_carry_slot=False)
    assert merged == no_merge_feature_config({"a": FOUR, "b": FOUR})
    assert merged.feature_to_sub_table_name == {"a": "a", "b": "b"}
