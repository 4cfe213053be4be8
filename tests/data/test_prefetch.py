import itertools
import threading

import pytest

from monolith.data.prefetch import Prefetch
from tests.data.samples import memory, users


def test_prefetch_gives_the_same_batches():
    source = memory(50).shuffle(20).batch(6)
    assert users(source.prefetch(3)) == users(source)


def test_prefetch_makes_at_most_so_many_batches_ahead():
    made = []

    def note(block):
        made.append(block.num_rows)
        return block

    batches = iter(memory(50).batch(2).map(note).prefetch(2))
    next(batches)
    batches._ahead._thread.join(0.5)  # without a limit it would end with the 25 batches
    assert batches._ahead._thread.is_alive()
    assert len(made) <= 3
    batches.close()


def test_an_error_ahead_is_raised_at_its_batch():
    def fail(block):
        if block["user"][0].as_py() >= 4:
            raise RuntimeError("broken")
        return block

    batches = iter(memory(10).batch(2).map(fail).prefetch(3))
    assert users(itertools.islice(batches, 2)) == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="broken"):
        next(batches)
    with pytest.raises(RuntimeError, match="broken"):
        next(batches)


def test_closing_stops_the_thread():
    before = set(threading.enumerate())  # threads of other tests may end meanwhile
    batches = iter(memory(50).batch(2).prefetch(2))
    next(batches)
    batches.close()
    assert set(threading.enumerate()) <= before


def test_after_the_end_comes_the_end_again():
    batches = iter(memory(2).batch(2).prefetch(2))
    assert len(list(batches)) == 1
    assert list(batches) == []


def threads_ahead():
    return [each for each in threading.enumerate() if each.name == "monolith-prefetch"]


def test_a_loop_that_is_left_stops_its_thread():
    before = threads_ahead()
    for _ in memory(50).batch(2).prefetch(2):
        (ours,) = [each for each in threads_ahead() if each not in before]
        break
    ours.join(30)
    assert not ours.is_alive()


def test_the_thread_ends_at_the_end_of_the_samples():
    before = threads_ahead()
    batches = iter(memory(50).batch(2).prefetch(1))
    (ours,) = [each for each in threads_ahead() if each not in before]
    assert len(list(batches)) == 25
    ours.join(30)
    assert not ours.is_alive()


def test_what_is_closed_gives_nothing_more():
    ahead = Prefetch(lambda: 1, 1, lambda made: False, "ahead")
    ahead.close()
    assert ahead.next() == 1  # was made before
    with pytest.raises(RuntimeError, match=r"\[ahead\] expected it open, got it closed"):
        ahead.next()
