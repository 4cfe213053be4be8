"""`JobClient` and what it shares with others, over sockets of this process."""

import json
import logging
import threading

import pytest

from monolith.cluster.job import job_client
from monolith.cluster.job.job_values import SavedJob, Taken, share_of
from monolith.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
)
from tests.cluster.zmq.sockets import until

from .running_job import RunningJob, step

pytestmark = pytest.mark.dist

A, B = (share_of(0, name) for name in "ab")
WAIT = 60.0


@pytest.fixture
def running():
    running = RunningJob()
    yield running
    running.close()


def run(call):
    """A thread that does a call; `result` has its value or error."""
    thread = threading.Thread(target=lambda: thread.result.append(outcome(call)), daemon=True)
    thread.result = []
    thread.start()
    return thread


def outcome(call):
    try:
        return call()
    except Exception as error:
        return error


def result_of(thread):
    thread.join(WAIT)
    return thread.result[0]


def test_workers_share_the_data_of_a_job(running):
    chief, other = running.client(0), running.client(1)
    chief.offer(["a", "b"], 1)
    assert [chief.take(), other.take()] == [Taken("share", A), Taken("share", B)]
    step(chief, [(A, 3, True, 2)])
    step(other, [(B, 1, False, 4)])
    assert (chief.take().kind, other.num_steps, other.acknowledged) == ("wait", 2, 1)
    assert chief.others() == [1]
    other.close()
    other.close()  # twice is fine
    assert chief.others() == []
    assert chief.take() == Taken("share", B, 1)
    assert chief.read_steps() == 2


def test_a_share_without_a_batch_ends(running):
    chief = running.client(0)
    chief.offer(["a"], 1)
    assert chief.take() == Taken("share", A)
    assert chief.take([A]) == Taken("end")
    assert chief._held.finished == [A]


def test_a_server_0_that_came_back_before_the_first_save_gets_the_shares_of_the_run_before(
    running,
):
    class Checkpoint:
        def read_trainer(self):
            return None

    chief, calls = running.client(0), []
    begun = SavedJob.begun(["a", "b"], 1, 0, [(B, 3)], num_steps=7)
    chief.load([{"state": begun._asdict()}])
    assert chief.read_steps() == 7
    assert chief.take() == Taken("share", B, 3)
    chief._restore_server(0, Checkpoint(), lambda *call: calls.append(call))
    (verb, text, with_workers), *_ = calls
    assert (verb, with_workers) == ("import_job", True)
    assert json.loads(text)["state"]["returned"] == [[B, 3]]


def test_servers_of_another_task_are_refused(running):
    job = running.client(0)
    lines = running.hosts[0].open_job(2) and running.hosts[0].job.dense.lines
    job.check_task(lines)
    with pytest.raises(InvalidArgumentError, match="server 0, with 'optimizer SGD', got 'o'"):
        job.check_task([line if "opt" not in line else "o" for line in lines])
    running.hosts[1].job.dense = None
    with pytest.raises(FailedPreconditionError, match="know the task, got server 1 without"):
        job.check_task(lines)


def test_workers_with_other_facts_are_refused(running):
    running.client(0, facts={"a": ["x"]})
    with pytest.raises(InvalidArgumentError, match=r"with 'x', got 'y' \(worker 1\)"):
        running.client(1, facts={"a": ["y"]})


def test_a_new_start_takes_the_place_of_the_old_one(running):
    old = running.client(1)
    step(old)
    stopped = threading.Event()
    old.on_stop = stopped.set
    new = running.client(1)
    running.state.end_waits()  # its watch is answered
    assert stopped.wait(WAIT)
    for call in (old.check, lambda: step(old), old.take):
        with pytest.raises(AbortedError, match="given up because"):
            call()
    step(new)
    assert (new.acknowledged, new.num_steps) == (2, 2)


def test_workers_are_stopped(running):
    chief, other = running.client(0), running.client(1)
    stopped = threading.Event()
    other.on_stop = stopped.set
    chief.stop_all()
    assert stopped.wait(WAIT)
    assert other.take() == Taken("end")


def test_workers_wait_for_the_chief(running):
    chief, other = running.client(0), running.client(1)
    with pytest.raises(DeadlineExceededError, match=r"the chief to .* within 0 sec.*\(worker 1\)"):
        other.await_ready(0)
    waiting = run(lambda: other.await_ready(WAIT))
    for server in range(2):
        chief.set_ready(server)
    assert result_of(waiting) is None


