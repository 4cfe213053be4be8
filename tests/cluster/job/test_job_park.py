"""Parks of a job: what server 0 says of them and of its workers, and what workers make of it."""

import contextlib
import time

import pytest

from monolith.cluster.job.job_park import JobPark
from monolith.cluster.job.job_state import JobState
from monolith.cluster.job.job_workers import SILENT_SECONDS
from monolith.cluster.zmq.server_loop import ServerLoop
from monolith.errors import AbortedError, UnavailableError
from tests.cluster.job.job_clock import Clock
from tests.cluster.job.running_job import RunningJob


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def state(clock):
    """Three workers, of which 2 has not joined."""
    state = JobState(3, clock)
    for worker in range(2):
        state.join(worker, worker, [10 + worker], {}, {})
    return state


def states_of(state):
    return [facts.state for facts in state.worker_facts()]


def test_a_park_is_news(state):
    number = state.watch(1, 1, 0, 0).result(0).number
    watching = state.watch(1, 1, number, 0)
    assert state.park.place(0) == (1, True)
    assert watching.result(0).park == 1


def test_a_second_park_changes_nothing(state):
    state.park.place(0)
    assert state.park.place(0) == (1, False)


def test_an_unpark_is_news_and_a_second_one_changes_nothing(state):
    state.park.place(0)
    assert [state.park.remove(0), state.park.remove(0)] == [2, 2]
    assert state.watch(1, 1, 0, 0).result(0).park == 2


def test_an_unpark_without_a_park_changes_nothing(state):
    assert state.park.remove(0) == 0


def test_a_worker_that_joins_hears_of_the_park(state):
    state.park.place(0)
    assert state.join(2, 2, [12], {}, {})["park"] == 1


def test_a_server_that_came_back_empty_takes_the_park_of_a_worker(clock):
    state = JobState(3, clock)
    assert state.join(0, 0, [10], {}, {"park": 5})["park"] == 5
    assert state.join(1, 1, [11], {}, {"park": 3})["park"] == 5


def test_a_park_of_a_caller_that_knows_more_goes_on_from_there(state):
    assert state.park.place(6) == (7, True)
    assert state.park.remove(9) == 10


def test_a_worker_is_parked_when_it_says_so(state):
    number, _ = state.park.place(0)
    assert states_of(state) == ["running", "running", "gone"]
    state.note_parked(1, 1, number, 0)
    assert states_of(state) == ["running", "parked", "gone"]


def test_a_worker_runs_again_after_the_park_and_in_the_next_one(state):
    number, _ = state.park.place(0)
    state.note_parked(1, 1, number, 0)
    state.park.remove(0)
    assert states_of(state)[1] == "running"
    state.park.place(0)
    assert states_of(state)[1] == "running"


def test_a_worker_that_says_nothing_is_silent(state, clock):
    state.park.place(0)
    state.note_parked(0, 0, 1, 0)
    clock.now = SILENT_SECONDS
    state.watch(1, 1, 0, 0)
    clock.now += 0.5
    assert states_of(state) == ["silent", "running", "gone"]
    assert [facts.heard_seconds for facts in state.worker_facts()][:2] == [10.5, 0.5]


def test_a_worker_that_left_is_gone(state):
    state.leave(1, 1, 0)
    assert states_of(state)[1] == "gone"


def test_a_worker_that_was_given_up_cannot_say_that_it_stands(state):
    state.park.place(0)
    state.give_up([1])
    with pytest.raises(AbortedError, match="got worker 1, which was given up"):
        state.note_parked(1, 1, 1, 0)


def test_a_worker_that_stands_acknowledges_its_steps(state):
    state.offer(["a"], 1)
    share = state.take(1, 1, 0).share
    state.note_step(1, 1, 1, [(share, 3, False, 2)])
    state.note_parked(1, 1, state.park.place(0)[0], 1)
    state.lose(11)
    assert state.counts().repeats == 0


def test_the_speed_of_a_worker_is_that_of_the_last_seconds(state, clock):
    for clock.now in (0.0, 0.5, 2.0):
        state.note_step(1, 1, 1, [('[0, "a"]', 3, False, 10)])
    facts = state.worker_facts()[1]
    assert (facts.number, facts.samples_per_second) == (1, 10.0)
    clock.now = 12.5
    state.watch(1, 1, 0, 0)
    assert state.worker_facts()[1].samples_per_second == 0


class Server:
    """Server 0 of a park, which may come back empty."""

    def __init__(self):
        self.state = JobState(1)

    def __call__(self, verb, known=0, *, timeout_seconds=None):
        call = {"park_job": self.state.park.place, "unpark_job": self.state.park.remove}[verb]
        return call(known)


def test_a_worker_keeps_the_largest_number_that_it_hears():
    park, heard = JobPark(Server()), []
    park.on_change = lambda: heard.append(park.number)
    for number in (1, 3, 2, 3):
        park.hear(number)
    assert (park.number, park.is_placed, heard) == (3, True, [1, 3])


def test_a_stop_says_whether_training_was_stopped_before():
    park = JobPark(Server())
    assert [park.place(), park.place(), park.is_placed] == [True, False, True]
    park.remove()
    assert not park.is_placed


def test_a_resume_reaches_a_server_that_came_back_without_the_park():
    server = Server()
    park = JobPark(server)
    park.place()
    server.state = JobState(1)
    park.remove()
    assert server.state.join(0, 0, [1], {}, {})["park"] == park.number == 2


def test_a_stop_that_server_0_did_not_hear_in_time_is_never_done():
    with contextlib.closing(RunningJob(1, 1)) as job:
        client = job.client()
        address = job.loops[0].address
        job.loops[0].close()
        start = time.monotonic()
        with pytest.raises(UnavailableError, match=r"within 1 tries of 0\.3 seconds"):
            client.park.place(0.3)
        assert time.monotonic() - start < 5
        with ServerLoop(job.hosts[0], address):
            assert client.park.workers(20)[0].state == "running"
            assert (client.park.is_placed, job.state.park.number) == (False, 0)
            client.close()
