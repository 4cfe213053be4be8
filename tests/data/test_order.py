import numpy as np

from monolith.data.order import permutation, uniform


def test_a_permutation_has_every_number_once():
    assert sorted(permutation(1000, 3).tolist()) == list(range(1000))


def test_permutations_depend_on_every_number():
    orders = {tuple(permutation(20, *numbers)) for numbers in [(0, 0), (0, 1), (1, 0), (1, 1)]}
    assert len(orders) == 4


def test_a_permutation_is_the_same_in_every_version():
    assert permutation(8, 7, 1).tolist() == [7, 4, 3, 1, 5, 6, 2, 0]


def test_numbers_do_not_depend_on_the_blocks_they_are_drawn_in():
    whole = uniform(100, 5)
    parts = [uniform(30, 5), uniform(70, 5, first=30)]
    assert (whole == np.concatenate(parts)).all()


def test_numbers_are_uniform():
    drawn = uniform(100_000, 5)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts, _ = np.histogram(drawn, 10, (0, 1))
    assert abs(counts - 10_000).max() < 500
