import pytest

from monolith.data.operations.parse import entries, integers


def test_integers_of_a_text_and_of_a_sequence():
    assert integers("[here]", "2, 3,4") == integers("[here]", [2, 3, 4]) == (2, 3, 4)


def test_no_text_is_no_integers():
    assert integers("[here]", "") == ()
    assert entries("[here]", "", int, least=1) == []


def test_what_is_no_integer_is_refused():
    with pytest.raises(ValueError, match=r"\[here\] expected a number, got 'x' in '2,x'"):
        integers("[here]", "2,x")


def test_the_last_parts_may_be_left_out():
    assert entries("[here]", "1:0.5,2:1:7", int, float, int, least=2) == [[1, 0.5], [2, 1.0, 7]]


@pytest.mark.parametrize("text", ["1", "1:2:3:4"])
def test_another_number_of_parts_is_refused(text):
    with pytest.raises(ValueError, match=rf"expected 2 to 3 parts between colons, got '{text}'"):
        entries("[here]", text, int, int, int, least=2)
