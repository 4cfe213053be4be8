"""The chief and the workers of a job wait for each other; threads stand for processes."""

import threading

import pytest

from monolith.cluster.job.shared_state import LocalSharedState
from monolith.errors import DeadlineExceededError
from monolith.native_training.saver.tide import TimeSource
from monolith.native_training.sync_hooks import (
    ChiefSyncHook,
    SyncHelper,
    TrainingHooksHelper,
    WorkerSyncHook,
)
from monolith.native_training.util.run_state import share, shared_state_of
from monolith.train.coordinator import Coordinator
from monolith.train.driver import Hook, Run, drive


class FakeTime:
    """A clock that sleeping moves on, with what happens at each sleep.

    Args:
        events: called at the sleeps, one after the other; later sleeps do nothing else.
    """

    def __init__(self, *events):
        self.now, self.sleeps, self._events = 0.0, [], list(events)
        self.source = TimeSource(monotonic=lambda: self.now, sleep=self._sleep)

    def _sleep(self, seconds):
        self.sleeps.append(seconds)
        self.now += seconds
        if self._events:
            self._events.pop(0)()


@pytest.fixture
def helper():
    return SyncHelper(3, False, shared=LocalSharedState())


# Flags


def test_the_first_flag_is_that_of_the_restore_and_counts_as_no_worker(helper):
    assert not helper.get_restore_status()
    helper.mark_restore_done()
    assert helper.get_restore_status()
    assert (helper.get_alive_workers(), helper.get_num_alive_workers()) == ([], 0)


def test_workers_are_alive_from_their_start_to_their_end(helper):
    helper.start_worker(1)
    helper.start_worker(2)
    assert (helper.get_alive_workers(), helper.get_num_alive_workers()) == ([1, 2], 2)
    helper.finish_worker(1)
    assert helper.get_alive_workers() == [2]


@pytest.mark.req("NT-SYNCH-T2")
@pytest.mark.parametrize("index", [-1, 0, 3])
def test_the_chief_and_numbers_out_of_range_are_no_workers(helper, index):
    for call in (helper.start_worker, helper.finish_worker):
        with pytest.raises(AssertionError, match=f"^Index {index} is out range $"):
            call(index)


def test_a_chief_that_starts_again_takes_the_restore_back_and_keeps_the_workers():
    shared = LocalSharedState()
    worker = SyncHelper(2, False, shared=shared)
    SyncHelper(2, True, shared=shared).mark_restore_done()
    worker.start_worker(1)
    SyncHelper(2, True, shared=shared)
    assert not worker.get_restore_status()
    assert worker.get_alive_workers() == [1]


def test_the_label_of_the_owner_is_kept(helper):
    assert helper.var_device == "/job:chief/task:0"
    assert SyncHelper(2, True, "/job:ps/task:0").var_device == "/job:ps/task:0"


def test_helpers_of_a_run_share_the_flags_of_the_run():
    run = Run()
    with run.as_current():
        first, second = SyncHelper(2, False), SyncHelper(2, False)
    first.mark_restore_done()
    assert second.get_restore_status()
    assert not SyncHelper(2, False).get_restore_status()


def test_a_run_has_the_flags_that_it_was_given():
    run, shared = Run(), LocalSharedState()
    share(run, shared)
    assert shared_state_of(run) is shared


# Hooks


@pytest.mark.req("NT-SYNCH-T1")
def test_the_chief_leaves_after_the_limit_and_logs_a_worker_that_has_died(helper, caplog):
    caplog.set_level("INFO", "monolith")
    time = FakeTime()
    helper.start_worker(2)
    ChiefSyncHook(helper, 130, source=time.source).end(Run())
    assert time.sleeps == [1.0] * 130
    assert [record.getMessage() for record in caplog.records] == [
        "waiting for workers [2] to finish, at most 130 s",
        "waiting for workers [2] to finish, since 60 s",
        "waiting for workers [2] to finish, since 120 s",
        "workers [2] have not finished within 130 s; the chief ends without them",
    ]


def test_the_chief_ends_as_soon_as_no_worker_is_left(helper, caplog):
    caplog.set_level("INFO", "monolith")
    helper.start_worker(1)
    time = FakeTime(lambda: None, lambda: helper.finish_worker(1))
    ChiefSyncHook(helper, source=time.source).end(Run())
    assert time.sleeps == [1.0, 1.0]
    assert caplog.records[-1].getMessage() == "all workers have finished"


def test_a_worker_gives_up_on_a_chief_that_never_restores(helper):
    hook = WorkerSyncHook(1, helper, timeout_seconds=3, source=FakeTime().source)
    with pytest.raises(DeadlineExceededError, match=r"within 3 s, got no word \(worker 1\)"):
        hook.after_create_session(Run(), Coordinator())


def test_a_worker_whose_run_ends_stops_waiting(helper):
    coordinator = Coordinator()
    time = FakeTime(coordinator.request_stop)
    WorkerSyncHook(1, helper, source=time.source).after_create_session(Run(), coordinator)
    assert time.sleeps == [1.0]


