import pytest
import torch

from monolith.native_training.ops import unique_key_with_value_and_offset
from monolith.ops import Ragged

KEYS = Ragged.from_lists([[], [0, 1, 2, 1, 0], [0, 1, 0], []])
DIMS = [1, 2, 3, 4]


def test_keys_are_unique_by_row_in_the_order_of_sight():
    unique, places = unique_key_with_value_and_offset(KEYS, DIMS)
    assert unique.to_lists() == [[], [0, 1, 2], [0, 1], []]
    assert places.to_lists() == [[0, 8], [2, 6], [4], [10, 16], [13]]


def test_no_keys_are_no_keys():
    unique, places = unique_key_with_value_and_offset(Ragged.from_lists([[], []]), [1, 2])
    assert unique.to_lists() == [[], []]
    assert places.to_lists() == []


def test_results_of_no_keys_share_no_memory():
    unique, places = unique_key_with_value_and_offset(Ragged.from_lists([[]]), [1])
    assert unique.values is not places.values
    assert unique.row_splits is not places.row_splits


WRONG_SPLITS = [[1, 2], [0, 3], [0, 1], [0, 1 << 40, 2], [0, -1, 2]]


@pytest.mark.parametrize("splits", WRONG_SPLITS)
def test_wrong_splits_of_keys_are_refused(splits):
    keys = Ragged._unchecked(torch.tensor([0, 1]), torch.tensor(splits))
    text = "expected row_splits from 0 to 2, the number of values, ascending"
    with pytest.raises(ValueError, match=text):
        unique_key_with_value_and_offset(keys, [1] * (len(splits) - 1))


def test_other_numbers_of_dims_are_refused():
    with pytest.raises(ValueError, match="expected 4 dims of at least 1, one per row, got "):
        unique_key_with_value_and_offset(KEYS, [1])
    with pytest.raises(ValueError, match=r"got \[1, 2, 3, 0\]"):
        unique_key_with_value_and_offset(KEYS, [1, 2, 3, 0])


def test_other_dtypes_are_refused():
    with pytest.raises(TypeError, match="ids of dtype int64, got float32"):
        unique_key_with_value_and_offset(Ragged(torch.ones(1), torch.tensor([0, 1])), [1])


def test_dims_may_be_a_tensor():
    as_list = unique_key_with_value_and_offset(KEYS, DIMS)
    as_tensor = unique_key_with_value_and_offset(KEYS, torch.tensor(DIMS))
    assert [each.to_lists() for each in as_list] == [each.to_lists() for each in as_tensor]
    with pytest.raises(TypeError, match="expected dims of dtype int64, got float32"):
        unique_key_with_value_and_offset(KEYS, torch.ones(4))
