import signal
import threading
from contextvars import ContextVar
from dataclasses import dataclass

import pytest

from monolith.errors import AbortedError, CancelledError, OutOfRangeError
from monolith.train import Hook, Run
from monolith.train.driver import current_run, drive


class Recorder(Hook):
    """Records the calls of its methods."""

    def __init__(self, seen, name="h"):
        self.seen, self.name = seen, name

    def begin(self):
        self.seen.append(f"{self.name} begin")

    def after_create_session(self, run, coordinator):
        self.seen.append(f"{self.name} create")

    def before_run(self, ctx):
        self.seen.append(f"{self.name} before")
        return lambda: self.seen.append(f"{self.name} call") or self.name

    def after_run(self, ctx, results):
        self.seen.append(f"{self.name} after {results.extra[self]} {results.value}")

    def end(self, run):
        self.seen.append(f"{self.name} end")


def step_of(seen, values):
    """Return a step that takes one value; the input ends after the last value."""
    left = iter(values)

    def step():
        seen.append("step")
        return next(left)

    return step


def stopping(at, method="after_run"):
    """Return a hook that requests a stop in its call number `at`."""
    calls = []

    def look(self, ctx, *_):
        calls.append(1)
        if len(calls) == at:
            ctx.request_stop()

    return type("Stopping", (Hook,), {method: look})()


def test_hooks_are_called_in_order_around_each_step():
    seen = []
    hooks = [Recorder(seen, "a"), Recorder(seen, "b"), stopping(1)]
    drive(step_of(seen, [7]), hooks, overlap=False)
    assert seen == [
        *("a begin", "b begin", "a create", "b create"),
        *("a before", "b before", "a call", "b call", "step", "a after a 7", "b after b 7"),
        *("a end", "b end"),
    ]


@pytest.mark.parametrize("end", [StopIteration, OutOfRangeError])
def test_the_end_of_the_input_is_a_normal_end(end):
    seen = []

    def step():
        raise end

    drive(step, [Recorder(seen)], overlap=False)
    assert seen == ["h begin", "h create", "h before", "h call", "h end"]


def test_every_value_of_the_input_is_one_step():
    seen = []
    drive(step_of([], [1, 2, 3]), [Recorder(seen)])
    assert [line for line in seen if "after" in line] == [f"h after h {i}" for i in (1, 2, 3)]


@pytest.mark.parametrize("method", ["before_run", "after_run"])
def test_a_step_in_which_a_stop_is_requested_is_the_last_and_complete(method):
    seen = []
    recorder = Recorder(seen)
    drive(step_of(seen, range(10)), [stopping(2, method), recorder])
    assert seen.count("step") == 2
    assert seen[-2:] == ["h after h 1", "h end"]


def test_an_out_of_range_error_of_a_hook_is_a_normal_end():
    seen = []

    class Ended(Hook):
        def before_run(self, ctx):
            raise OutOfRangeError("no more")

    drive(step_of(seen, [1]), [Ended(), Recorder(seen)])
    assert seen == ["h begin", "h create", "h end"]


@pytest.mark.parametrize("method", ["begin", "after_create_session", "before_run", "after_run"])
def test_a_stop_iteration_of_a_hook_is_a_mistake(method):
    def fail(self, *_):
        raise StopIteration

    with pytest.raises(StopIteration):
        drive(lambda: None, [type("Wrong", (Hook,), {method: fail})()])


def test_a_hook_that_returns_nothing_has_no_extra():
    extras = []

    class Plain(Hook):
        def after_run(self, ctx, results):
            extras.append(dict(results.extra))
            ctx.request_stop()

    drive(lambda: None, [Plain()])
    assert extras == [{}]


@pytest.mark.parametrize("error", [KeyError("bad"), AbortedError("gone"), KeyboardInterrupt()])
def test_a_run_that_fails_does_not_call_end_but_the_clean_ups(error):
    seen = []

    class Cleaning(Recorder):
        def after_create_session(self, run, coordinator):
            coordinator.add_cleanup(lambda: seen.append("clean"))

    def step():
        raise error

    with pytest.raises(type(error)):
        drive(step, [Cleaning(seen)], overlap=False, max_recoveries=0)
    assert "h end" not in seen
    assert seen[-1] == "clean"


