import math
import threading

import pytest

from monolith.data.cursor import WaitEndedError
from monolith.errors import DeadlineExceededError
from monolith.train.driver import Coordinator
from monolith.train.read_ahead import StepReader
from tests.native_training.queues.threads import Call, until, until_waiting


def test_without_capacity_the_taker_makes_each_item():
    numbers = iter(range(2))
    reader = StepReader(lambda: next(numbers), 0, timeout_seconds=0)  # no wait
    assert [reader.take(), reader.take()] == [0, 1]
    with pytest.raises(StopIteration):
        reader.take()


def test_the_thread_is_as_far_ahead_as_it_may_be():
    numbers = iter(range(10))
    with Coordinator() as coordinator:
        reader = StepReader(lambda: next(numbers), 2)
        reader.start(coordinator)
        assert reader.take() == 0
        until(lambda: reader.num_ready == 2)
        reader.finish()
        until(lambda: reader.num_ready == 3)
        assert reader.drain() == [1, 2, 3]


def test_capacity_may_change_while_items_are_taken():
    numbers = iter(range(6))
    items = []
    with Coordinator() as coordinator:
        reader = StepReader(lambda: next(numbers), 0)
        reader.start(coordinator)
        for capacity in (0, 1, 2, 0, 1, 0):
            reader.set_capacity(capacity)
            items.append(reader.take())
            reader.finish()
        assert reader.capacity == 0
    assert items == list(range(6))


def test_a_stop_wakes_a_waiting_take():
    with Coordinator() as coordinator:
        reader = StepReader(lambda: coordinator.wait_for_stop(math.inf), 1)
        reader.start(coordinator)
        taker = Call(reader.take)
        until_waiting(reader)
        reader.stop()
        with pytest.raises(RuntimeError, match="StopIteration"):
            next(stop_iteration_of(taker))


def stop_iteration_of(taker):
    yield taker.result()


def test_a_source_that_gives_nothing_ends_the_wait():
    with Coordinator() as coordinator:
        reader = StepReader(lambda: coordinator.wait_for_stop(60), 1, timeout_seconds=0)
        reader.start(coordinator)
        with pytest.raises(DeadlineExceededError) as error:
            reader.take()
    assert str(error.value) == (
        "[StepReader.take] expected a batch within 0 s, got none; the source is stuck"
    )


def test_an_endless_source_is_waited_for_without_a_limit():
    begin = threading.Event()
    with Coordinator() as coordinator:
        reader = StepReader(lambda: begin.wait(60), 1, is_endless=True, timeout_seconds=0)
        reader.on_wait = begin.set
        reader.start(coordinator)
        assert reader.take()


def test_a_source_that_waits_learns_that_the_run_ends():
    calls = []
    with Coordinator() as coordinator:
        reader = StepReader(lambda: None, 0)
        reader.start(coordinator)
        reader.on_wait = lambda: calls.append(1)
        reader.while_waiting()
        coordinator.request_stop()
        with pytest.raises(WaitEndedError):
            reader.while_waiting()
    assert calls == [1]


class Restarted(StepReader[int]):
    """Starts its second thread while the first one ends."""

    is_restarted = False

    def _is_next_wanted(self):
        is_wanted = super()._is_next_wanted()
        if not is_wanted and not self.is_restarted:
            self.is_restarted = True
            self.set_capacity(1)
        return is_wanted


def test_a_thread_that_ends_does_not_speak_for_the_next_one():
    numbers = iter(range(9))
    with Coordinator() as coordinator:
        reader = Restarted(lambda: next(numbers), 1)
        reader.start(coordinator)
        until(lambda: reader.num_ready == 2)
        reader.set_capacity(0)
        until(lambda: reader.is_restarted)
        coordinator._threads[0].join()
        assert reader._is_thread_on


def test_a_settled_reader_has_made_all_that_it_may():
    numbers = iter(range(10))
    with Coordinator() as coordinator:
        reader = StepReader(lambda: next(numbers), 2)
        reader.start(coordinator)
        reader.take()
        reader.settle()
        assert reader.num_ready == 2
        reader.finish()
        reader.settle()
        assert reader.num_ready == 3


def test_a_reader_without_a_thread_is_settled():
    StepReader(lambda: 1, 0).settle()


def test_a_settle_waits_no_longer_than_its_limit():
    stuck = threading.Event()
    with Coordinator() as coordinator:
        reader = StepReader(lambda: stuck.wait(20), 1, timeout_seconds=0.1)
        reader.start(coordinator)
        until(lambda: reader._is_making)
        with pytest.raises(DeadlineExceededError, match=r"that are read ahead within 0\.1 s"):
            reader.settle()
        stuck.set()
