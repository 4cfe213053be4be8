"""`BarrierOp` and `BarrierHook`, with workers that are threads."""

import threading

import pytest

from monolith.cluster.job.shared_state import LocalSharedState
from monolith.errors import DeadlineExceededError
from monolith.native_training.barrier_ops import (
    BarrierAlreadyPlacedError,
    BarrierHook,
    BarrierOp,
)
from monolith.train.driver import Run, drive
from tests.train.roles.job_tasks import wait_for


def barrier(capacity=2, **options):
    return BarrierOp(capacity, wait_seconds=0.005, **{"shared": LocalSharedState(), **options})


def test_a_worker_makes_exactly_one_step_and_goes_on_when_the_barrier_is_removed():
    seen, steps = [], iter(range(5))
    op = barrier(barrier_callbacks=[lambda action, run: seen.append((action, run))])
    run, done = Run(global_step=0), []
    op.place_barrier(action="Save")
    body = threading.Thread(
        target=lambda: drive(lambda: done.append(next(steps)), [BarrierHook(1, op)], run=run)
    )
    body.start()
    wait_for(op.is_all_blocked)
    assert (done, seen) == ([0], [("Save", None), ("Save", run)])
    op.remove_barrier()
    body.join(60)
    assert done == [0, 1, 2, 3, 4]
    assert op.is_none_blocked()


def test_the_chief_never_waits():
    op, steps, done = barrier(), iter(range(3)), []
    op.place_barrier()
    drive(lambda: done.append(next(steps)), [BarrierHook(0, op)])
    assert done == [0, 1, 2]


def test_a_second_barrier_is_refused_until_the_first_is_removed():
    op = barrier()
    op.place_barrier()
    with pytest.raises(BarrierAlreadyPlacedError, match=r"^Barrier is placed already\.$"):
        op.place_barrier()
    op.remove_barrier()
    op.place_barrier(action="Stop")
    assert (op.is_barrier_placed(), op.is_barrier_removed()) == (True, False)


def test_index_0_stands_for_the_barrier_itself():
    op = barrier(3)
    assert (op.get_blocked_indices(), op.get_unblocked_indices()) == ([], [0, 1, 2])
    op.place_barrier()
    assert (op.get_blocked_indices(), op.get_unblocked_indices()) == ([0], [1, 2])
    assert (op.is_all_blocked(), op.is_none_blocked()) == (False, False)


def test_barriers_of_different_names_are_different_ones():
    shared = LocalSharedState()
    first, second = (barrier(shared=shared, name_prefix=name) for name in "ab")
    first.place_barrier()
    assert not second.is_barrier_placed()
    assert barrier(shared=shared, name_prefix="a").is_barrier_placed()


def test_a_chief_that_is_started_again_finds_the_barrier():
    shared = LocalSharedState()
    barrier(shared=shared).place_barrier()
    assert barrier(shared=shared, is_chief=True).is_barrier_placed()


@pytest.mark.parametrize("index", [-1, 0, 2])
def test_an_index_that_is_no_worker_is_refused(index):
    text = rf"Index \[{index}\] must be non-negative and less than capacity \[2\]\. "
    with pytest.raises(ValueError, match=text):
        barrier().wait_until_barrier_removed(None, index)


def test_a_wait_beyond_its_limit_is_an_error_and_frees_the_worker():
    op = barrier(timeout_seconds=0.02)
    op.place_barrier()
    with pytest.raises(DeadlineExceededError, match=r"within 0\.02 s, .* \(worker 1\)"):
        op.wait_until_barrier_removed(None, 1)
    assert op.get_blocked_indices() == [0]


def test_a_long_wait_is_logged(caplog, monkeypatch):
    monkeypatch.setattr("monolith.native_training.barrier_ops._LOG_SECONDS", 0.0)
    caplog.set_level("INFO", "monolith")
    op = barrier(timeout_seconds=0.02)
    op.place_barrier()
    with pytest.raises(DeadlineExceededError):
        op.wait_until_barrier_removed(None, 1)
    assert "worker 1 is at the barrier since 0 s" in caplog.text


def test_a_capacity_of_0_is_refused():
    with pytest.raises(ValueError, match="expected capacity >= 1, got 0"):
        barrier(0)
