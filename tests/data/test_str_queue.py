import json
import random
import threading
from collections import Counter, deque

import numpy as np
import pytest

from monolith.data.str_queue import StrQueue
from monolith.errors import DeadlineExceededError, InvalidArgumentError

END = ("", True)


def take(queue, number):
    return [queue.dequeue() for _ in range(number)]


def strings(queue, number):
    taken = take(queue, number)
    assert not any(out_of_range for _, out_of_range in taken)
    return [element for element, _ in taken]


def answers(*given):
    """A refill function that gives these answers, and a list of its calls."""
    left, calls = iter(given), []

    def refill():
        calls.append(1)
        return next(left)

    return refill, calls


@pytest.mark.req("TS-STRQ-T1")
def test_strings_come_out_in_order():
    queue = StrQueue()
    queue.enqueue_many(["test1", "test2"])
    assert strings(queue, 2) == ["test1", "test2"]


@pytest.mark.req("TS-STRQ-T2")
def test_initial_elements_come_first():
    queue = StrQueue(initial_elements=["test1"])
    queue.enqueue_many(("test2",))
    assert strings(queue, 2) == ["test1", "test2"]


@pytest.mark.req("TS-STRQ-T3")
def test_an_empty_queue_is_out_of_range():
    assert StrQueue().dequeue() == END


@pytest.mark.req("TS-STRQ-T4")
def test_a_function_refills_the_queue_until_it_reports_the_end():
    counter = [0]

    def refill():
        counter[0] += 1
        return ([str(counter[0])], False) if counter[0] <= 2 else ([], True)

    queue = StrQueue(auto_enqueue_fn=refill)
    assert take(queue, 4) == [("1", False), ("2", False), END, END]


@pytest.mark.req("NT-STRQ-T1")
def test_more_than_the_capacity_is_refused_and_changes_nothing():
    queue = StrQueue(capacity=3, name="files")
    queue.enqueue_many(["a", "b", "c"])
    text = r"expected at most 3 elements, got 4 \(queue 'files'\); dequeue some"
    with pytest.raises(ValueError, match=text) as caught:
        queue.enqueue_many(["d"])
    assert isinstance(caught.value, InvalidArgumentError)
    assert strings(queue, 1) == ["a"]
    queue.enqueue_many(["d"])
    assert strings(queue, 3) == ["b", "c", "d"]


def test_initial_elements_that_do_not_fit_are_refused():
    with pytest.raises(InvalidArgumentError, match="at most 1 elements, got 2"):
        StrQueue(["a", "b"], capacity=1)


@pytest.mark.req("NT-STRQ-T2")
def test_room_of_elements_that_are_gone_is_used_again():
    queue = StrQueue(["a", "b", "c"])
    assert queue.dequeue() == ("a", False)
    assert (queue._offset, queue._arr_size) == (1, 3)
    queue.enqueue_many(["d"])
    assert (queue._offset, queue._arr_size) == (0, 3)
    assert strings(queue, 3) == ["b", "c", "d"]


@pytest.mark.req("NT-STRQ-T3")
def test_a_function_that_has_nothing_yet_is_called_again():
    refill, calls = answers(([], False), (["x", "y"], False), ([], True), ([], True))
    queue = StrQueue(auto_enqueue_fn=refill)
    assert take(queue, 3) == [("x", False), ("y", False), END]
    assert len(calls) == 3
    assert queue.dequeue() == END
    assert len(calls) == 4


def test_elements_that_come_with_the_end_are_not_taken():
    refill, _ = answers((["x"], True))
    assert StrQueue(auto_enqueue_fn=refill).dequeue() == END


def test_a_function_is_not_asked_while_elements_are_left():
    refill, calls = answers()
    assert StrQueue(["a"], auto_enqueue_fn=refill).dequeue() == ("a", False)
    assert not calls


def test_a_function_that_never_has_anything_is_not_waited_for_longer_than_the_limit():
    queue = StrQueue(auto_enqueue_fn=lambda: ([], False), name="files")
    text = r"of auto_enqueue_fn within 0 s, got none \(queue 'files'\); have it report the end"
    with pytest.raises(DeadlineExceededError, match=text):
        queue.dequeue(timeout=0)


def test_an_error_of_the_function_leaves_the_queue_as_it_was():
    def refill():
        raise KeyError("bad")

    queue = StrQueue(auto_enqueue_fn=refill)
    with pytest.raises(KeyError, match="bad"):
        queue.dequeue()
    queue.enqueue_many(["a"])
    assert queue.dequeue() == ("a", False)


def test_more_than_the_capacity_from_the_function_is_refused():
    refill, _ = answers((["a", "b"], False))
    with pytest.raises(InvalidArgumentError, match="at most 1 elements, got 2"):
        StrQueue(auto_enqueue_fn=refill, capacity=1).dequeue()


@pytest.mark.req("NT-STRQ-T4")
def test_a_restored_queue_goes_on_with_what_was_left():
    saved = StrQueue(["a", "b", "c"])
    saved.dequeue()
    state = json.loads(json.dumps(saved.state_dict()))
    assert state == {"elements": ["a", "b", "c"], "offset": 1, "arr_size": 3}
    restored = StrQueue(initial_elements=["z"])
    restored.load_state_dict(state)
    assert take(restored, 3) == [("b", False), ("c", False), END]


