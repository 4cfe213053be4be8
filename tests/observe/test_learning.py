import json
import math

import numpy as np
import pytest
import torch

from monolith.observe.learning import Auc, Calibration, LogLoss, Mean, Throughput


def exact_auc(predictions, labels, weights=None):
    """Every pair of a positive and a negative: 1 if right, 1/2 if equal."""
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    weights = np.ones(len(labels)) if weights is None else weights
    p, n = labels == 1, labels == 0
    right = np.sign(predictions[p][:, None] - predictions[n]) / 2 + 0.5
    return (weights[p] @ right @ weights[n]) / (weights[p].sum() * weights[n].sum())


def samples(n, *, spread=1.5, seed=0):
    """Predictions of clicks, with labels drawn by them."""
    draws = np.random.default_rng(seed)
    predictions = 1 / (1 + np.exp(-draws.normal(-2, spread, n)))
    return predictions, (draws.random(n) < predictions).astype(np.int64)


def updated(metric, *arguments, **options):
    metric.update(*arguments, **options)
    return metric


@pytest.mark.parametrize("spread", [0.001, 0.1, 1.5, 30.0])
def test_the_exact_auc_is_within_the_error(spread):
    predictions, labels = samples(2000, spread=spread)
    auc = updated(Auc(), predictions, labels)
    assert abs(auc.value - exact_auc(predictions, labels)) <= auc.max_error + 1e-12


def test_the_error_of_usual_predictions_is_small():
    auc = updated(Auc(), *samples(20_000))
    assert auc.max_error < 1e-4
    assert updated(Auc(num_bins=64), *samples(20_000)).max_error > 1e-2


def test_predictions_far_apart_are_exact():
    predictions, labels = samples(300, seed=3)
    predictions = np.round(predictions, 2)  # with many ties
    auc = updated(Auc(), predictions, labels)
    assert auc.value == pytest.approx(exact_auc(predictions, labels), abs=1e-12)


def test_batches_add_up():
    predictions, labels = samples(1000)
    parts = Auc()
    for start in range(0, 1000, 300):
        parts.update(predictions[start : start + 300], labels[start : start + 300])
    assert parts.value == updated(Auc(), predictions, labels).value


def test_weights_count_samples_several_times():
    predictions, labels = samples(500)
    weights = np.random.default_rng(1).random(500)
    auc = updated(Auc(), predictions, labels, weights=weights)
    exact = exact_auc(predictions, labels, weights)
    assert abs(auc.value - exact) <= auc.max_error + 1e-12
    assert auc.value != pytest.approx(exact_auc(predictions, labels), abs=1e-3)


def test_equal_predictions_are_half_right():
    auc = updated(Auc(), [0.3, 0.3, 0.3], [0, 1, 1])
    assert (auc.value, auc.max_error) == (0.5, 0.5)


def test_predictions_of_0_and_1_have_bins():
    assert updated(Auc(), [0.0, 1.0], [0, 1]).value == 1.0
    assert updated(Auc(), [0.0, 1.0], [1, 0]).value == 0.0


@pytest.mark.parametrize("labels", [[], [1, 1], [0, 0]])
def test_one_label_has_no_auc(labels):
    auc = updated(Auc(), [0.1, 0.2][: len(labels)], labels)
    assert (auc.value, auc.max_error) == (None, None)


def test_a_label_without_weight_has_no_auc():
    assert updated(Auc(), [0.1, 0.2], [0, 1], weights=[1, 0]).value is None


@pytest.mark.parametrize("kind", [Auc, Calibration, LogLoss])
def test_merged_halves_are_the_whole(kind):
    predictions, labels = samples(1000)
    half = updated(kind(), predictions[:400], labels[:400])
    half.merge(updated(kind(), predictions[400:], labels[400:]))
    assert half.value == pytest.approx(updated(kind(), predictions, labels).value, rel=1e-12)


@pytest.mark.parametrize("kind", [Auc, Calibration, LogLoss])
def test_a_state_goes_through_json(kind):
    predictions, labels = samples(100)
    metric, other = updated(kind(), predictions, labels), updated(kind(), [0.5], [1])
    other.load_state_dict(json.loads(json.dumps(metric.state_dict())))
    assert other.value == metric.value
    assert updated(other, [0.9], [0]).value == updated(metric, [0.9], [0]).value


def test_arrays_of_an_auc_are_its_state():
    auc, other = updated(Auc(), *samples(100)), Auc()
    other.load_state_dict(auc.state_arrays())
    assert other.state_dict() == auc.state_dict()


@pytest.mark.parametrize("kind", [Auc, Calibration, LogLoss])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_tensors_count_as_arrays(kind, dtype):
    predictions = torch.tensor([0.25, 0.5, 0.75], dtype=dtype, requires_grad=True)
    labels = torch.tensor([False, True, False])
    metric = updated(kind(), predictions, labels)
    same = updated(kind(), [0.25, 0.5, 0.75], [0, 1, 0])
    assert metric.value == pytest.approx(same.value, rel=1e-7)


