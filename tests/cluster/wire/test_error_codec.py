import pytest

from monolith import errors
from monolith.cluster.wire.error_codec import error_from_value, error_to_value
from monolith.cluster.wire.value_codec import decode, encode
from monolith.errors import InvalidArgumentError


def passed(error):
    return error_from_value(error_to_value(error))


@pytest.mark.parametrize("name", sorted(errors.__all__))
def test_an_error_of_this_package_arrives_as_it_was(name):
    error = getattr(errors, name)("[Table.lookup] expected this, got that")
    arrived = passed(error)
    assert (type(arrived), str(arrived)) == (type(error), str(error))


@pytest.mark.parametrize(
    "error", [ValueError("x"), TypeError("x"), MemoryError("x"), KeyError("x")]
)
def test_an_error_of_python_arrives_as_it_was(error):
    assert (type(passed(error)), passed(error).args) == (type(error), error.args)


def test_another_error_arrives_as_the_nearest_that_is_known():
    class OwnError(ValueError):
        pass

    assert type(passed(OwnError("x"))) is ValueError


def test_an_error_without_a_known_class_says_its_name():
    arrived = passed(EOFError("x"))
    assert (type(arrived), str(arrived)) == (errors.OpError, "EOFError: x")


def test_a_long_text_is_cut():
    assert len(str(passed(ValueError("x" * (1 << 20))))) == 64 << 10


def test_a_text_that_is_no_unicode_arrives_escaped():
    value = error_to_value(ValueError("table \ud800"))
    assert decode(encode(value)[0]) == {"class": "ValueError", "text": "table \\ud800"}


@pytest.mark.parametrize(
    "value",
    [
        *(None, {}, {"class": "ValueError"}, {"class": "SystemExit", "text": ""}),
        *(["ValueError", "x"], {"class": "ValueError", "text": 3}),
    ],
)
def test_other_values_are_no_errors(value):
    with pytest.raises(InvalidArgumentError, match="expected an error of a server"):
        error_from_value(value)
