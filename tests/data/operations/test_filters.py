import pyarrow.compute as pc
import pytest

from monolith import data
from monolith.data.operations.filters import (
    FilterByFids,
    FilterByLabel,
    FilterByValue,
    all_of,
    any_of,
)
from monolith.errors import FailedPreconditionError
from tests.data.operations.blocks import block, check_resume

V1, V2 = 1 << 54, 1 << 48
SAMPLES = block(
    user=[1 * V2 + 7, 1 * V2 + 8, 1 * V2 + 9],
    items=[[2 * V2 + 1, 2 * V2 + 2], [2 * V2 + 1], []],
    actions=[[1, 2], [], [3]],
    req_time=[100, 200, 300],
)


def kept(**options):
    return FilterByFids(["user", "items"], **options)(SAMPLES).tolist()


def test_without_conditions_everything_is_kept():
    assert kept() == [True, True, True]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"filter_fids": [2 * V2 + 2, 1 * V2 + 9]}, [False, True, False]),
        ({"has_fids": [2 * V2 + 2, 1 * V2 + 9]}, [True, False, True]),
        ({"select_fids": [2 * V2 + 1, 1 * V2 + 8]}, [False, True, False]),
        ({"select_slots": [1, 2, 2]}, [True, True, False]),
        ({"has_actions": [3, 1]}, [True, False, True]),
        ({"req_time_min": 200}, [False, True, True]),
    ],
)
def test_each_condition(options, expected):
    assert kept(**options) == expected


def test_all_conditions_must_hold():
    assert kept(select_slots=[1, 2], has_actions=[1], req_time_min=101) == [False, False, False]


def test_slots_of_version_1():
    found = FilterByFids(["x"], select_slots=[1023], fid_version=1)(block(x=[-V1 + 5, 5]))
    assert found.tolist() == [True, False]


def test_fids_may_be_unsigned():
    assert FilterByFids(["x"], has_fids=[2**64 - 1])(block(x=[-1, 1])).tolist() == [True, False]


def test_another_fid_version_is_refused():
    with pytest.raises(ValueError, match=r"\[FilterByFids\] expected fid_version 1 or 2, got 3"):
        FilterByFids(["x"], fid_version=3)


def test_thresholds_of_the_reference():
    labels = block(label=[[0.0, 1.0]])
    assert FilterByLabel([0, 1])(labels).tolist() == [True]
    assert FilterByLabel([0, 1], filter_equal=True)(labels).tolist() == [False]


def test_one_label_above_its_threshold_is_enough():
    labels = block(label=[[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    assert FilterByLabel([1, 1])(labels).tolist() == [False, True, True]
    assert FilterByLabel([1])(labels).tolist() == [False, True, False]


def test_fewer_labels_than_thresholds_are_refused():
    with pytest.raises(ValueError, match=r"expected at least 2 labels, .* got 1 \(column 'label'"):
        FilterByLabel([0, 0])(block(label=[1.0]))


@pytest.mark.parametrize("options", [{}, {"operand": 1, "operand_filepath": "x"}])
def test_operands_come_from_one_place(options):
    with pytest.raises(ValueError, match=r"expected one of operand and operand_filepath"):
        FilterByValue("x", "in", **options)


def test_a_file_is_for_many_operands():
    with pytest.raises(ValueError, match=r"expected op in or not-in with a file, got 'gt'"):
        FilterByValue("x", "gt", operand_filepath="x")


def test_filters_together():
    small, large = FilterByValue("x", "lt", 2), FilterByValue("x", "gt", 2)
    numbers = block(x=[1, 2, 3])
    assert any_of(small, large)(numbers).tolist() == [True, False, True]
    assert all_of(small, large)(numbers).tolist() == [False, False, False]
    assert all_of(small, lambda b: pc.not_equal(b["x"], 1))(numbers).tolist() == [False] * 3


def test_no_filters_keep_everything_or_nothing():
    assert all_of()(block(x=[1])).tolist() == [True]
    assert any_of()(block(x=[1])).tolist() == [False]


def test_the_transform_of_the_reference_keeps_15_of_40():
    number = range(40)
    samples = block(
        fid=[1 if i < 34 else 2 for i in number],  # 34, of which
        read_count=[i % 2 for i in number],  # 17, of which
        play_time=[0 if i < 20 else 5 for i in number],  # 10, or
        actions=[[2] if 20 <= i < 30 else [1] for i in number],  # 5
    )
    keeps = all_of(
        FilterByFids(["fid"], select_fids=[1]),
        FilterByValue("read_count", "in", [0]),
        any_of(FilterByValue("play_time", "eq", 0), FilterByFids([], has_actions=[2])),
    )
    assert keeps(samples).sum() == 15


def test_a_pipeline_resumes_with_filters():
    source = data.synthetic(1000, num_features=1, num_dense=1, vocabulary=50)
    keeps = any_of(FilterByValue("feature_0", "gt", 9), FilterByLabel([1]))
    whole = check_resume(source.filter(keeps).batch(16))
    assert 100 < sum(len(labels["label"]) for _, labels, _ in whole) < 1000


def test_a_state_fits_only_the_same_filter():
    source = data.synthetic(100, num_features=1, num_dense=0)
    state = iter(source.filter(FilterByValue("label", "gt", 0)).batch(4)).state_dict()
    with pytest.raises(FailedPreconditionError, match="expected a state of this"):
        source.filter(FilterByValue("label", "gt", 1)).batch(4).resume(state)
    many = FilterByValue("feature_0", "in", list(range(1000)))
    more = FilterByValue("feature_0", "in", list(range(1001)))
    assert len(str(source.filter(many).describe())) < 400
    assert source.filter(many).describe() != source.filter(more).describe()
