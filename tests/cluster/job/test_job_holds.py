"""`JobState`: holds of pushes, and who watches and waits for them."""

import pytest

from monolith.cluster.job.job_state import WATCH_SECONDS, JobState
from monolith.errors import FailedPreconditionError
from tests.cluster.job.job_clock import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def state(clock):
    """Three workers, of which 0 is the chief."""
    state = JobState(3, clock)
    for worker in range(3):
        state.join(worker, worker, [10 + worker], {}, {})
    return state


def news_of(state):
    return state.watch(1, 1, 0, 0).result(0)


def watch(state, worker=1):
    """A watch that waits."""
    return state.watch(worker, worker, news_of(state).number, 0)


def hold_all(state, hold, workers=(1, 2)):
    for worker in workers:
        state.note_held(worker, worker, hold, 0)


def test_a_watch_with_another_number_is_answered_at_once(state):
    news = news_of(state)
    assert (news.hold, news.is_stopping) == (0, False)
    assert not state.watch(1, 1, news.number, 0).done()


def test_starts_of_a_server_have_different_news():
    numbers = {JobState(1)._news.number for _ in range(3)}
    assert len(numbers) == 3


def test_a_watch_has_the_news_of_a_hold_and_of_its_end(state):
    first = watch(state)
    hold = state.hold(0, 20)
    assert first.result(0)[1:] == (hold, 20, False, 0)
    second = watch(state)
    assert state.release(hold)
    assert second.result(0).hold == 0


def test_a_watch_without_news_is_answered_by_a_tick(state, clock):
    waiting, number = watch(state), news_of(state).number
    clock.now = WATCH_SECONDS - 1
    state.tick()
    assert not waiting.done()
    clock.now = WATCH_SECONDS
    later = watch(state)
    state.tick()
    assert waiting.result(0).number == number
    assert not later.done()


def test_a_watch_acknowledges_steps(state):
    state.offer(["a"], 1)
    share = state.take(1, 1, 0).share
    state.note_step(1, 1, 1, [(share, 3, False, 2)])
    state.watch(1, 1, 0, 1)
    state.lose(11)
    assert state.take(2, 2, 0).position == 3


def test_the_chief_waits_until_all_others_hold(state):
    hold = state.hold(0, 20)
    waiting = state.await_held(hold, 10)
    hold_all(state, hold, [1])
    assert not waiting.done()
    hold_all(state, hold, [2])
    assert waiting.result(0) == []
    assert state.await_held(hold, 10).result(0) == []


def test_a_hold_acknowledges_steps(state):
    state.offer(["a"], 1)
    share = state.take(1, 1, 0).share
    state.note_step(1, 1, 1, [(share, 3, False, 2)])
    state.note_held(1, 1, state.hold(0, 20), 1)
    state.lose(11)
    assert state.counts().repeats == 0


def test_a_worker_that_says_an_old_hold_does_not_hold(state):
    old = state.hold(0, 20)
    state.release(old)
    waiting = state.await_held(state.hold(0, 20), 10)
    hold_all(state, old)
    assert not waiting.done()


def test_silent_workers_are_named_with_their_callers_when_time_is_over(state, clock):
    hold = state.hold(0, 20)
    waiting = state.await_held(hold, 10)
    hold_all(state, hold, [2])
    clock.now = 9.9
    state.tick()
    assert not waiting.done()
    clock.now = 10
    state.tick()
    assert waiting.result(0) == [(1, [11])]


def test_a_worker_that_dies_is_not_waited_for(state):
    hold = state.hold(0, 20)
    waiting = state.await_held(hold, 10)
    hold_all(state, hold, [1])
    state.lose(12)
    assert waiting.result(0) == []


def test_a_worker_that_leaves_is_not_waited_for(state):
    hold = state.hold(0, 20)
    waiting = state.await_held(hold, 10)
    state.leave(1, 1, 0)
    state.leave(2, 2, 0)
    assert waiting.result(0) == []


