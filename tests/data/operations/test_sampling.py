import math

import numpy as np
import pytest

from monolith import data
from monolith.data import Columns
from monolith.data.operations.sampling import NegativeSample, SpecialStrategy
from tests.data.operations.blocks import batch_lists, block, check_resume, drawn, rows

RATES = {
    "action_priority": "2,3,4,1,5,6",
    "per_action_drop_rate": "1:1.0,2:0.0,3:1.0,4:0.5,5:0.22",
}


def share_kept(actions, drop_rate=0.0, num_samples=20_000, **options):
    samples = block(label=[-1.0] * num_samples, actions=[actions] * num_samples)
    return drawn(NegativeSample(drop_rate, **options), samples).num_rows / num_samples


@pytest.mark.parametrize(
    ("actions", "expected"), [([1, 2, 4, 5], 1.0), ([1, 3, 5], 0.0), ([5, 6], 0.78), ([6], 0.7)]
)
def test_rates_by_action_of_the_reference(actions, expected):
    # 4 sigma of 20,000 coins
    assert share_kept(actions, 0.3, **RATES) == pytest.approx(expected, abs=0.013)


def test_actions_that_are_not_positive_have_no_rate():
    options = {"action_priority": "-1", "per_action_drop_rate": "-1:1.0"}
    assert share_kept([-1], 0.0, **options) == 1.0


def test_positives_are_kept():
    samples = block(label=[0.0, -1.0, 1.0])
    assert rows(drawn(NegativeSample(1.0), samples))["label"] == [0.0, 1.0]
    assert rows(drawn(NegativeSample(1.0, threshold=0.5), samples))["label"] == [1.0]


def test_another_label_may_count():
    samples = block(label=[[1.0, -1.0], [-1.0, 1.0]])
    found = drawn(NegativeSample(1.0, label_index=1), samples)
    assert rows(found)["label"] == [[-1.0, 1.0]]


def test_weights_keep_the_sum_of_negatives():
    samples = block(label=[-1.0, 1.0] * 20_000, instance_weight=[2.0] * 40_000)
    found = rows(drawn(NegativeSample(0.9, correction="weight"), samples))
    weights = np.array(found["instance_weight"])
    is_negative = np.array(found["label"]) < 0
    assert set(weights[~is_negative]) == {2.0}
    assert np.unique(weights[is_negative]) == pytest.approx([20.0])
    assert weights[is_negative].sum() == pytest.approx(40_000, rel=0.1)


def test_weights_are_made_where_there_are_none():
    found = drawn(NegativeSample(0.5, correction="weight"), block(label=[1.0]))
    assert rows(found)["instance_weight"] == [1.0]


