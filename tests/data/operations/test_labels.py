import pytest
import torch

from monolith import data
from monolith.data import INVALID_LABEL
from monolith.data.operations.filters import FilterByLabel
from monolith.data.operations.labels import AddLabel, MultiLabel, ScatterLabel
from tests.data.operations.blocks import block, check_resume, drawn, rows

NO = INVALID_LABEL
CONFIG = "1,2:3:1.0;4::0.5"
HEADS = {"ios": 3, "wp": 1, "android": 4, "other": 0}


def test_the_invalid_label_is_the_most_negative_float():
    assert torch.finfo(torch.float32).min == INVALID_LABEL


def added(actions, config=CONFIG, negative_value=-1.0, label=None):
    columns = {"actions": actions} if label is None else {"actions": actions, "label": label}
    return rows(drawn(AddLabel(config, negative_value, 1.0), block(**columns)))["label"]


def test_vectors_of_the_reference():
    samples = block(actions=[[1, 2, 4], [1], [3, 4], [5]] * 100)
    labelled = drawn(AddLabel(CONFIG, -1.0, 1.0), samples)
    assert 340 <= FilterByLabel([-100, -100])(labelled).sum() <= 360


def test_a_task_with_negative_actions():
    actions = [[1], [3], [1, 3], [5], []]
    assert added(actions, "1,2:3:1.0") == [[1.0], [-1.0], [1.0], [NO], [NO]]
    assert added(actions, "1:3:0.0") == [[1.0], [NO], [1.0], [NO], [NO]]


def test_a_task_without_negative_actions():
    assert added([[4], [5], []], "4::1.0") == [[1.0], [-1.0], [-1.0]]


def test_a_first_label_that_is_not_positive_becomes_invalid():
    found = added([[4], [4], [4]], "4::1.0", label=[2.0, 0.0, -3.0])
    assert found == [[2.0, 1.0], [NO, 1.0], [NO, 1.0]]


def test_the_sample_rate_is_a_column():
    pipeline = data.arrow_table({"actions": [[4]]}).sample(AddLabel("4::1.0", 0.0, 0.25)).batch(1)
    batch = next(iter(pipeline))
    assert batch.dense["sample_rate"].tolist() == [0.25]
    assert batch.labels["label"].tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("config", "rate", "text"),
    [
        ("1:2:1", 0.0, "expected new_sample_rate above 0 and up to 1, got 0.0"),
        ("1:2", 1.0, "expected positives:negatives:rate, got '1:2'"),
        (":2:1", 1.0, "expected at least one positive action, got ':2:1'"),
        ("1,2:2:1", 1.0, "expected other negative than positive actions, got '1,2:2:1'"),
        ("1:2:1.5", 1.0, "expected a rate from 0 to 1, got '1:2:1.5'"),
    ],
)
def test_configs_that_break_a_rule_are_refused(config, rate, text):
    with pytest.raises(ValueError, match=text):
        AddLabel(config, 0.0, rate)


def test_a_pipeline_resumes_with_added_labels():
    source = data.synthetic(2000, num_features=1, num_dense=0, vocabulary=9, ids_per_feature=2)
    add = AddLabel("1:2:0.5;3::0.3", -1.0, 1.0, actions="feature_0", seed=5)
    check_resume(source.sample(add).filter(FilterByLabel([NO, 0, 0], True)).batch(32))


def test_scattered_labels_of_the_reference():
    samples = block(chnid=[0, 100, 200, 300], label=[1.0, 2.0, 3.0, NO])
    scattered = ScatterLabel("100:3,200:1,300:4")(samples)
    kept = scattered.filter(FilterByLabel([-1] * 5)(scattered).tolist())
    assert rows(kept)["label"] == [[NO, NO, NO, 2.0, NO], [NO, 3.0, NO, NO, NO]]


@pytest.mark.parametrize(
    ("config", "text"),
    [("", "expected at least one place of a label"), ("1:-1", "expected places of labels from 0")],
)
def test_places_that_make_no_sense_are_refused(config, text):
    with pytest.raises(ValueError, match=text):
        ScatterLabel(config)


def multi(**options):
    heads = ["ios", "wp", "android", "ios"]
    table = {"head": heads, "actions": [[1, 2], [3], [2], [1]], "label": [5.0, 6.0, 7.0, 8.0]}
    multi = MultiLabel(HEADS, "head", pos_actions=[3, 2], neg_actions=[1], **options)
    batch = next(iter(data.arrow_table(table).map(multi).batch(4)))
    return batch.labels["label"].tolist()


def test_labels_by_head_of_the_reference():
    assert multi(action_priority="4,3,2,1,0") == [
        [NO, NO, NO, 1.0, NO],
        [NO, 1.0, NO, NO, NO],
        [NO, NO, NO, NO, 1.0],
        [NO, NO, NO, 0.0, NO],
    ]


def test_the_first_action_counts_where_none_is_listed():
    assert multi()[0][3] == 0.0


def test_the_label_that_was_there_may_be_kept():
    assert multi(use_origin_label=True)[1] == [NO, 6.0, NO, NO, NO]


def test_there_may_be_more_tasks_than_heads():
    assert len(multi(task_num=7)[0]) == 7
    with pytest.raises(ValueError, match=r"\[MultiLabel\] expected places .* from 0 to 3, got 4"):
        MultiLabel(HEADS, task_num=4)


def test_other_heads_and_actions_are_invalid():
    samples = block(chnid=[7, 7, 8, 7], actions=[[9], [], [2], [2]])
    found = MultiLabel({7: 0}, pos_actions=[2, 0], neg_actions=[1])(samples)
    assert rows(found)["label"] == [[NO], [NO], [NO], [1.0]]


def test_an_action_is_positive_or_negative():
    with pytest.raises(ValueError, match=r"expected other negative .* got \[2\] in both"):
        MultiLabel({7: 0}, pos_actions=[2], neg_actions=[2, 3])
