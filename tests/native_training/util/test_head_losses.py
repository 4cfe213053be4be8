import math

import pytest
import torch

from monolith.base_model import get_sigmoid_loss_and_pred, get_softmax_loss_and_pred

LOGITS, LABEL = torch.tensor([[0.5], [-1.0]]), torch.tensor([1.0, 0.0])


def entropy(logits, label=(1.0, 0.0)):
    """The binary cross-entropies in plain Python."""
    pairs = zip(logits, label, strict=True)
    return [math.log1p(math.exp(z)) - z * y for z, y in pairs]


def sigmoid(z):
    return 1 / (1 + math.exp(-z))


def check(outcome, losses, logits):
    loss, pred = outcome
    assert loss.item() == pytest.approx(sum(losses), rel=1e-5)
    assert pred.tolist() == pytest.approx([sigmoid(z) for z in logits], rel=1e-5)


def test_the_loss_is_the_sum_of_cross_entropies():
    check(get_sigmoid_loss_and_pred("x", LOGITS, LABEL, 2), entropy([0.5, -1.0]), [0.5, -1.0])


@pytest.mark.parametrize("rate", [0.1, torch.tensor([0.1, 0.1])])
def test_the_rate_corrects_the_loss_and_not_the_prediction(rate):
    corrected = [0.5 - math.log(0.1), -1.0 - math.log(0.1)]
    outcome = get_sigmoid_loss_and_pred("x", LOGITS, LABEL, 2, rate)
    check(outcome, entropy(corrected), [0.5, -1.0])
    outcome = get_sigmoid_loss_and_pred(
        "x", LOGITS, LABEL, 2, rate, predict_before_correction=False
    )
    check(outcome, entropy(corrected), corrected)


def test_a_sample_bias_takes_the_logarithm_of_the_probability():
    corrected = [math.log(sigmoid(z)) - math.log(0.5) for z in (0.5, -1.0)]
    outcome = get_sigmoid_loss_and_pred("x", LOGITS, LABEL, 2, 0.5, sample_bias=True)
    check(outcome, entropy(corrected), [0.5, -1.0])


def test_corrected_logits_are_clipped():
    bound = math.log((1 - 0.4) / 0.4)
    outcome = get_sigmoid_loss_and_pred("x", LOGITS, LABEL, 2, logit_clip_threshold=0.4)
    check(outcome, entropy([bound, -bound]), [0.5, -1.0])


def test_the_mask_comes_before_the_weights():
    weight, mask = torch.tensor([3.0, math.nan]), torch.tensor([[1], [0]])
    outcome = get_sigmoid_loss_and_pred(
        "x", LOGITS, LABEL, 2, None, instance_weight=weight, mask=mask
    )
    check(outcome, [3 * entropy([0.5, -1.0])[0]], [0.5, -1.0])


def test_prediction_has_no_loss_and_no_correction():
    loss, pred = get_sigmoid_loss_and_pred(
        "x", LOGITS, None, 2, 0.1, mode="predict", predict_before_correction=False
    )
    assert loss is None
    assert pred.tolist() == pytest.approx([sigmoid(0.5), sigmoid(-1.0)])
    assert get_softmax_loss_and_pred("x", LOGITS, None, "predict")[0] is None


@pytest.mark.parametrize("label", [torch.tensor([1, 0]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])])
def test_softmax_has_a_loss_of_each_sample(label):
    logits = torch.tensor([[1.0, 3.0], [0.0, 0.5]])
    loss, pred = get_softmax_loss_and_pred("x", logits, label)
    assert loss.tolist() == pytest.approx([math.log1p(math.exp(-2)), math.log1p(math.exp(0.5))])
    assert pred.tolist() == [1, 1]


@pytest.mark.parametrize("threshold", [0.0, 1.0, 2.0])
def test_a_threshold_that_is_no_probability_is_refused(threshold):
    with pytest.raises(ValueError, match=rf"0 < logit_clip_threshold < 1, got {threshold} \(head"):
        get_sigmoid_loss_and_pred("x", LOGITS, LABEL, 2, logit_clip_threshold=threshold)


def test_a_last_batch_may_be_smaller_than_the_batch_size():
    loss, pred = get_sigmoid_loss_and_pred("x", LOGITS, LABEL, 3, sample_rate=0.5)
    expected, _ = get_sigmoid_loss_and_pred("x", LOGITS, LABEL, sample_rate=0.5)
    assert (loss, len(pred)) == (expected, 2)


def test_training_has_a_label():
    with pytest.raises(ValueError, match="expected a label, got None"):
        get_sigmoid_loss_and_pred("x", LOGITS, None, 2)
    with pytest.raises(ValueError, match="expected a label, got None"):
        get_softmax_loss_and_pred("x", LOGITS, None)