def test_the_hook_of_a_worker_does_nothing_on_the_chief(helper):
    hook = WorkerSyncHook(0, helper, source=FakeTime().source)
    hook.after_create_session(Run(), Coordinator())
    hook.end(Run())
    assert (helper.get_restore_status(), helper.get_alive_workers()) == (False, [])


@pytest.mark.parametrize("hook", [ChiefSyncHook, lambda *a, **k: WorkerSyncHook(1, *a, **k)])
def test_limits_are_checked(helper, hook):
    with pytest.raises(ValueError, match="expected a limit of at least 0 seconds, got -1"):
        hook(helper, timeout_seconds=-1)


class Recording(LocalSharedState):
    """Flags that note each change and, of reads in a row, one."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def set_flag(self, name, size, index, value):
        self.lines.append(f"set {index} {value}")
        super().set_flag(name, size, index, value)

    def flags(self, name, size):
        self.lines.append("read")
        return super().flags(name, size)


@pytest.mark.req("NT-SYNCH-T2")
def test_the_order_of_hooks_and_waits_is_the_recorded_one():
    shared = Recording()
    chief, worker = SyncHelper(2, True, shared=shared), SyncHelper(2, False, shared=shared)
    note, coordinator, run = shared.lines.append, Coordinator(), Run()
    time = FakeTime(
        lambda: note("worker sleeps"),
        lambda: (note("worker sleeps"), first.after_create_session(run, coordinator)),
        lambda: note("chief sleeps"),
        lambda: (note("chief sleeps"), second.end(run)),
    )
    first = ChiefSyncHook(chief, source=time.source)
    second = WorkerSyncHook(1, worker, source=time.source)
    second.after_create_session(run, coordinator)
    first.end(run)
    wait = ["read", "worker sleeps"]
    assert shared.lines == [
        *("set 0 False", "set 1 True", *wait, *wait, "set 0 True", "read"),
        *("read", "read", "chief sleeps", "read", "chief sleeps", "set 1 False", "read"),
    ]
    assert time.sleeps == [1.0] * 4


class Counting(Hook):
    """Counts the sessions and ends of a role after its other hooks."""

    def __init__(self):
        self.num_sessions = self.num_ends = 0

    def after_create_session(self, run, coordinator):
        self.num_sessions += 1

    def end(self, run):
        self.num_ends += 1


class WaitSeen:
    """A time whose sleep tells the test of a wait and takes until the test lets it go on."""

    def __init__(self):
        self.seen, self.may_go_on = threading.Event(), threading.Event()
        self.source = TimeSource(sleep=self._sleep)

    def _sleep(self, seconds):
        self.seen.set()
        assert self.may_go_on.wait(60)


def in_thread(*args):
    thread = threading.Thread(target=drive, args=args, daemon=True)
    thread.start()
    return thread


@pytest.mark.req("TS-SYNCH-T1")
def test_sync_process():
    shared, finish = LocalSharedState(), threading.Event()
    chief, worker = SyncHelper(2, True, shared=shared), SyncHelper(2, False, shared=shared)
    of_chief, of_worker, at_chief, at_worker = Counting(), Counting(), WaitSeen(), WaitSeen()

    def step():
        assert finish.wait(60)
        raise StopIteration

    hooks = [WorkerSyncHook(1, worker, source=at_worker.source), of_worker]
    second = in_thread(step, hooks)
    assert at_worker.seen.wait(60)  # nothing is restored: the worker does not begin
    assert (of_worker.num_sessions, worker.get_alive_workers()) == (0, [1])

    first = in_thread(iter(()).__next__, [ChiefSyncHook(chief, source=at_chief.source), of_chief])
    assert at_chief.seen.wait(60)  # the worker has not finished: the chief does not end
    assert (of_chief.num_sessions, of_chief.num_ends) == (1, 0)

    at_worker.may_go_on.set()
    finish.set()
    second.join(60)
    assert (of_worker.num_sessions, of_worker.num_ends) == (1, 1)
    at_chief.may_go_on.set()
    first.join(60)
    assert of_chief.num_ends == 1


@pytest.mark.req("TS-SYNCH-T2")
def test_hook_helper():
    off = TrainingHooksHelper(False, 2, 0)
    assert (off.training_hooks, off.training_chief_hooks) == ((), ())
    on = TrainingHooksHelper(True, 2, 1, 5)
    assert [type(hook) for hook in on.training_hooks] == [WorkerSyncHook]
    assert [type(hook) for hook in on.training_chief_hooks] == [ChiefSyncHook]


def test_the_hooks_of_a_helper_share_the_flags_that_it_was_given():
    shared = LocalSharedState()
    chief = TrainingHooksHelper(True, 2, 0, shared=shared)
    (hook,) = chief.training_chief_hooks
    hook.after_create_session(Run(), Coordinator())
    assert SyncHelper(2, False, shared=shared).get_restore_status()
