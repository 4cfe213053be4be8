import pytest

from monolith.features import BagFeature


def test_a_limit_is_kept_as_an_integer():
    assert BagFeature("x", "t", max_length=True + 1).max_length == 2


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"name": ""}, TypeError, "expected name as a name, got ''"),
        ({"table": 3}, TypeError, "expected table as a name, got 3"),
        ({"combiner": "max"}, ValueError, "combiner in sum, mean, sqrtn, first, rows, got 'max'"),
        ({"max_length": -1}, ValueError, r"max_length in \[0, .*'sum', got -1 \(feature 'x'\)"),
        ({"max_length": 1.5}, TypeError, "expected max_length as an integer, got"),
        ({"combiner": "first"}, ValueError, r"max_length in \[1, .*'first', got 0"),
        ({"combiner": "rows", "max_length": 2}, ValueError, r"max_length in \[0, 0\] .* got 2"),
    ],
)
def test_what_is_no_feature_is_refused(options, error, text):
    with pytest.raises(error, match=rf"^\[BagFeature\] .*{text}"):
        BagFeature(**{"name": "x", "table": "t", **options})