def test_log_loss_is_that_of_torch():
    predictions, labels = map(torch.from_numpy, samples(1000))
    weights = torch.rand(1000, dtype=torch.float64, generator=torch.manual_seed(0))
    loss = updated(LogLoss(), predictions, labels, weights=weights)
    losses = torch.nn.functional.binary_cross_entropy(
        predictions, labels.double(), weights, reduction="sum"
    )
    assert loss.value == pytest.approx(float(losses / weights.sum()), rel=1e-9)


def test_log_loss_of_a_sure_mistake_is_finite():
    assert updated(LogLoss(), [0.0], [1]).value == pytest.approx(-math.log(1e-7))
    assert updated(LogLoss(), [1.0], [0]).value == pytest.approx(-math.log(1e-7))


def test_log_loss_of_nothing_is_none():
    assert updated(LogLoss(), [], []).value is None


def test_calibration_is_the_ratio_of_the_sums():
    predictions, labels = samples(1000)
    weights = np.random.default_rng(1).random(1000)
    calibration = updated(Calibration(), predictions, labels, weights=weights)
    exact = (predictions * weights).sum() / (labels * weights).sum()
    assert calibration.value == pytest.approx(exact, rel=1e-12)
    assert updated(Calibration(), [0.0, 0.0], [0, 1]).value == 0.0  # nothing is clipped


def test_calibration_without_a_positive_is_none():
    assert updated(Calibration(), [0.5], [0]).value is None
    assert updated(Calibration(), [0.5], [1], weights=[0.0]).value is None


def test_a_mean_counts_every_update():
    mean = updated(updated(Mean(), 3.0), np.array([[1.0], [2.0]]))
    assert mean.value == 2.0
    mean.merge(updated(Mean(), [10.0], weights=[3.0]))
    assert mean.value == 6.0


def test_a_mean_goes_on_from_its_state():
    mean = Mean()
    mean.load_state_dict(updated(Mean(), [1.0, 2.0]).state_dict())
    assert (mean.value, Mean().value) == (1.5, None)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([0.5, 1.5], [0, 1]), r"predictions in \[0, 1\], got from 0.5 to 1.5"),
        (([-0.5, 0.5], [0, 1]), r"predictions in \[0, 1\], got from -0.5 to 0.5"),
        (([math.nan], [0]), r"predictions in \[0, 1\], got from nan to nan"),
        (([0.5, 0.5], [0, 2]), "labels 0 and 1, got 2.0"),
        (([0.5, 0.5], [0, math.nan]), "labels 0 and 1, got nan"),
        (([0.5], [0, 1]), "1 labels, got 2"),
    ],
)
@pytest.mark.parametrize("kind", [Auc, Calibration, LogLoss])
def test_wrong_samples_are_refused(kind, arguments, text):
    with pytest.raises(ValueError, match=rf"^\[{kind.__name__}\] expected {text}$"):
        kind().update(*arguments)


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ([1.0], "2 weights, got 1"),
        ([1.0, -1.0], "finite weights of at least 0, got from -1.0 to 1.0"),
        ([1.0, math.inf], "finite weights of at least 0, got from 1.0 to inf"),
        ([1.0, math.nan], "finite weights of at least 0, got from nan to nan"),
    ],
)
@pytest.mark.parametrize("kind", [Auc, Calibration, LogLoss])
def test_wrong_weights_are_refused(kind, weights, text):
    metric = kind()
    with pytest.raises(ValueError, match=rf"^\[{kind.__name__}\] expected {text}$"):
        metric.update([0.5, 0.5], [0, 1], weights=weights)
    assert metric.value is None


def test_other_bins_are_refused():
    for use in (lambda auc: auc.merge(Auc()), lambda auc: auc.load_state_dict(Auc().state_dict())):
        with pytest.raises(ValueError, match=r"^\[Auc\] expected 64 bins, got 65536$"):
            use(Auc(num_bins=64))


def test_a_number_of_bins_out_of_range_is_refused():
    with pytest.raises(ValueError, match=r"^\[Auc\] expected num_bins in \[2, 16777216\], got 1$"):
        Auc(num_bins=1)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_throughput_is_of_the_window_and_of_all():
    clock = Clock()
    rate = Throughput(window_seconds=10, clock=clock)
    for second in range(30):
        clock.now = 101.0 + second
        rate.update(100 if second < 20 else 500)
    assert rate.overall == (20 * 100 + 10 * 500) / 30
    assert rate.recent == 500


def test_throughput_falls_while_nothing_comes():
    clock = Clock()
    rate = Throughput(window_seconds=10, clock=clock)
    clock.now += 1
    rate.update(100)
    clock.now += 4
    assert rate.recent == rate.overall == 20
    clock.now += 100
    assert rate.recent == 0


def test_throughput_of_no_time_is_none():
    rate = Throughput(clock=Clock())
    rate.update(5)
    assert (rate.recent, rate.overall) == (None, None)


def test_throughput_remembers_a_bounded_number_of_marks():
    clock = Clock()
    rate = Throughput(window_seconds=1, clock=clock)
    for _ in range(10_000):
        clock.now += 0.001
        rate.update(1)
    assert len(rate._marks) <= 66
    assert rate.recent == pytest.approx(1000, rel=0.02)


def test_a_window_of_no_time_is_refused():
    with pytest.raises(ValueError, match=r"^\[Throughput\] expected window_seconds > 0, got 0$"):
        Throughput(window_seconds=0)
