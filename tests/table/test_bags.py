from functools import partial

import pytest
import torch

from monolith.table import BagGradients, Bags
from tests.suites.table_bags import splits
from tests.suites.table_base import keys


def refused(error, text, build):
    with pytest.raises(error) as caught:
        build()
    assert str(caught.value) == text


def test_bags_count_their_keys_and_themselves():
    bags = Bags(keys(7, 8, 9), splits(2, 0, 1))
    assert (bags.num_keys, bags.num_bags, bags.mode, bags.weights) == (3, 3, "sum", None)


@pytest.mark.parametrize("name", ["keys", "row_splits"])
def test_keys_and_splits_of_another_dtype(name):
    arguments = {"keys": keys(1), "row_splits": splits(1)}
    arguments[name] = arguments[name].int()
    text = f"[Bags] expected {name} of dtype int64, got int32; cast with .to(torch.int64)"
    refused(TypeError, text, lambda: Bags(**arguments))


def test_bags_of_equally_many_keys_have_the_splits_of_their_number():
    bags = Bags(keys(7, 8, 7, 9), 2)
    assert (bags.num_keys, bags.num_bags) == (4, 2)
    assert torch.equal(bags.splits(), splits(2, 2))
    assert torch.equal(Bags(keys(), 3).splits(), splits(0, 0, 0))


@pytest.mark.parametrize("num_bags", [-1, 0, 2])
def test_number_of_bags_that_the_keys_do_not_fill(num_bags):
    text = f"[Bags] expected a number of bags that divides 3 keys, got {num_bags}"
    refused(ValueError, text, lambda: Bags(keys(1, 2, 3), num_bags))


def test_keys_of_two_dimensions():
    text = "[Bags] expected keys with 1 dimension(s), got shape (1, 2)"
    refused(ValueError, text, lambda: Bags(torch.zeros(1, 2).long(), splits(2)))


def test_no_row_splits():
    text = "[Bags] expected row_splits from 0 on, got none"
    refused(ValueError, text, lambda: Bags(keys(), keys()))


@pytest.mark.parametrize(("first", "last"), [(1, 3), (0, 2), (0, 4)])
def test_row_splits_that_do_not_cover_the_keys(first, last):
    text = f"[Bags] expected row_splits from 0 to 3, got from {first} to {last}"
    refused(ValueError, text, lambda: Bags(keys(1, 2, 3), keys(first, 1, last)))


def test_row_splits_that_decrease():
    text = "[Bags] expected ascending row_splits, got 3 and then 1 at 2"
    refused(ValueError, text, lambda: Bags(keys(1, 2, 3), keys(0, 3, 1, 2, 3)))


def test_unknown_mode():
    text = "[Bags] expected mode in sum, mean, sqrtn, max, got 'min'"
    refused(ValueError, text, lambda: Bags(keys(1), splits(1), "min"))


@pytest.mark.parametrize("mode", ["mean", "sqrtn", "max"])
def test_weights_with_another_mode_than_sum(mode):
    text = f"[Bags] expected weights only with mode 'sum', got {mode!r}"
    refused(ValueError, text, lambda: Bags(keys(1), splits(1), mode, torch.ones(1)))


def test_weights_of_another_dtype_or_number():
    text = "[Bags] expected weights of dtype float32, got float64; cast with .to(torch.float32)"
    refused(TypeError, text, lambda: Bags(keys(1), splits(1), weights=torch.ones(1).double()))
    text = "[Bags] expected 1 weights, one per key, got 2"
    refused(ValueError, text, lambda: Bags(keys(1), splits(1), weights=torch.ones(2)))


def test_gradients_of_something_else_than_bags():
    text = "[BagGradients] expected bags as Bags, got Tensor"
    refused(TypeError, text, lambda: BagGradients(keys(1), torch.ones(1, 2)))


def test_gradients_that_are_no_float_matrix():
    bags = Bags(keys(1), splits(1))
    text = (
        "[BagGradients] expected gradients of dtype float32, got float64; "
        "cast with .to(torch.float32)"
    )
    refused(TypeError, text, lambda: BagGradients(bags, torch.ones(1, 2).double()))
    text = "[BagGradients] expected gradients with 2 dimension(s), got shape (1,)"
    refused(ValueError, text, lambda: BagGradients(bags, torch.ones(1)))


def test_gradients_of_another_number_of_bags():
    text = "[BagGradients] expected 2 gradients, one per bag, got 1"
    bags = Bags(keys(1), splits(1, 0))
    refused(ValueError, text, lambda: BagGradients(bags, torch.ones(1, 2)))


def test_winners_belong_to_maxima():
    winners = torch.zeros(1, 2, dtype=torch.int32)
    text = "[BagGradients] expected winners with mode 'max' and only there, got {} with mode {!r}"
    for mode, given, got in (("max", None, "none"), ("sum", winners, "some")):
        bags = Bags(keys(1), splits(1), mode)
        build = partial(BagGradients, bags, torch.ones(1, 2), given)
        refused(ValueError, text.format(got, mode), build)


def test_winners_of_another_dtype_or_shape():
    bags = Bags(keys(1), splits(1), "max")
    text = "[BagGradients] expected winners of dtype int32, got int64; cast with .to(torch.int32)"
    winners = torch.zeros(1, 2, dtype=torch.int64)
    refused(TypeError, text, lambda: BagGradients(bags, torch.ones(1, 2), winners))
    text = "[BagGradients] expected winners of shape (1, 2), got (1, 3)"
    winners = torch.zeros(1, 3, dtype=torch.int32)
    refused(ValueError, text, lambda: BagGradients(bags, torch.ones(1, 2), winners))


@pytest.mark.parametrize(("winner", "bag"), [(2, 0), (-2, 0), (1, 1), (3, 1)])
def test_winners_that_are_no_places_of_their_bag(winner, bag):
    bags = Bags(keys(7, 8, 9), splits(2, 1), "max")
    winners = torch.tensor([[0, 1], [2, -1]], dtype=torch.int32)
    BagGradients(bags, torch.ones(2, 2), winners)
    winners[bag, 1] = winner
    text = (
        f"[BagGradients] expected winners of bag {bag} in {['[0, 2)', '[2, 3)'][bag]}, or -1, got "
        f"{winner} (column 1); pass those of lookup_bags"
    )
    refused(ValueError, text, lambda: BagGradients(bags, torch.ones(2, 2), winners))
