import math

import pytest

from monolith.data import INVALID_LABEL
from monolith.data.operations.label_values import LabelNormalization, LabelUpperBound, RankLabel
from tests.data.operations.blocks import block, rows


def labels(operation, *values, **columns):
    return rows(operation(block(label=list(values), **columns)))["label"]


def test_labels_are_bounded_from_above():
    assert labels(LabelUpperBound([2]), 1.0, 3.0, INVALID_LABEL) == [1.0, 2.0, INVALID_LABEL]
    assert labels(LabelUpperBound([2]), [3.0, 3.0]) == [[2.0, 3.0]]


def test_fewer_labels_than_bounds_are_refused():
    with pytest.raises(
        ValueError, match=r"\[LabelUpperBound\] expected at least 2 labels, .*got 1"
    ):
        labels(LabelUpperBound([1, 2]), 1.0)


def test_normalization_of_the_reference():
    assert labels(LabelNormalization(["scale", "repow"], [0.5, 3]), 0.0, 1.0) == [0.0, 8.0]


@pytest.mark.parametrize(
    ("method", "value", "given", "expected"),
    [
        ("log", 1, 1.0, math.log(2)),
        ("log", 1, -2.0, -math.inf),
        ("scale", 4, 1.0, 0.25),
        ("scale2int", 2, 5.0, 2.0),
        ("scale2int", 2, -5.0, -2.0),
        ("pow", 3, 1.0, 8.0),
        ("repow", 2, 3.0, 9.0),
        ("repow", 2, -3.0, 0.0),
        ("scalelog", 2, 2.0, math.log(2)),
    ],
)
def test_each_method(method, value, given, expected):
    found = labels(LabelNormalization([method], [value]), given)
    assert found == [pytest.approx(expected)]


def test_invalid_labels_stay():
    found = labels(LabelNormalization(["log"], [1]), [INVALID_LABEL, 0.0])
    assert found == [[INVALID_LABEL, 0.0]]


def test_methods_and_values_go_together():
    with pytest.raises(ValueError, match=r"expected a value for each of 2 methods, got 1"):
        LabelNormalization(["log", "pow"], [1])
    with pytest.raises(ValueError, match=r"expected a method of log scale .*, got 'exp'"):
        LabelNormalization(["exp"], [1])


def test_ranks_by_draw_channel_and_rank():
    columns = {"is_draw": [0.0, 1.0, 1.0], "chnid": [0, 1, 7], "rank": [3, 17, 18]}
    given = (5.0, 6.0, 7.0)
    by_draw = labels(RankLabel("draw", "is_draw"), *given, **columns)
    by_channel = labels(RankLabel("channel", "chnid"), *given, **columns)
    by_rank = labels(RankLabel("rank", "rank"), *given, **columns)
    assert by_draw == [[5.0, 0.0], [6.0, 1.0], [7.0, 1.0]]
    assert by_channel == [[5.0, 0.0], [6.0, 1.0], [7.0, 2.0]]
    assert by_rank == [[5.0, 3.0], [6.0, 17.0], [7.0, 17.0]]


def test_there_are_three_ranks():
    with pytest.raises(ValueError, match=r'expected by "draw", "channel" or "rank", got \'time\''):
        RankLabel("time", "rank")