def test_clean_ups_of_a_normal_run_come_after_end():
    seen = []

    class Cleaning(Recorder):
        def after_create_session(self, run, coordinator):
            coordinator.add_cleanup(lambda: seen.append("clean"))

    drive(step_of([], []), [Cleaning(seen)])
    assert seen[-2:] == ["h end", "clean"]


def test_clean_ups_run_when_a_later_hook_fails_to_start():
    seen = []

    class Cleaning(Hook):
        def after_create_session(self, run, coordinator):
            coordinator.add_cleanup(lambda: seen.append("clean"))

    class Failing(Hook):
        def after_create_session(self, run, coordinator):
            raise KeyError

    with pytest.raises(KeyError):
        drive(lambda: None, [Cleaning(), Failing()])
    assert seen == ["clean"]


def test_the_run_is_current_from_before_begin_until_after_end():
    seen = []

    class Looking(Hook):
        def begin(self):
            seen.append(current_run())

        def end(self, run):
            seen.append(current_run())

    run = Run(global_step=3)
    assert drive(lambda: seen.append(current_run()), [Looking(), stopping(1)], run=run) is run
    assert seen == [run, run, run]
    assert current_run() is None


def test_without_a_run_drive_makes_a_new_one():
    runs = []
    drive(lambda: runs.append(current_run()), [stopping(2)])
    drive(lambda: runs.append(current_run()), [stopping(1)])
    assert runs[0] is runs[1]
    assert runs[1] is not runs[2]


class Threaded(Hook):
    """Starts a thread."""

    def __init__(self, target):
        self.target = target
        self.thread = None

    def after_create_session(self, run, coordinator):
        self.thread = coordinator.start(lambda: self.target(coordinator), name="worker")


def test_the_error_of_a_thread_fails_the_next_step():
    seen, may_fail = [], threading.Event()
    threads = Threaded(lambda coordinator: may_fail.wait(60) and {}["missing"])

    def step():
        seen.append("step")
        may_fail.set()
        threads.thread.join()

    with pytest.raises(KeyError, match="missing"):
        drive(step, [threads, Recorder(seen)])
    assert seen.count("step") == 1
    assert "h end" not in seen


def test_a_thread_that_fails_while_a_hook_waits_fails_the_step():
    seen, threads = [], Threaded(lambda coordinator: {}["missing"])

    class Waiting(Hook):
        def before_run(self, ctx):
            assert ctx.coordinator.wait_for_stop(60)

    with pytest.raises(KeyError, match="missing"):
        drive(lambda: seen.append("step"), [threads, Waiting()])
    assert seen == []


def test_threads_are_stopped_and_joined_at_the_end():
    threads = Threaded(lambda coordinator: coordinator.wait_for_stop(60))
    drive(step_of([], [1, 2]), [threads])
    assert not threads.thread.is_alive()
    assert threads.thread not in threading.enumerate()


def test_the_callback_after_a_recovery_may_be_called_again():
    seen = []

    class Recovering(Recorder):
        def before_run(self, ctx):
            self.after_create_session(ctx.run, ctx.coordinator)

        def after_run(self, ctx, results):
            ctx.request_stop()

    drive(lambda: None, [Recovering(seen)])
    assert seen == ["h begin", "h create", "h create", "h end"]


def test_every_one_of_equal_hooks_is_called():
    calls, numbers = [], iter(range(1))

    @dataclass(frozen=True)
    class Count(Hook):
        def before_run(self, ctx):
            return lambda: calls.append(self)

        def after_run(self, ctx, results):
            ctx.request_stop()

    drive(lambda: next(numbers), [Count(), Count()])
    assert len(calls) == 2


class Work(Hook):
    """Returns a callable in each step."""

    def __init__(self, call):
        self.call, self.results = call, []

    def before_run(self, ctx):
        return self.call

    def after_run(self, ctx, results):
        self.results.append(results.extra[self])


