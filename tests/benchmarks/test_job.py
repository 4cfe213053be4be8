"""The parts of the job's measurements that need no processes."""

import pytest

from benchmarks.job import hold_seconds
from benchmarks.job_costs import WORKER_TERMS, Point, amounts, fit, predict
from benchmarks.job_processes import settings_of


def test_a_hold_is_the_longest_step_around_a_save_without_the_usual_one():
    steps = [(1.0, 0.1), (1.1, 0.1), (1.5, 0.4), (1.6, 0.1), (1.7, 0.1)]
    assert hold_seconds([(1.4, 0.2)], steps) == [pytest.approx(0.3)]
    assert hold_seconds([(9.0, 0.1)], steps) == []


def test_the_fit_finds_the_terms_of_exact_points_and_none_below_zero():
    terms = dict.fromkeys(WORKER_TERMS, 0.0) | {"step": 1e-3, "server": 2e-4, "key": 1e-7}
    points = [(1, 512, 16), (2, 512, 16), (4, 512, 16), (2, 4096, 16), (2, 512, 4), (1, 64, 64)]
    rows = [amounts(Point(*point, 100), 900.0 + 31 * i**2) for i, point in enumerate(points)]
    fitted = fit(WORKER_TERMS, rows, [predict(terms, row) for row in rows])
    assert min(fitted.values()) >= 0
    for row in rows:
        assert predict(fitted, row) == pytest.approx(predict(terms, row), rel=1e-6)


def test_settings_of_a_task_are_options_of_a_command():
    assert settings_of({"dim": 8, "is_click": True}) == ["--set", "dim=8", "--set", "is_click=true"]
