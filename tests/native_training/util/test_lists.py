import threading

import pytest

from monolith.native_training.util.lists import check_list, extend_as_list, to_list


@pytest.mark.req("NT-UTIL-T3")
@pytest.mark.parametrize("short", [[1], (1,)])
def test_a_short_list_or_tuple_is_padded_with_none(short):
    assert extend_as_list(short, 3) == [1, None, None]
    assert len(short) == 1


@pytest.mark.req("NT-UTIL-T3")
@pytest.mark.parametrize("long", [[1, 2], (1, 2), [1, 2, 3]])
def test_one_that_is_long_enough_is_returned_as_it_is(long):
    assert extend_as_list(long, 2) is long


@pytest.mark.req("NT-UTIL-T3")
def test_a_single_value_is_copied():
    value = {"a": [1]}
    first, second = extend_as_list(value, 2)
    assert first is value
    assert second == value
    assert second["a"] is not value["a"]


@pytest.mark.req("NT-UTIL-T3")
def test_a_value_that_cannot_be_copied_is_repeated():
    lock = threading.Lock()
    first, second = extend_as_list(lock, 2)
    assert first is second is lock


def test_no_values_are_an_empty_list():
    assert extend_as_list(1, 0) == []


@pytest.mark.req("NT-UTIL-T4")
@pytest.mark.parametrize(
    ("candidate", "could_be_none", "text"),
    [
        (None, False, "expected a list, got NoneType$"),
        ((1, 2), False, "expected a list, got tuple$"),
        ((1, 2), True, "expected a list or None, got tuple$"),
    ],
)
def test_what_is_no_list_is_refused(candidate, could_be_none, text):
    with pytest.raises(TypeError, match=rf"^\[check_list\] {text}"):
        check_list(candidate, lambda length: True, could_be_none)


@pytest.mark.req("NT-UTIL-T4")
def test_a_wrong_length_is_refused():
    with pytest.raises(ValueError, match=r"^\[check_list\] expected .*, got one of length 2$"):
        check_list([1, 2], lambda length: length == 3)


@pytest.mark.req("NT-UTIL-T4")
def test_a_right_list_and_an_allowed_none_are_returned():
    right = [1, 2]
    assert check_list(right, lambda length: length == 2) is right
    assert check_list(None, lambda length: False, could_be_none=True) is None


def test_a_list_stays_and_everything_else_becomes_one():
    given = [1, 2]
    assert to_list(given) is given
    assert [to_list(x) for x in ((1, 2), None, "ab")] == [[(1, 2)], [None], ["ab"]]
