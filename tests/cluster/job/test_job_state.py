"""`JobState`: workers, shares and their positions, and counts."""

import json

import pytest

from monolith.cluster.job import job_state
from monolith.cluster.job.job_state import REJOIN_SECONDS, JobState
from monolith.cluster.job.job_values import Progress, Taken, share_of
from monolith.errors import AbortedError, InvalidArgumentError

A, B, C = (share_of(0, name) for name in "abc")


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Worker:
    """A worker that talks to a state.

    Attributes:
        answer: Of the last `join`.
    """

    def __init__(self, state, worker, start=None, held=None):
        self.state, self.worker = state, worker
        self.start = 100 + worker if start is None else start
        self.number = self.acknowledged = 0
        self.answer = state.join(worker, self.start, [10 * self.start], {}, held or {})

    @property
    def client(self):
        return 10 * self.start

    def take(self, finished=()):
        return self.state.take(self.worker, self.start, self.acknowledged, finished)

    def step(self, share, position, *, last=False, samples=1, acknowledge=True):
        self.number += 1
        progress = [Progress(share, position, last, samples)]
        result = self.state.note_step(self.worker, self.start, self.number, progress)
        if acknowledge:
            self.acknowledged = self.number
        return result

    def leave(self):
        self.state.leave(self.worker, self.start, self.acknowledged)


def job(names="ab", epochs=1, workers=2, clock=None):
    state = JobState(workers, clock or Clock())
    state.offer(list(names), epochs)
    return state


def reloaded(state, clock=None, *, with_workers=True):
    other = JobState(state.num_workers, clock or Clock())
    other.load(json.loads(json.dumps(state.export())), with_workers=with_workers)
    return other


def test_shares_are_handed_out_in_order_and_each_once():
    state = job("abc")
    first, second = Worker(state, 0), Worker(state, 1)
    assert [w.take() for w in (first, second, first)] == [Taken("share", s) for s in (A, B, C)]
    assert second.take() == Taken("wait")


def test_without_an_offer_workers_wait():
    state = JobState(1)
    worker = Worker(state, 0)
    assert not state.is_offered
    assert worker.take() == Taken("wait")
    state.offer([], 1)
    assert worker.take() == Taken("end")


def test_a_share_is_finished_when_all_servers_have_its_last_step():
    worker = Worker(job("a"), 0)
    worker.take()
    worker.step(A, 5, last=True, acknowledge=False)
    assert worker.take() == Taken("wait")
    worker.acknowledged = 1
    assert worker.take() == Taken("end")


def test_a_share_without_a_batch_is_finished_by_the_next_take():
    worker = Worker(job("ab"), 0)
    worker.take()
    assert worker.take([A]) == Taken("share", B)
    assert worker.take([B]) == Taken("end")


def test_every_epoch_has_all_shares():
    state = job("a", epochs=2)
    worker = Worker(state, 0)
    for epoch in range(2):
        assert worker.take().share == share_of(epoch, "a")
        worker.step(share_of(epoch, "a"), 1, last=True)
    assert worker.take() == Taken("end")


def test_endless_epochs_never_end():
    worker = Worker(job("a", epochs=None), 0)
    assert [worker.take().share for _ in range(50)][-1] == share_of(49, "a")


def test_a_second_offer_is_ignored():
    state = job("a")
    state.offer(["b"], 5)
    assert Worker(state, 0).take().share == A


def test_more_shares_than_the_queue_takes_are_refused(monkeypatch):
    monkeypatch.setattr(job_state, "_MAX_SHARES", 2)
    with pytest.raises(InvalidArgumentError, match="expected at most 2 shares, got 3"):
        job("abc")


def test_what_a_worker_leaves_goes_to_others_from_its_position():
    state = job("a")
    first, second = Worker(state, 0), Worker(state, 1)
    first.take()
    first.step(A, 3)
    first.leave()
    assert second.take() == Taken("share", A, 3)
    assert state.alive_workers() == [1]
    first.leave()  # twice is fine
    assert state.counts() == (1, 1, 0, 0, 0)


