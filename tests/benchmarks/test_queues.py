import pytest

from benchmarks import queues
from benchmarks.harness import BenchmarkError


def test_a_run_that_overlaps_needs_less_time_than_one_that_does_not(monkeypatch):
    monkeypatch.setattr(queues, "_OVERLAP_SECONDS", 0.05)
    overlapped, sequential = (queues.steps_with_function(overlap) for overlap in (True, False))
    assert sequential.value >= 0.5
    assert 0.3 <= overlapped.value < sequential.value - 0.05


def test_a_run_that_makes_no_calls_is_no_measurement(monkeypatch):
    monkeypatch.setattr(queues, "drive", lambda step, hooks, overlap: None)
    with pytest.raises(BenchmarkError, match=r"\[overlap\] expected 5 calls, got 0"):
        queues.steps_with_function(True)
