import threading

import pytest
import torch

from monolith.errors import AbortedError, CancelledError, OutOfRangeError
from monolith.native_training.queues import (
    BoundedQueue,
    DevicePrefetchQueue,
    EnqueueHook,
    PrefetchQueue,
    QueueRunner,
    prefetch,
)
from monolith.train import Coordinator, Hook
from monolith.train.driver import drive
from tests.native_training.queues.threads import LIMIT_SECONDS, until, until_waiting


def runner_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("fill ")]


def ended(values, end=StopIteration):
    """A producer of tensors that raises `end` after the last."""
    left = iter(values)

    def produce():
        for value in left:
            return torch.tensor(value)
        raise end

    return produce


@pytest.mark.req("NT-PFQ-T1")
def test_a_runner_of_several_queues_has_the_name_of_the_first():
    queue = DevicePrefetchQueue([torch.ones(1), torch.ones(1, device="meta")], queue_name="q")
    runner = QueueRunner(queue.queues, [queue.enqueue_op])
    assert runner.name == "q"
    assert len(runner.queues) == 2
    with pytest.raises(NotImplementedError, match="expected one queue, got 2; use `queues`"):
        _ = runner.queue


def test_a_runner_of_one_queue_gives_it():
    queue = BoundedQueue(1)
    assert QueueRunner([queue], [print]).queue is queue


@pytest.mark.parametrize("action", ["close", "cancel"])
def test_queues_are_closed_and_cancelled_together(action):
    queues = [BoundedQueue(1), BoundedQueue(1)]
    getattr(QueueRunner(queues, [print]), action)()
    assert all(queue.is_closed for queue in queues)


@pytest.mark.parametrize(("queues", "ops"), [([], [print]), ([BoundedQueue(1)], [])])
def test_a_runner_without_a_queue_or_a_function_is_refused(queues, ops):
    with pytest.raises(ValueError, match=f"got {len(queues)} and {len(ops)}"):
        QueueRunner(queues, ops)


@pytest.mark.parametrize("end", [StopIteration, OutOfRangeError])
def test_the_end_of_the_input_closes_the_queue_after_the_last_element(end):
    queue = PrefetchQueue([ended([1, 2, 3], end)], capacity=1)
    taken = []
    drive(lambda: taken.append(queue.dequeue()[0].item()), [EnqueueHook(queue)])
    assert taken == [1, 2, 3]
    assert not runner_threads()


def test_the_last_of_several_threads_closes_the_queue():
    queue = PrefetchQueue([ended(range(200))], capacity=1)
    runner = QueueRunner(queue.queues, [queue.enqueue_op] * 4)
    taken = []

    class Fill(Hook):
        def after_create_session(self, run, coordinator):
            runner.start(coordinator)

    drive(lambda: taken.append(queue.dequeue()[0].item()), [Fill()])
    assert sorted(taken) == list(range(200))


@pytest.mark.req("NT-PFQ-T3")
@pytest.mark.parametrize("error", [KeyError("bad"), AbortedError("gone"), CancelledError("mine")])
def test_a_producer_that_raises_fails_the_run_with_its_error(error):
    def produce():
        until_waiting(queue.queue)  # the step
        raise error

    batch, queue = prefetch(produce, timeout_seconds=LIMIT_SECONDS)
    seen = []

    class Last(Hook):
        def end(self, run):
            seen.append("end")

    with pytest.raises(type(error)) as caught:
        drive(batch, [EnqueueHook(queue), Last()])
    assert caught.value is error
    assert seen == []
    assert not runner_threads()


@pytest.mark.req("NT-PFQ-T3")
def test_the_step_after_the_error_fails_also_if_elements_are_left():
    has_failed, taken = threading.Event(), []

    def produce():
        if len(made) == 3:
            has_failed.set()
            raise KeyError("bad")
        made.append(1)
        return torch.tensor(len(made))

    made = []
    batch, queue = prefetch(produce, capacity=5)

    class Wait(Hook):
        def after_run(self, ctx, results):
            assert has_failed.wait(60)
            until(lambda: ctx.stop_requested)

    with pytest.raises(KeyError, match="bad"):
        drive(lambda: taken.append(batch().item()), [EnqueueHook(queue), Wait()])
    assert taken in ([1], [])