def test_work_of_hooks_overlaps_with_the_step_on_one_thread_in_hook_order():
    seen, met = [], threading.Barrier(2, timeout=60)

    def call(name):
        seen.append((name, threading.current_thread(), current_run()))
        if name == "b":
            met.wait()
        return name

    def step():
        met.wait()
        return threading.current_thread()

    hooks = [Work(lambda: call("a")), Work(lambda: call("b")), stopping(2)]
    run = drive(step, hooks)
    assert [name for name, _, _ in seen] == ["a", "b", "a", "b"]
    assert [hook.results for hook in hooks[:2]] == [["a", "a"], ["b", "b"]]
    threads = {thread for _, thread, _ in seen}
    assert len(threads) == 1
    assert threading.current_thread() not in threads
    assert {run_of_thread for _, _, run_of_thread in seen} == {run}
    assert not any(thread.is_alive() for thread in threads)


def test_without_overlap_work_is_done_before_the_step_on_the_calling_thread():
    seen = []
    work = Work(lambda: seen.append(threading.current_thread()))
    drive(lambda: seen.append("step"), [work, stopping(1)], overlap=False)
    assert seen == [threading.current_thread(), "step"]


def test_a_run_whose_hooks_return_no_work_starts_no_thread():
    names = []
    drive(lambda: names.extend(t.name for t in threading.enumerate()), [stopping(1)])
    assert "hooks" not in names


def test_the_work_sees_context_variables_that_before_run_sets():
    variable, seen = ContextVar("variable"), []

    class Setting(Hook):
        def before_run(self, ctx):
            variable.set(len(seen))
            return lambda: seen.append(variable.get())

    drive(lambda: None, [Setting(), stopping(3)])
    assert seen == [0, 1, 2]


def test_an_error_of_work_is_raised_after_the_step_in_place_of_after_run():
    seen, error = [], KeyError("bad")

    def fail():
        raise error

    with pytest.raises(KeyError) as raised:
        drive(lambda: seen.append("step"), [Recorder(seen), Work(fail)])
    assert raised.value is error
    assert [line for line in seen if line == "step" or "after" in line] == ["step"]


def test_if_the_step_and_the_work_fail_the_step_counts_and_the_work_is_logged(caplog):
    may_fail = threading.Event()

    def step():
        may_fail.set()
        raise KeyError("step")

    def fail():
        may_fail.wait(60)
        raise ValueError("work")

    with pytest.raises(KeyError, match="step"):
        drive(step, [Work(fail)])
    assert [record.exc_info[1].args for record in caplog.records] == [("work",)]


def test_a_step_that_waits_for_work_that_failed_is_woken_and_the_work_counts():
    coordinators = []

    class Fail(Work):
        def after_create_session(self, run, coordinator):
            coordinators.append(coordinator)

    def fail():
        raise ValueError("work")

    def step():
        assert coordinators[0].wait_for_stop(60)
        raise CancelledError("woken")

    with pytest.raises(ValueError, match="work"):
        drive(step, [Fail(fail)])


@pytest.mark.parametrize("is_last", [True, False])
def test_the_work_of_the_last_step_is_done_before_end(is_last):
    seen, is_over = [], threading.Event()

    class Last(Work):
        def end(self, run):
            seen.append("end")

    def work():
        is_over.wait(60)
        seen.append("work")

    def step():
        threading.Timer(0.01, is_over.set).start()
        raise StopIteration if is_last else OutOfRangeError("ended")

    drive(step, [Last(work)])
    assert seen == ["work", "end"]


def test_an_out_of_range_error_of_work_is_a_normal_end():
    seen = []

    def fail():
        raise OutOfRangeError("no more")

    drive(lambda: seen.append("step"), [Recorder(seen), Work(fail)])
    assert (seen.count("step"), seen[-1]) == (1, "h end")


def test_ctrl_c_while_work_runs_ends_the_run_and_the_thread():
    is_working, threads = threading.Event(), []

    class Cleaning(Hook):
        def after_create_session(self, run, coordinator):
            self.may_end = threading.Event()
            coordinator.add_cleanup(self.may_end.set)

        def before_run(self, ctx):
            return self.work

        def work(self):
            threads.append(threading.current_thread())
            is_working.set()
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            self.may_end.wait(60)

    with pytest.raises(KeyboardInterrupt):
        drive(lambda: None, [Cleaning()])
    assert is_working.is_set()
    assert not threads[0].is_alive()