def test_a_state_is_a_copy():
    queue = StrQueue(["a"])
    state = queue.state_dict()
    queue.enqueue_many(["b"])
    other = StrQueue()
    other.load_state_dict(state)
    other.enqueue_many(["c"])
    assert state["elements"] == ["a"]


def test_a_state_of_a_whole_array_is_cut_to_its_used_part():
    queue = StrQueue()
    queue.load_state_dict({"elements": ["a", "b", "", ""], "offset": 1, "arr_size": 2})
    queue.enqueue_many(["c"])
    assert take(queue, 3) == [("b", False), ("c", False), END]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"offset": 4}, r"offset <= arr_size <= 3 elements .* got offset 4 and arr_size 3"),
        ({"offset": -1}, "got offset -1"),
        ({"arr_size": 4}, "3 elements and a capacity of 5, got offset 1 and arr_size 4"),
        ({"elements": list("abcdefg"), "arr_size": 6}, "a capacity of 5, got .* arr_size 6"),
        ({"more": 1}, r"keys elements, offset and arr_size, got \['arr_size', .* 'more'"),
    ],
)
def test_a_wrong_state_is_refused_and_changes_nothing(change, text):
    queue = StrQueue(["z"], capacity=5, name="files")
    state = {"elements": ["a", "b", "c"], "offset": 1, "arr_size": 3}
    with pytest.raises(InvalidArgumentError, match=text):
        queue.load_state_dict({**state, **change})
    assert queue.dequeue() == ("z", False)


@pytest.mark.parametrize(("elements", "got"), [("abc", "one string"), (["a", 1], "int")])
def test_what_is_no_sequence_of_strings_is_refused(elements, got):
    queue = StrQueue(name="files")
    with pytest.raises(TypeError, match=rf"\(queue 'files'\) expected .*strings, got {got}"):
        queue.enqueue_many(elements)
    with pytest.raises(TypeError, match=rf"\(queue 'files'\) expected .*strings, got {got}"):
        queue.load_state_dict({"elements": elements, "offset": 0, "arr_size": 0})
    assert queue.dequeue() == END


@pytest.mark.req("NT-STRQ-T5")
def test_many_threads_lose_and_double_nothing():
    queue, taken, given = StrQueue(), [], [str(number) for number in range(10_000)]

    def work(mine):
        for first in range(0, len(mine), 10):
            queue.enqueue_many(mine[first : first + 10])
            taken.extend(strings(queue, 10))

    threads = [threading.Thread(target=work, args=(given[i::8],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(taken) == Counter(given)
    assert queue.dequeue() == END


@pytest.mark.req("NT-STRQ-T6")
def test_a_queue_refills_from_another_that_shares_its_section():
    files = StrQueue(["a", "b"])

    def lines():
        name, out_of_range = files.dequeue(timeout=0)
        return [f"{name}{line}" for line in range(2)], out_of_range

    queue = StrQueue(critical_section=files.critical_section, auto_enqueue_fn=lines)
    assert queue.critical_section is files.critical_section
    assert strings(queue, 4) == ["a0", "a1", "b0", "b1"]
    assert queue.dequeue() == END


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("enqueue_many", [["a"]]),
        ("dequeue", []),
        ("state_dict", []),
        ("load_state_dict", [{"elements": [], "offset": 0, "arr_size": 0}]),
    ],
)
def test_every_call_waits_for_the_section_and_no_longer_than_its_limit(verb, arguments):
    section, is_held, may_leave = threading.RLock(), threading.Event(), threading.Event()
    queue = StrQueue(critical_section=section, name="files")

    def hold():
        with section:
            is_held.set()
            may_leave.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait(60)
    text = rf"\[StrQueue.{verb}\] expected the critical section within 0 s, .* \(queue 'files'\)"
    with pytest.raises(DeadlineExceededError, match=text):
        getattr(queue, verb)(*arguments, timeout=0)
    may_leave.set()
    thread.join()
    getattr(queue, verb)(*arguments, timeout=60)


def test_a_limit_below_zero_is_refused():
    with pytest.raises(ValueError, match=r"\[StrQueue.dequeue\] .* got -1"):
        StrQueue().dequeue(timeout=-1)


@pytest.mark.req("NT-STRQ-T7")
@pytest.mark.parametrize("seed", range(5))
def test_a_list_gives_the_same_sequence(seed):
    def refill_of(rng):
        numbers = iter(range(1000))
        return lambda: ([str(next(numbers)) for _ in range(rng.randint(0, 4))], rng.random() < 0.1)

    queue, model = StrQueue(auto_enqueue_fn=refill_of(random.Random(seed))), deque()
    refill, rng = refill_of(random.Random(seed)), random.Random(seed + 100)
    for number in range(300):
        if rng.random() < 0.3:
            more = [f"explicit {number}.{i}" for i in range(rng.randint(0, 3))]
            queue.enqueue_many(more)
            model.extend(more)
        while not model:
            elements, out_of_range = refill()
            if out_of_range:
                break
            model.extend(elements)
        assert queue.dequeue() == ((model.popleft(), False) if model else END)


def test_arrays_of_strings_are_sequences_too():
    queue = StrQueue(np.array(["a", "b"]), auto_enqueue_fn=lambda: (np.array(["c", "d"]), False))
    assert [queue.dequeue()[0] for _ in range(4)] == ["a", "b", "c", "d"]
