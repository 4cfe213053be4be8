import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith import data
from monolith.data import INVALID_LABEL
from monolith.data.operations.actions import AddAction, InstanceReweight
from tests.data.operations.blocks import block, check_resume, rows


def test_an_action_is_appended_where_the_comparison_holds():
    samples = block(rank=[1, 2, 3], actions=[[5, 6], [], [7]])
    found = rows(AddAction("rank", "ge", 2, 9)(samples))["actions"]
    assert found == [[5, 6], [9], [7, 9]]


def test_actions_of_single_ids_become_lists():
    found = rows(AddAction("rank", "in", [1, 3], 9)(block(rank=[1, 2], actions=[5, 6])))["actions"]
    assert found == [[5, 9], [6]]


def repeated(actions, before, label=-1.0, reweight="1:3:1,2:2:1,3:1:-1,4:1:-1,9:5:0"):
    samples = block(actions=[actions], pre_actions=[before], label=[label])
    return rows(InstanceReweight("1,2,3,4", reweight)(samples))["label"]


@pytest.mark.parametrize(
    ("actions", "before", "expected"),
    [
        ([1], [], [1.0] * 3),  # the label and the weight of the best action
        ([2, 1], [], [1.0] * 3),  # listed actions that are not the best do not count
        ([1, 9], [], [1.0] * 15),  # those that are not listed do
        ([9], [], [-1.0] * 5),  # and give no label
        ([8], [], [-1.0]),  # no entry: weight 1
        ([], [], [-1.0]),  # no actions at all
        ([1], [3], [1.0] * 4),  # another label before: both weights
        ([3], [4], []),  # the same label and weight before
        ([3], [4, 9], [1.0] * 4),  # it weighed more before: 5 - 1, with the other sign
        ([1], [2], [1.0]),  # 3 - 2
        ([3], [3], []),  # as good before
        ([3], [1], []),  # better before
        ([], [3], []),
        ([8], [9], []),
    ],
)
def test_replicas(actions, before, expected):
    assert repeated(actions, before) == expected


def test_the_label_before_is_compared_with_the_one_that_counts():
    reweight = "4:2:-1"  # action 1 has no entry, so the label stays
    assert repeated([1], [4], -1.0, reweight) == [1.0]
    assert repeated([1], [4], 1.0, reweight) == [1.0] * 3


def by_the_rules(actions, before, label, priority, weights):
    """The labels of the replicas of one sample, in plain Python."""

    def place(given):
        listed = [priority.index(each) + 1 for each in given if each in priority]
        return min(listed, default=1000) if given else 2000

    def best(given):
        return priority[place(given) - 1] if place(given) < 1000 else None

    def count(given):
        others = [each for each in given if each not in priority]
        return (
            math.prod(weights.get(each, (1,))[0] for each in [best(given), *others]) if given else 0
        )

    if place(before) <= place(actions):
        return [label] if not before and not actions else []
    label = weights.get(best(actions), (1, label))[1]
    if best(before) not in weights:
        return [label] * count(actions)
    if weights[best(before)][1] != label:
        return [label] * (count(before) + count(actions))
    more = count(before) - count(actions)
    return [-label if more > 0 else label] * abs(more)


ACTIONS = st.lists(st.sampled_from(range(1, 8)), max_size=3, unique=True)


@given(st.lists(st.tuples(ACTIONS, ACTIONS, st.sampled_from([-1.0, 1.0])), min_size=1))
def test_replicas_are_those_of_the_rules(samples):
    weights = {1: (3, 1.0), 2: (2, 1.0), 3: (1, -1.0), 6: (2, 1.0)}
    text = ",".join(f"{a}:{w}:{int(label)}" for a, (w, label) in weights.items())
    actions, before, labels = map(list, zip(*samples, strict=True))
    given = block(actions=actions, pre_actions=before, label=labels)
    expected = [x for each in samples for x in by_the_rules(*each, [2, 1, 3, 4], weights)]
    assert rows(InstanceReweight("2,1,3,4", text)(given))["label"] == expected


def test_samples_without_a_label_are_left_out():
    assert repeated([1], [], INVALID_LABEL) == []


def test_all_columns_are_repeated():
    samples = block(user=[7, 8], actions=[[1], [3]], pre_actions=[[], []], label=[[0.0, 5.0]] * 2)
    found = rows(InstanceReweight("1,3", "1:2:1,3:1:-1")(samples))
    assert found["user"] == [7, 7, 8]
    assert found["label"] == [[1.0, 5.0], [1.0, 5.0], [-1.0, 5.0]]


def test_a_negative_weight_is_refused():
    with pytest.raises(ValueError, match=r"weights of at least 0, got -1 \(action 2\)"):
        InstanceReweight("1", "2:-1:0")


def test_a_pipeline_resumes_in_the_middle_of_replicas():
    source = data.synthetic(500, num_features=2, num_dense=0, vocabulary=6)
    reweight = InstanceReweight(
        "1,2,3,4", "1:3:1,2:2:1", actions="feature_0", pre_actions="feature_1"
    )
    check_resume(source.map(reweight).batch(7))
