import threading

import pytest

from monolith.native_training.hooks.current_run import CurrentRunHook
from monolith.train import Coordinator, Hook, Run
from monolith.train.driver import current_run, drive


def test_the_hook_makes_its_run_current_without_a_driver():
    hook, run, coordinator = CurrentRunHook(), Run(), Coordinator()
    hook.after_create_session(run, coordinator)
    assert current_run() is run
    hook.end(run)
    assert current_run() is None
    hook.end(run)
    assert current_run() is None


def test_a_recovery_leaves_one_entry():
    hook, run, coordinator = CurrentRunHook(), Run(), Coordinator()
    hook.after_create_session(run, coordinator)
    hook.after_create_session(run, coordinator)
    hook.end(run)
    assert current_run() is None


def test_a_run_that_fails_is_taken_off_by_the_clean_up():
    hook, run, coordinator = CurrentRunHook(), Run(), Coordinator()
    hook.after_create_session(run, coordinator)
    coordinator.close()
    assert current_run() is None


class Once(Hook):
    """Ends the run after one step."""

    def after_run(self, ctx, results):
        ctx.request_stop()


@pytest.mark.req("NT-SESH-T1")
def test_a_nested_run_gives_the_outer_one_back():
    outer, inner, seen = Run(), Run(), []

    def step():
        drive(lambda: seen.append(current_run()), [CurrentRunHook(), Once()], run=inner)
        seen.append(current_run())

    drive(step, [CurrentRunHook(), Once()], run=outer)
    assert seen == [inner, outer]
    assert current_run() is None


@pytest.mark.req("NT-SESH-T1")
def test_two_runs_in_two_threads_each_see_their_own():
    both_run = threading.Barrier(2, timeout=60)
    seen = {}

    def work(name):
        def step():
            both_run.wait()
            seen[name] = current_run()
            both_run.wait()

        drive(step, [CurrentRunHook(), Once()], run=runs[name])

    runs = {"a": Run(), "b": Run()}
    threads = [threading.Thread(target=work, args=(name,)) for name in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == runs


@pytest.mark.req("NT-SESH-T1")
def test_after_an_error_no_run_is_current():
    def step():
        assert current_run() is not None
        raise KeyError

    with pytest.raises(KeyError):
        drive(step, [CurrentRunHook()])
    assert current_run() is None
