import pytest
import torch

from monolith.errors import InvalidArgumentError
from monolith.native_training.ops import (
    fill_with_offset_map,
    fill_with_offset_map_gradient,
    unique_key_with_value_and_offset,
)
from monolith.ops import Ragged

KEYS = Ragged.from_lists([[], [0, 1, 2, 1, 0], [0, 1, 0], []])
DIMS = [1, 2, 3, 4]
POS = Ragged.from_lists([[], [0, 1, 2], [3, 4], []])


def offsets():
    return unique_key_with_value_and_offset(KEYS, DIMS)[1]


def fill(value, pos=POS, size=19, **options):
    return fill_with_offset_map([pos], [value], offsets(), DIMS, size, **options)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_rows_are_copied_to_all_their_places(num_threads):
    found = fill(torch.arange(12.0), num_threads=num_threads)
    assert found.tolist() == [0, 1, 2, 3, 4, 5, 2, 3, 0, 1, 6, 7, 8, 9, 10, 11, 6, 7, 8]


@pytest.mark.parametrize("num_threads", [1, 3])
def test_the_gradient_of_a_row_is_the_sum_over_its_copies(num_threads):
    value = torch.arange(12.0).requires_grad_()
    fill(value, num_threads=num_threads).backward(torch.arange(19.0))
    assert value.grad.tolist() == [8, 10, 8, 10, 4, 5, 26, 28, 30, 13, 14, 15]


def test_the_gradient_is_to_be_had_without_autograd():
    pos = [Ragged.from_lists([[], [2, 0], [4], []]), Ragged.from_lists([[], [1], [3], []])]
    found = fill_with_offset_map_gradient(pos, torch.arange(19.0), offsets(), DIMS)
    assert [part.tolist() for part in found] == [[4, 5, 8, 10, 13, 14, 15], [8, 10, 26, 28, 30]]


def test_the_gradient_of_one_copy_has_its_bits():
    one = Ragged.from_lists([[0]])
    (found,) = fill_with_offset_map_gradient([one], torch.tensor([-0.0]), one, [1])
    assert torch.signbit(found).tolist() == [True]


def test_the_gradient_of_a_row_without_copies_is_zero():
    one, nowhere = Ragged.from_lists([[0]]), Ragged.from_lists([[]])
    (found,) = fill_with_offset_map_gradient(
        [one], torch.ones(0), Ragged(nowhere.values.long(), nowhere.row_splits), [1]
    )
    assert found.tolist() == [0]


def test_a_gradient_of_another_size_is_refused():
    text = "expected an offset with 3 of 18 floats behind it, got 16"
    with pytest.raises(InvalidArgumentError, match=text):
        fill_with_offset_map_gradient([POS], torch.zeros(18), offsets(), DIMS)


def test_shards_fill_one_buffer():
    pos = [Ragged.from_lists([[], [2, 0], [4], []]), Ragged.from_lists([[], [1], [3], []])]
    values = [torch.tensor([4.0, 5, 0, 1, 9, 10, 11]), torch.tensor([2.0, 3, 6, 7, 8])]
    found = fill_with_offset_map(pos, values, offsets(), DIMS, 19)
    assert torch.equal(found, fill(torch.arange(12.0)))


def test_places_that_nobody_fills_are_zero():
    assert fill_with_offset_map([], [], offsets(), DIMS, 2).tolist() == [0, 0]


@pytest.mark.parametrize("size", [10, 13])
def test_a_value_of_another_length_is_refused(size):
    with pytest.raises(InvalidArgumentError, match=f"a value of 12 floats, got {size}"):
        fill(torch.zeros(size))


@pytest.mark.parametrize("number", [5, -1])
def test_a_key_that_does_not_exist_is_refused(number):
    pos = Ragged.from_lists([[], [number], [], []])
    with pytest.raises(InvalidArgumentError, match=rf"expected pos in \[0, 5\), got {number}"):
        fill(torch.zeros(2), pos)


WRONG_SPLITS = [[], [1, 2], [0, 3], [0, 1], [0, 1 << 40, 2], [0, -1, 2]]


def unchecked(splits):
    return Ragged._unchecked(torch.tensor([0, 1]), torch.tensor(splits, dtype=torch.int64))


@pytest.mark.parametrize("splits", WRONG_SPLITS[1:])
def test_wrong_splits_of_pos_are_refused(splits):
    text = "expected row_splits of pos from 0 to 2, the number of values, ascending"
    dims = [1] * (len(splits) - 1)
    with pytest.raises(InvalidArgumentError, match=text):
        fill_with_offset_map([unchecked(splits)], [torch.ones(2)], offsets(), dims, 19)


@pytest.mark.parametrize("splits", WRONG_SPLITS)
def test_wrong_splits_of_the_offset_map_are_refused(splits):
    text = "expected row_splits of offset_map from 0 to 2, the number of values, ascending"
    pos = Ragged.from_lists([[0]])
    with pytest.raises(InvalidArgumentError, match=text):
        fill_with_offset_map([pos], [torch.ones(1)], unchecked(splits), [1], 2)


def test_a_place_outside_of_the_buffer_is_refused():
    text = "expected an offset with 3 of 18 floats behind it, got 16"
    with pytest.raises(InvalidArgumentError, match=text):
        fill(torch.zeros(12), size=18)


def test_other_numbers_of_arguments_are_refused():
    with pytest.raises(ValueError, match="got 1 pos and 0 values"):
        fill_with_offset_map([POS], [], offsets(), DIMS, 19)
    with pytest.raises(ValueError, match="expected a size of at least 0, got -1"):
        fill(torch.zeros(12), size=-1)


def test_other_dtypes_are_refused():
    with pytest.raises(TypeError, match=r"value\[0\] of dtype float32, got float64"):
        fill(torch.zeros(12).double())