@pytest.mark.parametrize("how", ["leave", "lose", "give_up", "join"])
def test_steps_that_not_all_servers_have_are_made_again_and_counted(how):
    state = job("a")
    first, second = Worker(state, 0), Worker(state, 1)
    first.take()
    first.step(A, 3, samples=2)
    first.step(A, 4, samples=5, acknowledge=False)
    first.step(A, 6, samples=7, acknowledge=False)
    gone = {
        "leave": first.leave,
        "lose": lambda: state.lose(first.client),
        "give_up": lambda: state.give_up([0, 5]),
        "join": lambda: Worker(state, 0, start=7),
    }
    gone[how]()
    # step 3 says that step 2 is at all servers
    assert second.take() == Taken("share", A, 4)
    assert state.counts().repeats == 7
    assert state.counts().dropped == (how != "leave")


def test_an_unacknowledged_end_is_not_the_end():
    state = job("a")
    first, second = Worker(state, 0), Worker(state, 1)
    first.take()
    first.step(A, 3, last=True, acknowledge=False)
    state.lose(first.client)
    assert second.take() == Taken("share", A, None)


def test_a_caller_of_nobody_loses_nobody():
    state = job()
    worker = Worker(state, 0)
    assert state.lose(5) == []
    assert state.lose(worker.client) == [worker.client]
    assert state.lose(worker.client) == []
    assert state.counts().dropped == 1


def test_a_worker_that_was_given_up_is_refused():
    state = job()
    worker = Worker(state, 0)
    state.give_up([0])
    calls = [
        worker.take,
        lambda: worker.step(A, 1),
        lambda: state.watch(0, worker.start, 0, 0),
        lambda: state.note_held(0, worker.start, 1, 0),
        lambda: state.check_worker(1, 5),
    ]
    for call in calls:
        with pytest.raises(AbortedError, match=r"got worker \d, which was given up because"):
            call()
    worker.leave()
    assert state.counts().steps == 0


def test_a_new_start_goes_on_with_the_numbers_of_the_worker():
    state = job("a")
    old = Worker(state, 0)
    old.take()
    old.step(A, 1, samples=3)
    new = Worker(state, 0, start=5)
    expected = {"number": 1, "samples": 3, "steps": 1}
    assert new.answer == {"fenced": [old.client], "lost": [], "park": 0, **expected}


def test_the_same_start_joins_twice_and_keeps_what_it_has():
    state = job("a")
    worker = Worker(state, 0)
    worker.take()
    worker.step(A, 1, acknowledge=False)
    again = Worker(state, 0)
    assert again.answer["fenced"] == again.answer["lost"] == []
    state.lose(again.client)
    assert Worker(state, 1).take() == Taken("share", A, None)


def test_a_worker_beyond_the_job_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"a worker in \[0, 2\), got 2; give all"):
        Worker(job(), 2)


def test_a_worker_with_another_task_is_refused():
    state = job()
    state.join(0, 1, [], {"features": ["user"]}, {})
    with pytest.raises(InvalidArgumentError, match=r"with 'user', got 'item' \(worker 1\)"):
        state.join(1, 2, [], {"features": ["item"]}, {})
    assert state.alive_workers() == [0]


def test_samples_of_a_share_of_another_worker_are_repeats():
    state = job("ab")
    worker = Worker(state, 0)
    assert worker.step(A, 1, samples=4) == (1, 4)
    assert state.counts().samples == 4


def test_counts_go_on_over_a_save():
    state = job("ab")
    worker = Worker(state, 0)
    worker.take()
    worker.step(A, 1, samples=3)
    state.note_lost(2)
    state.lose(worker.client)
    assert reloaded(state).counts() == state.counts() == (1, 3, 3, 2, 1)
    other = reloaded(state, with_workers=False)
    assert other.counts() == state.counts()
    new = Worker(other, 0)
    assert new.answer["number"] == 0  # of this start of the job
    new.take()
    assert new.step(A, 2, samples=4) == (2, 3)
    assert other.counts()[:2] == (2, 7)


def test_steps_of_a_run_without_a_job_count():
    state = job()
    worker = Worker(state, 0)
    state.set_steps(100)
    assert worker.step(A, 1)[0] == 101
    state.set_steps(50)
    assert worker.step(A, 1)[0] == 51


def test_a_save_has_the_shares_of_workers_with_their_positions():
    state = job("abc")
    worker = Worker(state, 0)
    worker.take()
    worker.step(A, [1, {"x": 2}])
    other = reloaded(state, with_workers=False)
    new = Worker(other, 1)
    taken = [new.take() for _ in range(3)]
    assert taken == [Taken("share", A, [1, {"x": 2}]), Taken("share", B), Taken("share", C)]
    assert worker.take().share == B  # the save has changed nothing


