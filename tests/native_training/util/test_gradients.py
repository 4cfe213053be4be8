import pytest
import torch

from monolith.native_training.util.gradients import (
    propagate_back_dict_gradients,
    propagate_back_gradients,
)


def leaf(value):
    return torch.tensor(value, requires_grad=True)


def test_gradients_come_in_the_order_of_the_tensors():
    a, b = leaf(2.0), leaf(3.0)
    y, z = a * b, a + b
    found = propagate_back_gradients([(torch.tensor(1.0), y), (torch.tensor(10.0), z)], [b, a])
    assert found == [12.0, 13.0]


def test_a_tensor_that_no_variable_depends_on_has_no_gradient():
    a, b = leaf(2.0), leaf(3.0)
    assert propagate_back_gradients([(torch.tensor(1.0), 2 * a)], [a, b]) == [2.0, None]


def test_a_variable_without_a_gradient_adds_nothing():
    a = leaf(2.0)
    assert propagate_back_gradients([(None, 2 * a)], [a]) == [None]
    assert propagate_back_gradients([(None, 2 * a), (torch.tensor(1.0), 5 * a)], [a]) == [5.0]


def test_a_variable_that_depends_on_nothing_adds_nothing():
    a, constant, one = leaf(2.0), torch.tensor(7.0), torch.tensor(1.0)
    assert propagate_back_gradients([(one, constant)], [a]) == [None]
    assert propagate_back_gradients([(one, constant), (one, 5 * a)], [a]) == [5.0]


def test_nothing_to_propagate_gives_nothing():
    a = leaf(2.0)
    assert propagate_back_gradients([], [a]) == [None]
    assert propagate_back_gradients([(torch.tensor(1.0), 2 * a)], []) == []


def test_the_graph_can_be_used_again():
    a = leaf(2.0)
    y = a * a
    results = [propagate_back_gradients([(torch.tensor(1.0), y)], [a]) for _ in range(2)]
    assert results == [[4.0], [4.0]]


@pytest.mark.req("NT-UTIL-T6")
def test_a_variable_outside_the_valid_set_is_refused():
    a = leaf(2.0)
    y, twin = 2 * a, 2 * a
    with pytest.raises(RuntimeError) as caught:
        propagate_back_gradients([(torch.tensor(1.0), y)], [a], {twin})
    text, variable, valid = caught.value.args
    assert text == "Invalid variables in the input"
    assert variable is y
    assert list(valid) == [twin]


def test_a_list_of_valid_variables_compares_objects_and_not_numbers():
    a = leaf([2.0, 3.0])
    y = 2 * a
    (gradient,) = propagate_back_gradients([(torch.ones(2), y)], [a], [4 * a, y])
    assert gradient.tolist() == [2.0, 2.0]


def test_groups_keep_the_order_of_the_dictionary():
    a, b, c = leaf(1.0), leaf(2.0), leaf(3.0)
    pairs = [(torch.tensor(1.0), a + 2 * b + 3 * c)]
    grouped = propagate_back_dict_gradients(pairs, {c: "x", a: "y", b: "x"})
    assert grouped == {"x": [(3.0, c), (2.0, b)], "y": [(1.0, a)]}
    assert list(grouped) == ["x", "y"]


@pytest.mark.req("G-T4")
def test_one_shot_iterators_give_what_lists_give():
    a, b = leaf(2.0), leaf(3.0)
    y = a * b
    pairs = zip([torch.tensor(1.0)], [y], strict=True)
    gradients = propagate_back_gradients(pairs, (x for x in (a, b)), (x for x in [y]))
    assert gradients == [3.0, 2.0]


@pytest.mark.req("G-T4")
def test_groups_of_a_one_shot_iterator_have_gradients():
    a, b = leaf(2.0), leaf(3.0)
    y = a * b
    pairs = zip([torch.tensor(1.0)], [y], strict=True)
    grouped = propagate_back_dict_gradients(pairs, {a: "x", b: "y"}, iter([y]))
    assert grouped == {"x": [(3.0, a)], "y": [(2.0, b)]}