def test_the_offset_undoes_the_shift_of_the_log_odds():
    drop_rate, count = 0.75, 40_000
    samples = block(label=[1.0, -1.0, -1.0, -1.0] * (count // 4))
    found = rows(drawn(NegativeSample(drop_rate, correction="offset"), samples))
    labels = np.array(found["label"])
    learned = math.log((labels > 0).sum() / (labels < 0).sum())  # log-odds of what is left
    offsets = set(found["log_odds_offset"])
    assert offsets == {np.float32(math.log(0.25))}
    assert learned + offsets.pop() == pytest.approx(math.log(1 / 3), abs=0.05)


def test_new_columns_reach_the_batch():
    source = data.arrow_table({"user": [1, 2], "label": [1.0, 1.0]})
    offset = next(iter(source.sample(NegativeSample(0.5, correction="offset")).batch(2)))
    weight = next(iter(source.sample(NegativeSample(0.5, correction="weight")).batch(2)))
    assert offset.dense["log_odds_offset"].tolist() == pytest.approx([math.log(0.5)] * 2)
    assert weight.weight.tolist() == [1.0, 1.0]


def test_weights_of_another_column_are_refused():
    columns = Columns(["user"], [], ["label"], weight="w")
    source = data.arrow_table({"user": [1], "label": [1.0], "w": [1.0]}, columns=columns)
    with pytest.raises(ValueError, match=r"the weight in column 'w', as before, got 'instance_w"):
        source.sample(NegativeSample(0.5, correction="weight"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"drop_rate": 1.5}, "expected rates from 0 to 1, got 1.5"),
        ({"drop_rate": 0, "per_action_drop_rate": "1:-1"}, "expected rates from 0 to 1, got -1.0"),
        ({"drop_rate": 0, "correction": "bias"}, "expected correction .* got 'bias'"),
        ({"drop_rate": 1, "correction": "offset"}, "expected one drop_rate below 1 for an offset"),
        (
            {"drop_rate": 0.5, "correction": "offset", "per_action_drop_rate": "1:0.5"},
            r"got 0.5 and 1 rates of actions; take correction=\"weight\"",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(options, text):
    with pytest.raises(ValueError, match=text):
        NegativeSample(**options)


def test_a_label_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"expected a label index from 0 to 0, got 1 \(column"):
        drawn(NegativeSample(0.5, label_index=1), block(label=[1.0]))


def source(num_samples=3000):
    return data.synthetic(num_samples, num_features=1, num_dense=0, vocabulary=50)


def test_a_pipeline_resumes_with_the_same_decisions():
    sample = NegativeSample(0.8, threshold=0.5, seed=3, correction="weight")
    check_resume(source().sample(sample).batch(32))


def test_decisions_depend_on_the_epoch():
    pipeline = source(200).sample(NegativeSample(0.5, threshold=0.5)).repeat(2).batch(1)
    users = [batch_lists(batch)[0]["feature_0"][0][0] for batch in pipeline]
    negatives = source(200).sample(NegativeSample(0.5, threshold=0.5)).batch(1)
    first = [batch_lists(batch)[0]["feature_0"][0][0] for batch in negatives]
    assert users[: len(first)] == first
    assert users[len(first) :] != first


def test_decisions_do_not_depend_on_what_comes_after():
    sample = NegativeSample(0.5, threshold=0.5, seed=3)
    one = [batch_lists(b)[0]["feature_0"] for b in source(300).sample(sample).batch(1)]
    many = [batch_lists(b)[0]["feature_0"] for b in source(300).sample(sample).batch(50)]
    assert [each for batch in one for each in batch] == [each for batch in many for each in batch]


STRATEGIES = block(special_strategies=[[7, 8], [8], [], [9]], label=[0.0, 0.0, 0.0, 0.0])


def strategies(**options):
    return rows(drawn(SpecialStrategy("8,7", **options), STRATEGIES))


def test_without_a_conf_listed_strategies_are_kept():
    assert len(strategies()["label"]) == 4
    assert strategies(keep_empty_strategy=False)["special_strategies"] == [[7, 8], [8]]


def test_the_first_of_the_list_decides():
    assert strategies(strategy_conf="7:1.0,8:0.0")["special_strategies"] == [[], [9]]


def test_samples_that_are_kept_get_the_label_of_their_strategy():
    assert strategies(strategy_conf="8:1:5,7:1:6")["label"] == [5.0, 5.0, 0.0, 0.0]


def test_a_rate_is_a_probability():
    samples = block(special_strategies=[8] * 20_000, label=[[0.0, 3.0]] * 20_000)
    found = rows(drawn(SpecialStrategy([8], "8:0.3:1"), samples))["label"]
    assert len(found) / 20_000 == pytest.approx(0.3, abs=0.013)
    assert found[0] == [1.0, 3.0]


def test_rates_beyond_1_are_refused():
    with pytest.raises(ValueError, match=r"\[SpecialStrategy\] expected rates from 0 to 1, got 2"):
        SpecialStrategy("7", "7:2")


def test_a_pipeline_resumes_with_strategies():
    strategy = SpecialStrategy([0, 1, 2], "0:0.5,1:0.2:1,2:0.7", strategies="feature_0")
    check_resume(source().sample(strategy).batch(32))