def test_threads_that_wait_for_room_end_with_the_run():
    queue = PrefetchQueue([torch.ones(1)], capacity=1)

    class StopWhenFull(Hook):
        def after_run(self, ctx, results):
            until_waiting(queue.queue)
            ctx.request_stop()

    drive(queue.dequeue, [EnqueueHook(queue), StopWhenFull()])
    assert not runner_threads()
    assert len(queue.unsent()) == 1


def test_a_run_that_fails_ends_its_threads():
    queue = PrefetchQueue([torch.ones(1)], capacity=1)

    def step():
        until_waiting(queue.queue)
        raise KeyError("bad")

    with pytest.raises(KeyError, match="bad"):
        drive(step, [EnqueueHook(queue)])
    assert not runner_threads()


def test_a_slow_consumer_does_not_fail_the_producer():
    queue = PrefetchQueue([ended(range(5))], capacity=1, timeout_seconds=0)
    runner, taken = QueueRunner(queue.queues, [queue.enqueue_op]), []
    with Coordinator() as coordinator:
        runner.start(coordinator)
        for _ in range(5):
            until(lambda: queue.size() == 1)
            taken.append(queue.dequeue()[0].item())
    assert taken == [0, 1, 2, 3, 4]


def test_after_a_recovery_the_threads_go_on_where_they_were():
    queue = PrefetchQueue([ended(range(50))], capacity=2)
    hook, taken = EnqueueHook(queue), []

    def step():
        taken.append(queue.dequeue()[0].item())
        if len(taken) in (5, 17):
            raise AbortedError("peer")

    assert drive(step, [hook]).num_recoveries == 2
    assert taken == list(range(50))


def test_a_second_start_in_the_same_run_starts_no_second_set_of_threads():
    queue = PrefetchQueue([torch.ones(1)], capacity=1)
    hook = EnqueueHook(queue)
    with Coordinator() as coordinator:
        hook.after_create_session(None, coordinator)
        until_waiting(queue.queue)
        hook.after_create_session(None, coordinator)
        assert len(runner_threads()) == 1


def test_a_second_start_while_one_thread_goes_on_starts_none():
    queue = PrefetchQueue([torch.ones(1)], capacity=1)
    runner = QueueRunner(queue.queues, [queue.enqueue_op, ended([])])
    with Coordinator() as coordinator:
        threads = runner.start(coordinator)
        threads[1].join(LIMIT_SECONDS)
        until_waiting(queue.queue)
        assert runner.start(coordinator) == threads


def test_queues_in_a_row_end_one_after_another():
    first, source = prefetch(ended(range(30)), capacity=2)
    second, sink = prefetch(lambda: first() * 2, capacity=2)
    taken = []
    drive(lambda: taken.append(second().item()), [EnqueueHook(source), EnqueueHook(sink)])
    assert taken == [2 * number for number in range(30)]


def test_queues_in_a_row_stop_without_an_error():
    first, source = prefetch(torch.tensor(1), capacity=1)
    second, sink = prefetch(lambda: first() * 2, capacity=1)

    class Once(Hook):
        def after_run(self, ctx, results):
            ctx.request_stop()

    drive(second, [EnqueueHook(source), EnqueueHook(sink), Once()])
    assert not runner_threads()


def test_a_stop_wakes_a_step_that_waits_for_a_slow_producer():
    woken = threading.Event()
    queue = PrefetchQueue([lambda: torch.tensor(woken.wait(LIMIT_SECONDS))])

    class StopFromAThread(Hook):
        def after_create_session(self, run, coordinator):
            coordinator.add_cleanup(woken.set)
            coordinator.start(lambda: self.stop(coordinator), name="stop")

        def stop(self, coordinator):
            until_waiting(queue.queue)
            coordinator.request_stop()

    drive(lambda: queue.dequeue(LIMIT_SECONDS), [EnqueueHook(queue), StopFromAThread()])


def test_a_step_after_a_stop_does_not_wait_for_threads_that_have_ended():
    queue = PrefetchQueue([torch.ones(1)], capacity=1)
    hook, taken = EnqueueHook(queue), []

    class StopAtOnce(Hook):
        def before_run(self, ctx):
            ctx.request_stop()
            until(lambda: not runner_threads())
            queue.queue.drain()

    drive(lambda: taken.append(queue.dequeue(LIMIT_SECONDS)), [hook, StopAtOnce()])
    assert taken == []