def test_a_save_that_is_none_changes_nothing():
    state = job("a")
    with pytest.raises(InvalidArgumentError, match="expected the fields of a job"):
        state.load({"names": ["b"]}, with_workers=False)
    good = json.loads(json.dumps(state.export()))
    for queue in ({"elements": []}, {"elements": [], "offset": 1, "arr_size": 0}):
        with pytest.raises(InvalidArgumentError, match="StrQueue"):
            state.load({**good, "names": ["b"], "queue": queue}, with_workers=False)
    assert Worker(state, 0).take().share == A


class TestServerZeroCameBack:
    """A state that was loaded while workers go on."""

    def setup_method(self):
        self.clock, old = Clock(), job("abc", clock=Clock())
        self.first, self.second = Worker(old, 0), Worker(old, 1)
        self.first.take()
        self.saved = old.export()  # the first has A; B and C wait
        self.state = JobState(2, self.clock)

    def load(self):
        self.state.load(json.loads(json.dumps(self.saved)), with_workers=True)

    def join(self, worker, **held):
        return Worker(self.state, worker, held=held)

    def test_shares_wait_until_all_workers_have_joined(self):
        self.load()
        assert self.join(0, taken={A: 4}).take() == Taken("wait")
        second = self.join(1)
        assert second.take() == Taken("share", B)

    def test_shares_wait_for_a_worker_that_the_save_does_not_know(self):
        early = job("abc", clock=Clock())
        Worker(early, 0)
        self.saved = early.export()
        self.load()
        first = self.join(0)
        assert first.take() == Taken("wait")
        self.join(1, finished=[A])
        assert first.take() == Taken("share", B)

    def test_shares_do_not_wait_for_a_worker_that_had_left_before_the_save(self):
        old = job("abc", clock=Clock())
        Worker(old, 0)
        Worker(old, 1).leave()
        self.saved = old.export()
        self.load()
        assert self.join(0).take() == Taken("share", A)

    def test_shares_do_not_wait_for_ever(self):
        self.load()
        second = self.join(1)
        self.clock.now = REJOIN_SECONDS
        assert second.take() == Taken("wait")
        self.clock.now += 0.1
        assert second.take() == Taken("share", A, None)

    def test_a_worker_keeps_what_it_has_with_its_newest_position(self):
        self.load()
        first, second = self.join(0, taken={A: 4, B: 1}), self.join(1)
        assert second.take() == Taken("share", C)
        self.state.lose(first.client)
        assert [second.take(), second.take()] == [Taken("share", A, 4), Taken("share", B, 1)]

    def test_finished_shares_are_not_handed_out_again(self):
        self.load()
        self.join(0, finished=[A, C])
        second = self.join(1)
        assert second.take() == Taken("share", B)
        second.step(B, 1, last=True)
        assert second.take() == Taken("end")

    def test_shares_of_a_later_epoch_are_not_handed_out_again(self):
        self.saved["num_epochs"] = 2
        self.load()
        self.join(0, finished=[A, B, C, share_of(1, "b")])
        second = self.join(1)
        assert second.take().share == share_of(1, "a")
        assert second.take().share == share_of(1, "c")

    def test_finished_shares_of_long_ago_are_forgotten(self):
        self.saved["epoch"] = 5
        self.load()
        self.join(0, finished=[share_of(0, "z"), B])
        assert self.state.export()["gone"] == [B]

    def test_a_share_that_another_worker_has_is_lost(self):
        self.load()
        self.clock.now = REJOIN_SECONDS + 1
        second = self.join(1)
        assert second.take().share == A
        first = self.join(0, taken={A: 4}, finished=[A])
        assert first.answer["lost"] == [A]
        assert self.state.export()["returned"] == [(A, None)]

    def test_numbers_are_those_of_who_knows_more(self):
        self.saved["numbers"] = [(0, 7, 70), (1, 5, 50)]
        self.load()
        assert self.join(0, number=9, samples=60, repeats=4).answer["number"] == 9
        assert self.join(1, number=1).answer["number"] == 5
        assert self.state.counts() == (14, 120, 4, 0, 0)

    def test_a_worker_that_joined_before_the_load_has_its_numbers_after_it(self):
        self.saved["numbers"] = [(0, 7, 70), (1, 5, 50)]
        second = self.join(1)
        self.load()
        assert self.join(second.worker).answer["number"] == 5
        assert self.state._expected == {0}
