"""Every element is accounted for, whatever raises or is closed, and whenever."""

import itertools
import random
import threading
from collections import Counter

import pytest
import torch

from monolith.errors import CancelledError, DeadlineExceededError, QueueFullError
from monolith.native_training.queues import (
    AsyncFunctionManager,
    BoundedQueue,
    DevicePrefetchQueue,
    EnqueueHook,
    QueueRunner,
)
from monolith.train import Hook, Run
from monolith.train.driver import drive
from tests.native_training.queues.threads import Call, until

pytestmark = pytest.mark.thorough

SEEDS = pytest.mark.parametrize("seed", range(6))


class BrokenError(Exception):
    """Raised by the schedule."""


class Source:
    """Makes elements of a number, as a value and as a shape; raises at numbers of the schedule."""

    def __init__(self, total, raises_at=()):
        self.numbers, self.raises_at = iter(range(total)), set(raises_at)
        self.made, self.lock = [], threading.Lock()

    def __call__(self):
        with self.lock:
            if len(self.made) in self.raises_at:
                self.raises_at.remove(len(self.made))
                raise BrokenError
            number = next(self.numbers)
            self.made.append(number)
        return torch.tensor(number)


class Pairs(DevicePrefetchQueue):
    """Elements of two devices that belong together: a number, and a shape of that size."""

    def _produce(self):
        number = self._producers[0]()
        return [number, torch.empty(int(number), device="meta")], None


def number_of(tensors):
    number, shape = tensors
    assert shape.device.type == "meta"
    assert shape.numel() == number.item(), "parts of two elements were mixed"
    return number.item()


def left_in(queue):
    """Numbers that were neither taken nor lost."""
    for one in queue.queues:
        one.reopen()
    taken = [number_of(queue.dequeue(0)) for _ in range(queue.size())]
    return taken + [number_of(tensors) for tensors in queue.unsent()]


@SEEDS
@pytest.mark.parametrize("end", ["close", "cancel"])
def test_a_queue_that_ends_at_a_random_instant_loses_nothing(seed, end):
    rng = random.Random(seed)
    source = Source(10_000, rng.sample(range(300), 5))
    queue = Pairs([source], capacity=rng.randint(1, 4))
    taken, ends_at = [[] for _ in range(3)], rng.randint(0, 300)

    def produce():
        while True:
            try:
                queue.enqueue_op()
            except BrokenError:
                continue
            except CancelledError:
                return

    def consume(mine, breaks_at):
        while True:
            try:
                mine.append(number_of(queue.dequeue()))
                if len(mine) == breaks_at:
                    raise BrokenError
            except BrokenError:
                continue
            except CancelledError:
                return

    calls = [Call(produce) for _ in range(3)]
    calls += [Call(consume, mine, rng.randint(1, 100)) for mine in taken]
    until(lambda: sum(map(len, taken)) >= ends_at)
    getattr(queue.queues[rng.randint(0, 1)], end)()
    for call in calls:
        call.result()
    every = [*itertools.chain(*taken), *left_in(queue)]
    assert Counter(every) == Counter(source.made)
    assert len(source.made) >= ends_at


@SEEDS
def test_runs_that_fail_again_and_again_use_every_element_once(seed):
    rng = random.Random(seed)
    source = Source(200, rng.sample(range(200), 6))
    queue = Pairs([source], capacity=rng.randint(1, 3))
    fails_at, taken = set(rng.sample(range(200), 6)), []

    def step():
        taken.append(number_of(queue.dequeue()))
        if len(taken) in fails_at:
            fails_at.remove(len(taken))
            raise BrokenError

    class Fill(Hook):
        runner = QueueRunner(queue.queues, [queue.enqueue_op] * 2)

        def after_create_session(self, run, coordinator):
            self.runner.start(coordinator)

    for _ in range(20):
        try:
            drive(step, [Fill()])
            break
        except BrokenError:
            continue
    assert sorted(taken) == list(range(200))
    assert not left_in(queue)


@SEEDS
def test_a_run_that_stops_at_a_random_step_leaves_the_rest_in_order(seed):
    rng = random.Random(seed)
    source, stops_at, taken = Source(500), rng.randint(1, 100), []
    queue = Pairs([source], capacity=rng.randint(1, 5))

    class Stop(Hook):
        def after_run(self, ctx, results):
            if len(taken) == stops_at:
                ctx.request_stop()

    drive(lambda: taken.append(number_of(queue.dequeue())), [EnqueueHook(queue), Stop()])
    assert [*taken, *left_in(queue)] == source.made
    assert len(taken) == stops_at


@SEEDS
def test_calls_that_were_put_off_are_executed_once(seed):
    rng = random.Random(seed)
    makes_call = [rng.random() < 0.7 for _ in range(100)]
    numbers, executed = itertools.count(), []
    left = iter(makes_call)
    with Run().as_current():
        manager = AsyncFunctionManager()
        push = manager.add_async_function(
            lambda number: executed.append(number.item()), [lambda: torch.tensor(next(numbers))]
        )
        drive(lambda: push() if next(left) else None, manager.hooks)
    assert executed == list(range(sum(makes_call)))


@SEEDS
def test_puts_and_gets_with_short_limits_lose_nothing(seed):
    rng = random.Random(seed)
    queue, total = BoundedQueue(rng.randint(1, 3)), 150
    limits = [rng.choice([0, 1e-5, 1e-4]) for _ in range(total)]
    taken = []

    def put_all(numbers):
        for number in numbers:
            while True:
                try:
                    queue.put(number, limits[number])
                    break
                except QueueFullError:
                    continue

    def get_all():
        while True:
            try:
                taken.append(queue.get(limits[len(taken) % total]))
            except CancelledError:
                return
            except DeadlineExceededError:
                continue

    getting = [Call(get_all) for _ in range(2)]
    putting = [Call(put_all, range(first, total, 2)) for first in range(2)]
    for call in putting:
        call.result()
    queue.close()
    for call in getting:
        call.result()
    assert sorted(taken) == list(range(total))
