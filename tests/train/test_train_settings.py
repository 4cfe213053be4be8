import re

import pytest

from monolith.train import EarlyStop, TrainSettings


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"steps": 0}, "[TrainSettings] expected steps >= 1, got 0"),
        ({"threads": 0}, "[TrainSettings] expected threads >= 1, got 0"),
        ({"accumulate": 0}, "[TrainSettings] expected accumulate >= 1, got 0"),
        ({"log_every": -1}, "[TrainSettings] expected log_every >= 0, got -1"),
        ({"eval_every": True}, "[TrainSettings] expected eval_every >= 0, got True"),
        ({"evict_every": 1.5}, "[TrainSettings] expected evict_every >= 0, got 1.5"),
        ({"save_every": -1}, "[TrainSettings] expected save_every >= 0, got -1"),
        ({"save_seconds": 0}, "[TrainSettings] expected save_seconds above 0 and finite, got 0"),
        ({"save_rate": -1.0}, "[TrainSettings] expected save_rate >= 0 and finite, got -1.0"),
        ({"busy_save": "no"}, "[TrainSettings] expected busy_save 'skip' or 'wait', got 'no'"),
        ({"keep": -1}, "[TrainSettings] expected keep >= 0, got -1"),
        ({"prefetch": "no"}, "[TrainSettings] expected prefetch >= 0 or 'auto', got 'no'"),
        ({"push": 2}, "[TrainSettings] expected push 0 or 1, got 2"),
        ({"precision": "fp8"}, "[TrainSettings] expected precision in fp32, bf16, got 'fp8'"),
        ({"clip_norm": 0}, "[TrainSettings] expected clip_norm above 0 and finite, got 0"),
        (
            {"early_stop": EarlyStop()},
            "[TrainSettings] expected eval_every with early_stop, got 0; an early stop looks at "
            "evaluations",
        ),
    ],
)
def test_options_out_of_range_are_refused(options, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        TrainSettings(**options)


def test_patience_is_at_least_one_evaluation():
    with pytest.raises(ValueError, match=r"^\[EarlyStop\] expected patience >= 1, got 0$"):
        EarlyStop(patience=0)


@pytest.mark.parametrize(
    ("rule", "is_better"),
    [
        (EarlyStop("auc"), True),
        (EarlyStop("log_loss"), False),
        (EarlyStop("log_loss", is_larger_better=True), True),
        (EarlyStop("auc", is_larger_better=False), False),
    ],
)
def test_what_is_better_depends_on_the_metric(rule, is_better):
    assert rule.is_better(0.7, 0.6) is is_better


@pytest.mark.parametrize(
    ("prefetch", "push", "bound"), [(0, 0, 0), (3, 0, 3), (3, 1, 4), ("auto", 1, 2)]
)
def test_the_bound_is_prefetch_and_push(prefetch, push, bound):
    assert TrainSettings(prefetch=prefetch, push=push).staleness_bound == bound


@pytest.mark.parametrize(
    ("options", "every"),
    [({}, 1000), ({"save_seconds": 5.0}, 0), ({"save_seconds": 5.0, "save_every": 7}, 7)],
)
def test_without_a_pace_checkpoints_are_saved_every_thousand_steps(options, every):
    assert TrainSettings(**options).steps_between_saves == every
