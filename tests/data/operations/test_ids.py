import pytest

from monolith import data
from monolith.data.operations.ids import FeatureCombine, FidMask, MapId, SwitchSlot
from tests.data.operations.blocks import block, rows

V1, V2 = 1 << 54, 1 << 48


def test_a_slot_is_switched_in_place_or_beside():
    source = data.arrow_table({"a": [V2 + 100], "b": [[V2 + 7, V2 + 8]]})
    switched = source.map(SwitchSlot({"a": (True, 2), "b": (False, 3)}))
    batch = next(iter(switched.batch(1)))
    found = {name: each.to_lists() for name, each in batch.features.items()}
    assert found == {
        "a": [[2 * V2 + 100]],
        "b": [[V2 + 7, V2 + 8]],
        "b_share": [[3 * V2 + 7, 3 * V2 + 8]],
    }


def test_signatures_keep_48_or_54_bits():
    samples = block(a=[V2 + V2 - 1], b=[V1 + V1 - 1])
    assert rows(SwitchSlot({"a": (True, 2)})(samples))["a"] == [2 * V2 + V2 - 1]
    assert rows(SwitchSlot({"b": (True, 2)}, fid_version=1)(samples))["b"] == [2 * V1 + V1 - 1]


def test_slots_and_versions_are_checked_when_it_is_made():
    with pytest.raises(ValueError, match="slot should be less than 32768, while got 32768"):
        SwitchSlot({"a": (True, 32768)})
    with pytest.raises(ValueError, match=r"\[SwitchSlot\] expected fid_version 1 or 2, got 3"):
        SwitchSlot({}, fid_version=3)


def test_all_pairs_are_combined():
    samples = block(a=[[V2 + 100], [1, 2], []], b=[[2 * V2 + 200], [3, 5], [7]])
    found = rows(FeatureCombine("c", "a", "b", 505)(samples))["c"]
    assert found[0] == [142144871828835872]
    assert [fid - 505 * V2 for fid in found[1]] == [3, 5, 6, 10]
    assert found[2] == []


def test_a_combined_feature_reaches_the_batch():
    source = data.arrow_table({"a": [2], "b": [3]}).map(FeatureCombine("c", "a", "b", 1)).batch(1)
    assert next(iter(source)).features["c"].to_lists() == [[V2 + 6]]


def test_the_mask_of_the_reference():
    samples = block(ids=[[1, 2, 3], [3], [], [4, 5, 6]])
    assert rows(FidMask("m", "ids", 3)(samples))["m"] == [1.0, 1.0, 0.0, 0.0]
    assert rows(FidMask("m", "ids", 2**64 - 1)(block(ids=[-1, 1])))["m"] == [1.0, 0.0]


def test_a_mask_is_a_dense_column():
    source = data.arrow_table({"ids": [3, 4]}).map(FidMask("m", "ids", 3)).batch(2)
    assert next(iter(source)).dense["m"].tolist() == [1.0, 0.0]


def test_ids_are_mapped_by_a_table():
    mapped = MapId("ids", {123: 0, 456: 1, 789: 2})
    assert rows(mapped(block(ids=[[123, 789], [5], []])))["ids"] == [[0, 2], [-1], []]
    assert rows(MapId("ids", {1: 2}, default=7)(block(ids=[1, 3])))["ids"] == [2, 7]