def test_a_new_start_of_a_worker_holds_anew(state):
    hold = state.hold(0, 20)
    hold_all(state, hold)
    state.join(1, 7, [17], {}, {})
    waiting = state.await_held(hold, 10)
    assert not waiting.done()
    state.note_held(1, 7, hold, 0)
    assert waiting.result(0) == []


def test_a_wait_that_is_sent_twice_has_two_answers(state):
    hold = state.hold(0, 20)
    waits = [state.await_held(hold, 10) for _ in range(2)]
    hold_all(state, hold)
    assert [wait.result(0) for wait in waits] == [[], []]


def test_a_wait_for_another_hold_is_refused(state):
    state.release(state.hold(0, 20))
    with pytest.raises(FailedPreconditionError, match="expected hold 0, got 1, which has ended"):
        state.await_held(1, 10)


def test_a_hold_ends_by_itself(state, clock):
    hold = state.hold(0, 2)
    waiting, watching = state.await_held(hold, 50), watch(state)
    clock.now = 1
    state.tick()
    assert not watching.done()
    clock.now = 2
    state.tick()
    assert watching.result(0).hold == 0
    assert [number for number, _ in waiting.result(0)] == [1, 2]
    assert not state.release(hold)


def test_a_release_after_the_time_says_so_without_a_tick(state, clock):
    hold = state.hold(0, 20)
    clock.now = 20
    assert not state.release(hold)
    assert news_of(state).hold == 0


def test_a_release_of_another_hold_changes_nothing(state):
    hold = state.hold(0, 20)
    assert not state.release(hold + 1)
    assert news_of(state).hold == hold


def test_a_second_hold_is_refused_until_the_first_ends(state, clock):
    state.hold(0, 20)
    with pytest.raises(FailedPreconditionError, match="no hold that lasts, got number 1"):
        state.hold(0, 20)
    clock.now = 20
    assert state.hold(0, 20) == 2


def positions(state):
    return dict(state.export()["returned"])


def test_a_state_in_a_hold_has_no_step_of_a_worker_that_joined_when_all_held(state):
    state.offer(["a"], 1)
    state.leave(2, 2, 0)
    share = state.take(1, 1, 0).share
    state.note_step(1, 1, 1, [(share, 3, False, 2)])
    hold = state.hold(0, 20)
    state.note_held(1, 1, hold, 1)
    state.leave(1, 1, 1)
    assert state.await_held(hold, 10).result(0) == []
    state.join(2, 9, [19], {}, {})
    assert state.take(2, 9, 0).position == 3
    state.note_step(2, 9, 1, [(share, 5, False, 2)])
    state.take(2, 9, 1)  # acknowledges the step
    assert positions(state) == {share: 3}
    state.release(hold)
    assert positions(state) == {share: 5}


def test_a_state_in_a_hold_has_no_step_of_a_worker_that_was_given_up(state):
    state.offer(["a"], 1)
    share = state.take(1, 1, 0).share
    hold = state.hold(0, 20)
    state.note_step(1, 1, 1, [(share, 3, False, 2)])
    hold_all(state, hold, [2])
    assert state.await_held(hold, 0).result(0) == [(1, [11])]
    state.give_up([1])
    assert positions(state) == {share: None}


def test_a_hold_ends_with_its_holder(state):
    hold = state.hold(0, 20)
    watching = watch(state)
    state.join(0, 7, [17], {}, {})
    assert watching.result(0).hold == 0
    assert not state.release(hold)
    assert state.hold(0, 20) == hold + 1


def test_workers_are_stopped_once(state):
    state.offer(["a"], 1)
    watching = watch(state)
    state.stop()
    assert watching.result(0).is_stopping
    again = watch(state)
    state.stop()
    assert not again.done()
    assert state.take(1, 1, 0).kind == "end"


def test_a_server_that_ends_answers_all_and_names_no_worker_as_silent(state):
    hold = state.hold(0, 20)
    watching, waiting = watch(state), state.await_held(hold, 10)
    state.end_waits()
    assert watching.done()
    with pytest.raises(FailedPreconditionError, match="got one that ends"):
        waiting.result(0)
    assert state.alive_workers() == [0, 1, 2]
