"""Windows of progressive scores, compared with metrics over the same samples."""

import pytest
import torch

from monolith.checkpoint.state_tree import flatten_state, unflatten_state
from monolith.observe.learning import Auc, Calibration, LogLoss
from monolith.train.figures import Meter
from monolith.train.online.score_windows import AllWindows, SampleWindows, Scored, TimeWindows

NUM = 1000


def metrics():
    return {"auc": Auc(), "log_loss": LogLoss(), "calibration": Calibration()}


def samples(num=NUM, **columns):
    random = torch.Generator().manual_seed(7)
    prediction = torch.rand(num, generator=random)
    label = (torch.rand(num, generator=random) < prediction).float()
    return Scored(prediction, label, **columns)


def batches(scored, *sizes):
    """Return the samples in batches, whose sizes repeat."""
    start, at, cut = 0, 0, []
    while start < len(scored.prediction):
        end = start + sizes[at % len(sizes)]
        cut.append(scored.rows(start, end))
        start, at = end, at + 1
    return cut


def scores_of(scored):
    """Return the metrics of some samples, computed at once."""
    values = metrics()
    for metric in values.values():
        metric.update(scored.prediction, scored.label, weights=scored.weight)
    return {name: metric.value for name, metric in values.items()}


def assert_scores(window, scored):
    assert window.num_samples == len(scored.prediction)
    assert dict(window.scores) == pytest.approx(scores_of(scored), rel=1e-12)


def by_samples(size):
    return SampleWindows(size, Meter(metrics))


def by_time(seconds, now=1e9):
    return TimeWindows(seconds, Meter(metrics), lambda: now)


@pytest.mark.parametrize("sizes", [(1,), (7,), (300,), (1000,), (64, 1, 250)])
def test_a_window_of_samples_has_its_samples_however_they_are_batched(sizes):
    windows, scored = by_samples(250), samples()
    ended = [window for batch in batches(scored, *sizes) for window in windows.add(batch)]
    assert [window.number for window in ended] == [0, 1, 2, 3]
    for window in ended:
        assert_scores(window, scored.rows(window.number * 250, (window.number + 1) * 250))


def test_samples_after_the_last_window_wait_for_its_end():
    windows, scored = by_samples(600), samples()
    assert [window.number for window in windows.add(scored)] == [0]
    (second,) = windows.add(scored.rows(0, 200))
    both = [scored.rows(600, NUM), scored.rows(0, 200)]
    joined = Scored(*(torch.cat(part) for part in zip(*(s[:2] for s in both), strict=True)))
    assert_scores(second, joined)


def test_weights_count():
    scored = samples(weight=torch.rand(NUM))
    (window,) = by_samples(NUM).add(scored)
    assert_scores(window, scored)


@pytest.mark.parametrize("sizes", [(1,), (7,), (1000,)])
def test_a_window_of_time_has_the_samples_of_its_interval(sizes):
    times = torch.arange(NUM) // 10 + 600_000_030  # 100 s from the half of a minute on
    windows, scored = by_time(60), samples(time=times)
    ended = [window for batch in batches(scored, *sizes) for window in windows.add(batch)]
    assert [(window.number, window.num_samples) for window in ended] == [
        (10_000_000, 300),
        (10_000_001, 600),
    ]
    assert_scores(ended[0], scored.rows(0, 300))
    assert_scores(ended[1], scored.rows(300, 900))


def test_late_samples_are_in_the_window_under_way():
    windows = by_time(10)
    assert windows.add(samples(3, time=torch.tensor([100, 111, 101]))) != []
    (second,) = windows.add(samples(1, time=torch.tensor([120])))
    assert second.num_samples == 2


def test_a_time_in_the_future_ends_no_window_ahead_of_the_clock():
    windows = by_time(10, now=105.0)
    assert windows.add(samples(3, time=torch.tensor([100, 10**12, 104]))) == []


def test_samples_without_a_time_have_that_of_the_clock():
    now = [100.0]
    windows = TimeWindows(10, Meter(metrics), lambda: now[0])
    assert windows.add(samples(4)) == []
    now[0] = 125.0
    (window,) = windows.add(samples(4))
    assert (window.number, window.num_samples) == (10, 4)


def test_a_step_without_samples_ends_no_window():
    assert by_time(10).add(samples(0)) == []
    assert by_samples(10).add(samples(0)) == []


def saved(windows):
    return unflatten_state(*flatten_state(windows.state_dict(), "windows"))


@pytest.mark.parametrize("kill_after", [0, 1, 5, 13])
def test_windows_go_on_over_a_resume(kill_after):
    def make():
        return AllWindows([by_samples(250), by_time(60)])

    parts = batches(samples(time=torch.arange(NUM) // 3), 64)
    whole, first, second = make(), make(), make()
    wanted = [window for batch in parts for window in whole.add(batch)]
    ended = [window for batch in parts[:kill_after] for window in first.add(batch)]
    second.load_state_dict(saved(first))
    ended += [window for batch in parts[kill_after:] for window in second.add(batch)]
    assert len(wanted) == 4 + 5
    assert ended == wanted  # to the bit


def test_a_window_of_another_size_begins_anew(caplog):
    old, new = by_samples(100), by_samples(50)
    old.add(samples(70))
    new.load_state_dict(saved(old))
    assert "begin a new window of 50: that of the checkpoint is one of 100" in caplog.text
    (window,) = new.add(samples(50))
    assert window.number == 0


def test_the_last_scores_of_each_kind_are_kept():
    windows = AllWindows([by_samples(400), by_time(60)])
    windows.add(samples(time=torch.full((NUM,), 1)))
    assert {kind: scores.number for kind, scores in windows.last.items()} == {"samples": 1}
