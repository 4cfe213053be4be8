import math

import pytest

from monolith.errors import (
    CancelledError,
    DeadlineExceededError,
    EndOfQueueError,
    OutOfRangeError,
    QueueFullError,
)
from monolith.native_training.queues.bounded_queue import BoundedQueue, get_together, put_together
from tests.native_training.queues.threads import Call, until_waiting


def filled(*items, capacity=3):
    queue = BoundedQueue(capacity, name="q")
    for item in items:
        queue.put(item)
    return queue


def test_items_come_out_in_order():
    queue = filled("a", "b", "c")
    assert [queue.get() for _ in range(3)] == ["a", "b", "c"]


def test_size_counts_what_is_inside():
    queue = filled("a", "b")
    assert queue.size() == 2
    queue.get()
    assert queue.size() == 1


def test_a_put_waits_for_room():
    queue = filled(1, capacity=1)
    put = Call(queue.put, 2)
    until_waiting(queue)
    assert queue.get() == 1
    put.result()
    assert queue.get() == 2


def test_a_get_waits_for_an_item():
    queue = filled()
    get = Call(queue.get)
    until_waiting(queue)
    queue.put(None)
    assert get.result() is None


def test_a_closed_queue_hands_out_what_is_left_and_then_ends():
    queue = filled("a")
    queue.close()
    assert queue.is_closed
    assert queue.get() == "a"
    with pytest.raises(EndOfQueueError, match="expected an item, got queue 'q', closed, 0 of 3"):
        queue.get()


def test_the_end_of_a_queue_is_a_cancellation_and_the_end_of_an_input():
    assert issubclass(EndOfQueueError, CancelledError)
    assert issubclass(EndOfQueueError, OutOfRangeError)


def test_a_put_into_a_closed_queue_is_refused():
    queue = filled("a")
    queue.close()
    text = r"\[BoundedQueue.put\] expected an open queue, got queue 'q', closed, 1 of 3"
    with pytest.raises(CancelledError, match=text):
        queue.put("b")
    assert queue.drain() == ["a"]


@pytest.mark.parametrize("end", ["close", "cancel"])
def test_the_end_wakes_every_get_that_waits(end):
    queue = filled()
    gets = [Call(queue.get) for _ in range(3)]
    until_waiting(queue, 3)
    getattr(queue, end)()
    for get in gets:
        with pytest.raises(CancelledError):
            get.result()


@pytest.mark.parametrize("end", ["close", "cancel"])
def test_the_end_wakes_every_put_that_waits(end):
    queue = filled("a", capacity=1)
    puts = [Call(queue.put, item) for item in "bcd"]
    until_waiting(queue, 3)
    getattr(queue, end)()
    for put in puts:
        with pytest.raises(CancelledError):
            put.result()
    assert queue.drain() == ["a"]


def test_a_cancelled_queue_hands_out_nothing_more():
    queue = filled("a", "b")
    queue.cancel()
    with pytest.raises(CancelledError, match="open queue, got queue 'q', cancelled, 2 of 3") as e:
        queue.get()
    assert not isinstance(e.value, EndOfQueueError)
    assert queue.drain() == ["a", "b"]
    assert queue.size() == 0


@pytest.mark.parametrize("end", ["close", "cancel"])
def test_a_queue_that_is_opened_again_goes_on_with_what_is_left(end):
    queue = filled("a")
    getattr(queue, end)()
    queue.reopen()
    queue.put("b")
    assert [queue.get(), queue.get()] == ["a", "b"]


def test_draining_wakes_a_put():
    queue = filled("a", capacity=1)
    put = Call(queue.put, "b")
    until_waiting(queue)
    assert queue.drain() == ["a"]
    put.result()
    assert queue.get() == "b"


def test_a_put_that_finds_no_room_in_time_puts_nothing():
    queue = filled("a", capacity=1)
    text = r"room within 0 s, got none \(queue 'q', open, 1 of 1\); take items out"
    with pytest.raises(QueueFullError, match=text):
        queue.put("b", timeout_seconds=0)
    assert queue.drain() == ["a"]


