import pytest

from monolith.native_training.data.utils import (
    get_slot_feature_name,
    get_slot_from_feature_name,
    register_slots,
)


def test_features_are_registered_with_a_slot():
    register_slots({"test_utils_user": 31, "test_utils_item": 0})
    register_slots({"test_utils_user": 31})
    assert get_slot_from_feature_name("test_utils_user") == 31
    assert get_slot_from_feature_name("test_utils_item") == 0


def test_a_slot_without_a_feature_has_a_name_with_its_number():
    assert get_slot_from_feature_name(get_slot_feature_name(7)) == 7


def test_another_slot_of_a_feature_is_refused():
    register_slots({"test_utils_twice": 3})
    with pytest.raises(ValueError, match="expected slot 3 again, got 4"):
        register_slots({"test_utils_other": 1, "test_utils_twice": 4})
    assert get_slot_from_feature_name("test_utils_other") is None
    with pytest.raises(ValueError, match="expected a slot of at least 0, got -1"):
        register_slots({"test_utils_none": -1})