def test_a_worker_that_joined_an_empty_server_has_its_number_when_the_server_is_ready(running):
    chief, other = running.client(0), running.client(1)
    state = running.state.export()
    state["numbers"] = [(1, 7, 70)]
    running.state.load(state, with_workers=True)
    for server in range(2):
        chief.set_ready(server)
    other.await_ready(WAIT)
    assert other.acknowledged == 7
    assert step(other)[0].num_steps == 8


def test_a_job_from_a_checkpoint_counts_on(running):
    chief = running.client(0)
    step(chief)
    states = chief.export()
    other = RunningJob(3)
    new = other.client(0)
    new.load(states)
    new.set_steps(100)
    assert step(new, gradients=((), (), ()))[0].num_steps == 101
    assert new.num_steps == 101
    other.close()


def test_the_chief_goes_on_without_workers_that_do_not_end(running, caplog):
    caplog.set_level(logging.INFO)
    chief, other = running.client(0), running.client(1)
    assert not chief.await_others(0)
    assert "going on without them" in caplog.text
    other.close()
    assert chief.await_others(WAIT)


def test_a_long_wait_says_what_it_waits_for(running, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(job_client, "_WORD_SECONDS", 0.0)
    chief = running.client(0)
    with pytest.raises(DeadlineExceededError):
        chief.await_ready(0.3)
    assert "worker 0 waits for the chief to restore" in caplog.text


def test_flags_and_texts_are_those_of_all(running):
    chief, other = running.client(0), running.client(1)
    chief.set_flag("f", 2, 1, True)
    chief.set_text("t", "x")
    assert (other.flags("f", 2), other.text("t")) == ([False, True], "x")


def test_the_end_of_the_job_is_told_to_all_servers(running):
    chief = running.client(0)
    chief.end()
    assert all(host.is_job_ended for host in running.hosts)


def test_a_chief_that_has_ended_the_job_asks_the_servers_no_more(running):
    chief = running.client(0)
    chief.end()
    chief.close()
    assert running.state.alive_workers() == [0]  # it has not left


class TestHolds:
    """A cut of the chief while another worker pushes."""

    @pytest.fixture
    def workers(self, running):
        return running.client(0, hold_seconds=WAIT), running.client(1)

    def test_a_push_in_flight_is_awaited_and_the_next_one_held(self, running, workers):
        chief, other = workers
        begun, goes_on = threading.Event(), threading.Event()

        def push():
            with other.pushing([[], []], "", [], [], wants_values=False):
                begun.set()
                assert goes_on.wait(WAIT)

        first = run(push)
        assert begun.wait(WAIT)
        quiet, ends = threading.Event(), threading.Event()

        def cut():
            with chief.quiet():
                quiet.set()
                assert ends.wait(WAIT)

        cutting = run(cut)
        assert until(lambda: running.state._news.hold == 1, WAIT)
        assert not quiet.is_set()
        goes_on.set()
        assert quiet.wait(WAIT)
        assert result_of(first) is None
        second = run(lambda: step(other))
        second.join(0.1)
        assert second.is_alive()
        ends.set()
        assert result_of(cutting) is None
        assert len(result_of(second)) == 2
        assert not chief._is_holding

    def test_a_worker_that_joins_in_a_hold_pushes_after_it(self, running):
        chief = running.client(0, hold_seconds=WAIT)
        with chief.quiet():
            first = run(lambda: step(running.client(1)))
            assert until(lambda: running.state.alive_workers() == [0, 1], WAIT)
            first.join(0.3)
            assert first.is_alive()
            assert running.state.counts().steps == 0
        assert len(result_of(first)) == 2

    def test_two_cuts_follow_each_other(self, workers):
        chief, other = workers
        for _ in range(3):
            with chief.quiet():
                pass
            step(other)
            step(chief)

    def test_a_second_cut_at_once_is_refused(self, workers):
        chief, _ = workers
        with (
            chief.quiet(),
            pytest.raises(FailedPreconditionError, match="no hold that lasts"),
            chief.quiet(),
        ):
            pass
        assert not chief._is_holding

    def test_a_block_that_fails_ends_the_hold(self, running, workers):
        chief, other = workers
        with pytest.raises(ZeroDivisionError), chief.quiet():
            raise ZeroDivisionError
        assert running.state._news.hold == 0
        step(other)

    def test_a_hold_that_ended_early_drops_the_save(self, running, workers):
        chief, other = workers

        def cut():
            with chief.quiet():
                running.state.release(1)
                step(other)  # goes on

        with pytest.raises(DeadlineExceededError, match="the save is dropped"):
            cut()

    def test_a_block_that_takes_too_long_drops_the_save(self, running, workers):
        chief, other = workers

        def cut():
            with chief.quiet():
                running.state._hold_until = 0.0
                assert until(lambda: running.state._news.hold == 0, WAIT)
                step(other)

        with pytest.raises(DeadlineExceededError, match="within 90 seconds and without"):
            cut()

    def test_a_silent_worker_is_given_up_and_refused_by_all_servers(self, running, caplog):
        chief, other = running.client(0, hold_seconds=0.2), running.client(1)
        other._obey = lambda news: None
        with chief.quiet():
            pass
        assert "workers [1] did not hold their pushes within 0.2 seconds" in caplog.text
        with pytest.raises(AbortedError):
            step(other)
        assert chief.others() == []
        assert chief.describe()[0]["counts"]["dropped"] == 1

    def test_a_server_that_ends_in_a_hold_drops_the_save_and_no_worker(self, running):
        chief = running.client(0, hold_seconds=WAIT, timeout_seconds=1.0)
        other = running.client(1, timeout_seconds=1.0)
        other._obey = lambda news: None

        def cut():
            with chief.quiet():
                raise AssertionError("nobody holds")

        cutting = run(cut)
        assert until(lambda: running.state._waiters, WAIT)
        running.loops[0].drain(WAIT)
        assert isinstance(result_of(cutting), FailedPreconditionError)
        assert running.state.counts().dropped == 0
        assert set(running.hosts[1].job._starts) == {0, 1}

    def test_without_news_the_hold_lasts(self, running, workers):
        chief, other = workers
        ask, is_away = other._news, threading.Event()

        def news(number):
            if is_away.is_set():
                raise job_client.OpError("away")
            return ask(number)

        other._news = news
        with chief.quiet():
            is_away.set()
            running.state.tick()
            running.state._publish()  # its watch is answered, and the next one fails
            second = run(lambda: step(other))
            second.join(0.3)
            assert second.is_alive()
            is_away.clear()
        assert len(result_of(second)) == 2

    def test_a_hold_ends_for_the_worker_by_its_own_clock(self, running, workers):
        _, other = workers
        ask = other._news

        def news(number):
            found = ask(number)
            if found.hold:
                other._news = silent
            return found._replace(hold_seconds=0.2)

        def silent(number):
            raise job_client.OpError("away")

        assert until(lambda: len(running.state._watches) == 2, WAIT)
        other._news = news
        running.state.end_waits()  # the next watch is that of `news`
        running.state.hold(0, WAIT)
        assert until(lambda: 1 in running.state._held, WAIT)
        assert len(step(other)) == 2

    def test_a_worker_that_is_given_up_while_it_holds_goes_on_to_its_error(self, running, workers):
        chief, other = workers
        with chief.quiet():
            running.state.give_up([1])
            running.state.end_waits()  # its watch is answered
            assert until(lambda: other._error is not None, WAIT)
        with pytest.raises(AbortedError):
            step(other)


class TestServerZeroIsNew:
    """A worker tells a server that came back what it has."""

    @pytest.fixture
    def other(self, running):
        chief, other = running.client(0), running.client(1)
        chief.offer(["a", "b"], 1)
        other.take()
        step(other, [(A, 3, False, 2)])
        return other

    def calls(self, answers):
        """Answers of a server, which notes its calls."""
        seen = []

        def call(verb, *arguments):
            seen.append((verb, arguments))
            return answers.get(verb)

        return seen, call

    def test_pushes_that_were_lost_are_counted_once(self, other):
        for known, expected in [(0, 1), (0, 0), (1, 0)]:
            seen, call = self.calls({"join_job": "{}", "job_number": known})
            other._join_again(0, call)
            assert seen[-1] == ("note_lost", (expected,))
        assert other.servers.lost_pushes == 1

    def test_a_lost_share_is_forgotten(self, other):
        answers = {"join_job": f'{{"lost": [{job_client.json.dumps(A)}]}}', "job_number": 1}
        other._join_again(0, self.calls(answers)[1])
        assert not other.has(A)
        assert other._held.taken == {}

    def test_a_step_that_only_this_server_has_counts(self, other):
        other._note_answer(0, 2)
        other._flying = [(A, 5, False, 2)]
        seen, call = self.calls({"join_job": "{}", "job_number": 0})
        other._join_again(0, call)
        held = job_client.json.loads(seen[0][1][-1])
        assert (held["number"], held["samples"], held["taken"]) == (2, 4, {A: 5})
        assert other.acknowledged == 1
        assert other._held.taken == {A: 3}

    def test_a_server_that_came_back_hears_of_the_park(self, other):
        other.park.place()
        seen, call = self.calls({"join_job": "{}", "job_number": 1})
        other._join_again(0, call)
        assert job_client.json.loads(seen[0][1][-1])["park"] == other.park.number == 1


class TestParks:
    """A park reaches all workers, and server 0 knows who stands."""

    def test_a_stop_and_a_resume_reach_all(self, running):
        chief, other = running.client(0), running.client(1)
        heard = []
        other.park.on_change = lambda: heard.append(other.park.number)
        assert chief.park.place()
        assert until(lambda: other.park.is_placed, WAIT)
        assert not other.park.place()
        other.park.remove()
        assert until(lambda: not chief.park.is_placed, WAIT)
        assert until(lambda: heard == [1, 2], WAIT)

    def test_a_worker_that_joins_hears_of_the_park_before_anything_else(self, running):
        running.client(0).park.place()
        assert running.client(1).park.is_placed

    def test_a_worker_that_stands_acknowledges_its_steps(self, running):
        chief, other = running.client(0), running.client(1)
        chief.offer(["a"], 1)
        other.take()
        step(other, [(A, 3, False, 2)])
        chief.park.place()
        assert until(lambda: other.park.is_placed, WAIT)
        other.park.note_parked(other.park.number)
        facts = chief.park.workers()
        assert [(f.state, f.number) for f in facts] == [("running", 0), ("parked", 1)]
        assert running.state._workers[1].unacknowledged == []

    def test_a_stop_is_heard_while_a_worker_holds(self, running):
        chief, other = running.client(0), running.client(1)
        assert until(lambda: len(running.state._watches) == 2, WAIT)
        with chief.quiet():
            chief.park.place()
            assert until(lambda: other.park.is_placed, WAIT)

    def test_the_time_for_which_a_wait_stands_does_not_count(self, running):
        chief, _ = running.client(0), running.client(1)
        stood = []

        def stand():
            if not stood:
                stood.append(threading.Event().wait(0.5))
            else:
                running.state.leave(1, running.state._workers[1].start, 0)

        chief.on_wait = stand
        assert chief.await_others(0.4)


def test_many_watches_do_not_keep_calls_from_being_done(running):
    chief = running.client(0)
    watches = [running.client(1, joins=False) for _ in range(2)]
    for job in watches:
        job.join([], {})
    pending = [
        chief._watcher.begin("watch_job", [(*chief._who, running.state._news.number, 0)])
        for _ in range(20)
    ]
    assert len(chief.describe()) == 2
    chief.stop_all()
    assert all(finish()[0][3] for finish in pending)


def test_a_server_that_drains_answers_its_watches(running):
    chief = running.client(0)
    number = running.state._news.number
    finish = chief._watcher.begin("watch_job", [(*chief._who, number, 0)])
    assert until(lambda: len(running.state._watches) >= 2, WAIT)  # its own thread, too
    waiting = run(finish)
    assert running.loops[0].drain(WAIT)
    assert result_of(waiting)[0][0] == number + 1
    running.loops[0]._is_draining = False  # the chief leaves


def test_a_client_that_goes_while_it_watches_harms_nobody(running):
    chief, other = running.client(0), running.client(1)
    assert until(lambda: len(running.state._watches) == 2, WAIT)
    other.servers.close()
    assert until(lambda: running.loops[0].num_sessions == 1, WAIT)
    running.state.stop()
    assert until(lambda: running.loops[0].counts.get("lost_answers", 0) >= 0, WAIT)
    assert chief.describe()[0]["num_workers"] == 2