def test_a_get_that_finds_no_item_in_time_says_so():
    text = r"an item within 0.001 s, got none \(queue 'q', open, 0 of 3\); start what fills it"
    with pytest.raises(DeadlineExceededError, match=text):
        filled().get(timeout_seconds=0.001)


def test_the_limit_of_the_queue_counts_where_a_call_has_none():
    queue = BoundedQueue(1, timeout_seconds=0)
    with pytest.raises(DeadlineExceededError):
        queue.get()
    queue.put("a")
    with pytest.raises(QueueFullError):
        queue.put("b")


@pytest.mark.parametrize("verb", ["put", "get"])
def test_a_limit_that_is_no_number_is_refused(verb):
    arguments = {"put": ["a"], "get": []}[verb]
    with pytest.raises(ValueError, match=rf"\[BoundedQueue.{verb}\] .* got nan"):
        getattr(filled(), verb)(*arguments, timeout_seconds=math.nan)


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_capacity_below_one_is_refused(capacity):
    with pytest.raises(ValueError, match=rf"at least 1, got {capacity} \(queue 'q'\)"):
        BoundedQueue(capacity, name="q")


def test_a_limit_below_zero_is_refused():
    with pytest.raises(ValueError, match=r"\[BoundedQueue\] .* got -1"):
        BoundedQueue(1, timeout_seconds=-1)


def pair(capacities=(2, 2)):
    first = BoundedQueue(capacities[0], name="first")
    return first, BoundedQueue(capacities[1], name="second", lock_owner=first)


def test_items_that_are_put_together_are_taken_together():
    queues = pair()
    put_together(queues, ("a", 1))
    put_together(queues, ("b", 2))
    assert get_together(queues) == ["a", 1]
    assert get_together(queues) == ["b", 2]


def test_a_put_into_several_queues_is_all_or_nothing():
    queues = pair((2, 1))
    put_together(queues, ("a", 1))
    with pytest.raises(QueueFullError):
        put_together(queues, ("b", 2), 0)
    queues[1].close()
    with pytest.raises(CancelledError, match="'second', closed"):
        put_together(queues, ("b", 2))
    assert [queue.size() for queue in queues] == [1, 1]


def test_a_get_from_several_queues_is_all_or_nothing():
    queues = pair()
    queues[0].put("a")
    with pytest.raises(DeadlineExceededError):
        get_together(queues, 0)
    queues[1].close()
    with pytest.raises(EndOfQueueError, match="'second', closed"):
        get_together(queues)
    assert queues[0].drain() == ["a"]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("end", ["close", "cancel"])
def test_the_end_of_one_of_several_queues_wakes_who_waits_for_all(which, end):
    queues = pair((1, 1))
    get = Call(get_together, queues)
    until_waiting(queues[0])
    getattr(queues[which], end)()
    with pytest.raises(CancelledError):
        get.result()


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("end", ["close", "cancel"])
def test_the_end_of_one_of_several_queues_wakes_who_waits_for_room(which, end):
    queues = pair((1, 1))
    put_together(queues, ("a", 1))
    put = Call(put_together, queues, ("b", 2))
    until_waiting(queues[0])
    getattr(queues[which], end)()
    with pytest.raises(CancelledError):
        put.result()
    assert [queue.drain() for queue in queues] == [["a"], [1]]


def test_cancelling_one_of_several_queues_counts_before_the_end_of_another():
    queues = pair()
    queues[0].close()
    queues[1].cancel()
    with pytest.raises(CancelledError, match="'second', cancelled"):
        get_together(queues)


def test_a_queue_holds_an_item_itself_not_its_equal():
    queue, item = BoundedQueue(1), [1]
    queue.put(item)
    assert queue.holds(item)
    assert not queue.holds([1])
    queue.get()
    assert not queue.holds(item)
