"""`drive` goes on after an `AbortedError`, with new sessions."""

import threading

import pytest

from monolith.errors import AbortedError, CancelledError, OutOfRangeError, UnavailableError
from monolith.train import Hook, Run
from monolith.train.driver import drive
from tests.train.test_driver import Recorder, Threaded, Work, stopping


class Steps:
    """A step that takes numbers, and fails at some calls."""

    def __init__(self, number, fails_at=(), error=AbortedError):
        self.left, self.fails_at, self.error = list(range(number)), list(fails_at), error
        self.num_calls = 0

    def __call__(self):
        self.num_calls += 1
        if self.num_calls in self.fails_at:
            raise self.error("gone")
        if not self.left:
            raise StopIteration
        return self.left.pop(0)


def values_of(recorder):
    return [int(line.split()[-1]) for line in recorder.seen if "after" in line]


def test_the_step_is_called_again_with_a_new_session():
    recorder = Recorder([])
    run = drive(Steps(3, [2]), [recorder], overlap=False)
    assert recorder.seen == [
        *("h begin", "h create", "h before", "h call", "h after h 0", "h before", "h call"),
        *("h create", "h before", "h call", "h after h 1", "h before", "h call", "h after h 2"),
        *("h before", "h call", "h end"),
    ]
    assert run.num_recoveries == 1


def test_the_error_is_handed_to_recover_after_the_clean_ups_of_the_session():
    seen = []

    class Cleaning(Hook):
        def after_create_session(self, run, coordinator):
            seen.append("create")
            coordinator.add_cleanup(lambda: seen.append("clean"))

    def recover(error):
        seen.append(str(error))

    drive(Steps(2, [1]), [Cleaning()], recover=recover)
    assert seen == ["create", "clean", "gone", "create", "clean"]


def test_an_error_of_recover_ends_the_run():
    def recover(error):
        raise UnavailableError("no state")

    with pytest.raises(UnavailableError, match="no state") as raised:
        drive(Steps(2, [1]), recover=recover)
    assert isinstance(raised.value.__context__, AbortedError)


@pytest.mark.parametrize("method", ["after_create_session", "before_run", "after_run"])
def test_an_error_of_a_hook_leaves_out_no_step_and_no_other_hook(method):
    failures = [AbortedError("gone")]

    def fail(self, *_):
        if failures:
            raise failures.pop()

    recorder = Recorder([])
    failing = type("Failing", (Hook,), {method: fail})()
    assert drive(Steps(4), [failing, recorder]).num_recoveries == 1
    assert values_of(recorder) == [0, 1, 2, 3]


def test_an_error_of_work_is_recovered_and_only_its_hook_is_not_told():
    failures = [AbortedError("gone")]

    def work():
        if failures:
            raise failures.pop()
        return "done"

    recorder, working = Recorder([]), Work(work)
    assert drive(Steps(3), [recorder, working]).num_recoveries == 1
    assert values_of(recorder) == [0, 1, 2]
    assert working.results == ["done", "done"]


def test_an_error_of_a_thread_is_recovered_and_the_thread_is_started_again():
    starts = []

    def target(coordinator):
        starts.append(threading.current_thread())
        if len(starts) == 1:
            raise AbortedError("gone")
        coordinator.wait_for_stop(60)

    threads = Threaded(target)
    steps = Steps(3)

    def step():
        if len(starts) == 1:
            threads.thread.join()
        return steps()

    assert drive(step, [threads]).num_recoveries == 1
    assert len(starts) == 2


def test_a_step_that_a_failed_thread_has_cancelled_is_recovered():
    has_begun, is_first = threading.Event(), [True]

    def target(coordinator):
        has_begun.wait(60)
        if is_first:
            raise AbortedError("gone")

    threads = Threaded(target)

    def step():
        has_begun.set()
        threads.thread.join()
        if not is_first:
            raise StopIteration
        is_first.clear()
        raise CancelledError("woken")

    assert drive(step, [threads]).num_recoveries == 1


@pytest.mark.parametrize("error", [UnavailableError, KeyError, CancelledError])
def test_any_other_error_ends_the_run(error):
    steps = Steps(3, [2], error)
    with pytest.raises(error):
        drive(steps)
    assert steps.num_calls == 2


def test_another_error_of_a_thread_is_not_hidden_by_the_one_of_the_step():
    has_begun = threading.Event()
    threads = Threaded(lambda coordinator: has_begun.wait(60) and {}["missing"])

    def step():
        has_begun.set()
        threads.thread.join()
        raise AbortedError("gone")

    with pytest.raises(KeyError, match="missing") as raised:
        drive(step, [threads])
    assert isinstance(raised.value.__cause__, AbortedError)


def test_a_thread_that_goes_on_ends_the_run(caplog):
    may_end = threading.Event()
    threads = Threaded(lambda coordinator: may_end.wait(60))
    with pytest.raises(AbortedError):
        drive(Steps(3, [2]), [threads], stop_seconds=0.01)
    may_end.set()
    threads.thread.join()
    assert "expected all threads to end" in caplog.text


@pytest.mark.parametrize("method", ["begin", "end"])
def test_an_error_of_begin_or_end_ends_the_run(method):
    def fail(self, *_):
        raise AbortedError(method)

    with pytest.raises(AbortedError, match=method):
        drive(Steps(1), [type("Failing", (Hook,), {method: fail})()])


def test_an_error_of_finish_is_recovered_before_end():
    seen, failures = [], [AbortedError("gone")]

    def finish():
        seen.append("finish")
        if failures:
            raise failures.pop()

    drive(Steps(1), [Recorder(seen)], finish=finish)
    assert [line for line in seen if line in ("finish", "h create", "h end")] == [
        *("h create", "finish", "h create", "finish", "h end"),
    ]


def test_recoveries_in_a_row_are_bounded_and_a_step_begins_a_new_row():
    steps = Steps(3, [1, 2, 4, 5])
    assert drive(steps, max_recoveries=2).num_recoveries == 4
    with pytest.raises(AbortedError):
        drive(Steps(3, [1, 2, 3]), max_recoveries=2)


def test_steps_that_are_done_a_second_time_are_no_progress():
    run, num_recoveries = Run(global_step=0), []

    def step():
        if run.global_step == 4:
            raise AbortedError("always")
        run.global_step += 1

    def recover(error):
        num_recoveries.append(1)
        assert len(num_recoveries) <= 3
        run.global_step = 2
        return True

    with pytest.raises(AbortedError, match="always"):
        drive(step, run=run, recover=recover, max_recoveries=3)
    assert len(num_recoveries) == 3


def test_a_stop_that_was_requested_before_the_error_holds():
    steps = Steps(10, [3])
    drive(steps, [stopping(3, "before_run")])
    assert steps.left[0] == 3


def test_a_stop_after_the_step_holds_too():
    failures = [AbortedError("gone")]

    class Failing(Hook):
        def after_run(self, ctx, results):
            if results.value == 1 and failures:
                raise failures.pop()

    steps = Steps(10)
    drive(steps, [stopping(2), Failing()])
    assert steps.left[0] == 2


def test_a_stop_before_a_state_was_set_back_is_forgotten():
    run, failures = Run(global_step=0), [AbortedError("gone")]

    class Failing(Hook):
        def after_run(self, ctx, results):
            if run.global_step == 2 and failures:
                raise failures.pop()

    def step():
        if run.global_step == 5:
            raise OutOfRangeError("ended")
        run.global_step += 1

    def recover(error):
        run.global_step = 0
        return True

    drive(step, [stopping(2), Failing()], run=run, recover=recover)
    assert run.global_step == 5
