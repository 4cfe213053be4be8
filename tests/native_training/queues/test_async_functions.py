import threading
import time

import pytest
import torch

from monolith.errors import AbortedError, QueueFullError
from monolith.native_training.queues import AsyncFunctionManager, AsyncPushHook, BoundedQueue
from monolith.train import Hook, Run
from monolith.train.driver import drive


@pytest.fixture(autouse=True)
def _run():
    with Run().as_current():
        yield


class StopAfter(Hook):
    """Ends the run after so many steps."""

    def __init__(self, steps):
        self.left = steps

    def after_run(self, ctx, results):
        self.left -= 1
        if self.left == 0:
            ctx.request_stop()


def drive_steps(number, step, manager, **options):
    drive(step, [*manager.hooks, StopAfter(number)], **options)


def adder(value):
    """Adds to a tensor in place."""
    return lambda number=1: value.add_(number)


@pytest.mark.req("TS-PFQ-T12")
@pytest.mark.req("NT-PFQ-T4")
def test_a_call_is_executed_one_step_later_and_the_last_at_the_end():
    value, seen = torch.zeros(()), []
    manager = AsyncFunctionManager()
    push = manager.add_async_function(adder(value), [torch.tensor(1)])

    def step():
        push()
        seen.append(value.item())

    drive_steps(2, step, manager, overlap=False)
    assert seen == [0, 1]
    assert value.item() == 2


@pytest.mark.req("TS-PFQ-T13")
@pytest.mark.parametrize("options", [(False, None), (True, False)])
def test_a_synchronous_function_is_called_at_once(options):
    value = torch.zeros(())
    manager = AsyncFunctionManager(options[0])
    result = manager.add_async_function(
        adder(value), args=[lambda: torch.tensor(1)], is_async=options[1]
    )
    assert result is value
    assert value.item() == 1
    assert manager.hooks == []


@pytest.mark.req("TS-PFQ-T14")
def test_a_function_without_arguments_is_put_off_too():
    value, seen = torch.zeros(()), []
    manager = AsyncFunctionManager(is_async=False)
    push = manager.add_async_function(adder(value), is_async=True)

    def step():
        push()
        seen.append(value.item())

    drive_steps(2, step, manager, overlap=False)
    assert seen == [0, 1]


@pytest.mark.req("NT-PFQ-T5")
def test_effects_equal_those_of_synchronous_calls_one_step_earlier():
    def effects(is_async):
        numbers, seen, log = iter(range(6)), [], []
        manager = AsyncFunctionManager(is_async)

        def target(x, *, scale):
            log.append((x["n"] * scale).item())

        def arguments():
            return [lambda: {"n": torch.tensor(next(numbers))}], {"scale": 10}

        push = manager.add_async_function(target, *arguments()) if is_async else None

        def step():
            if is_async:
                push()
            else:
                manager.add_async_function(target, *arguments())
            seen.append(list(log))

        drive_steps(6, step, manager, overlap=False)
        return seen, log

    (late, all_late), (early, all_early) = effects(True), effects(False)
    assert late[1:] == early[:-1]
    assert all_late == all_early == [0, 10, 20, 30, 40, 50]


@pytest.mark.req("NT-PFQ-T5")
def test_a_target_whose_result_feeds_its_own_call_is_refused():
    run = Run()
    with run.as_current():
        target = run.action("push", lambda x: x)
        feed = run.action("feed", lambda: torch.ones(1), needs=[target])
        text = (
            r"the ops \[async_queue/enqueue\] depend on ops \[push\], which may cause ops \[push\]"
        )
        with pytest.raises(Exception, match=text):
            AsyncFunctionManager().add_async_function(target, [feed])


def test_an_argument_that_needs_something_else_is_accepted():
    run = Run()
    with run.as_current():
        target = run.action("push", lambda x: x)
        read = run.action("read", lambda: torch.ones(1))
        enqueue = AsyncFunctionManager().add_async_function(target, [read])
    assert enqueue.needs == ("read",)


def test_two_functions_of_one_manager_have_actions_and_queues_of_their_own():
    log, manager = [], AsyncFunctionManager()
    pushes = [manager.add_async_function(lambda name=name: log.append(name)) for name in ("a", "b")]
    assert [push.name for push in pushes] == ["async_queue/enqueue", "async_queue_1/enqueue"]
    drive_steps(3, lambda: [push() for push in pushes], manager)
    assert log == ["a", "b"] * 3


def test_a_step_that_makes_no_call_executes_none():
    log, calls = [], iter([True, False, False, True])
    manager = AsyncFunctionManager()
    push = manager.add_async_function(log.append, [torch.tensor(1)])
    drive_steps(4, lambda: push() if next(calls) else None, manager)
    assert len(log) == 2


@pytest.mark.parametrize("is_async", [True, False])
def test_an_argument_whose_input_ends_ends_the_run(is_async):
    log, numbers = [], iter(range(3))
    manager = AsyncFunctionManager()

    def add():
        return manager.add_async_function(
            lambda first, second: log.append((first.item(), second.item())),
            [torch.tensor(7), lambda: torch.tensor(next(numbers))],
            is_async=is_async,
        )

    drive(add() if is_async else add, manager.hooks)
    assert log == [(7, 0), (7, 1), (7, 2)]


def test_a_second_call_in_one_step_finds_no_room():
    manager = AsyncFunctionManager(timeout_seconds=0)
    push = manager.add_async_function(print)
    push()
    with pytest.raises(QueueFullError, match=r"queue 'async_queue', open, 1 of 1"):
        push()


def test_a_target_that_raises_fails_the_run():
    def target():
        raise KeyError("bad")

    manager = AsyncFunctionManager()
    push = manager.add_async_function(target)
    with pytest.raises(KeyError, match="bad"):
        drive_steps(2, push, manager)


def test_a_run_that_fails_executes_no_more_calls():
    log, manager = [], AsyncFunctionManager()
    push = manager.add_async_function(log.append, [torch.tensor(1)])

    def step():
        push()
        raise KeyError("bad")

    with pytest.raises(KeyError):
        drive_steps(2, step, manager)
    assert log == []


def test_an_argument_that_cannot_be_nested_is_refused_when_the_call_is_made():
    push = AsyncFunctionManager().add_async_function(print, [object])
    with pytest.raises(ValueError, match="Tensor is not supported"):
        push()


def test_the_hook_begins_when_its_queue_has_been_seen_with_an_element():
    queue, log = BoundedQueue(3), []
    hook = AsyncPushHook(queue, lambda: log.append(queue.get()))
    hook.begin()
    assert hook.before_run(None) is None
    hook.after_run(None, None)
    assert hook.before_run(None) is None
    queue.put(1)
    assert hook.before_run(None) is None
    hook.after_run(None, None)
    hook.before_run(None)()
    assert log == [1]
    assert hook.before_run(None) is not None
    queue.put(2)
    queue.put(3)
    hook.end(None)
    assert log == [1, 2, 3]


def test_the_next_run_begins_with_the_call_that_a_failed_first_step_left():
    log, manager, numbers = [], AsyncFunctionManager(timeout_seconds=0), iter(range(3))
    push = manager.add_async_function(
        lambda x: log.append(x.item()), [lambda: torch.tensor(next(numbers))]
    )

    def fail():
        push()
        raise KeyError("bad")

    with pytest.raises(KeyError):
        drive(fail, manager.hooks)
    drive(push, manager.hooks)
    assert log == [0, 1, 2]


def test_a_call_that_found_no_room_is_not_executed_in_place_of_a_later_one():
    log, manager, numbers = [], AsyncFunctionManager(timeout_seconds=0), iter(range(3))
    push = manager.add_async_function(
        lambda x: log.append(x.item()), [lambda: torch.tensor(next(numbers))]
    )
    push()
    with pytest.raises(QueueFullError):
        push()
    drive(push, manager.hooks)
    assert log == [0, 2]


def timed(overlap):
    """Run 5 steps of 0.2 s with a function of 0.2 s; return the seconds and the threads."""
    threads = []

    def target():
        threads.append(threading.current_thread())
        time.sleep(0.2)

    manager = AsyncFunctionManager()
    push = manager.add_async_function(target)

    def step():
        push()
        time.sleep(0.2)

    start = time.perf_counter()
    drive_steps(5, step, manager, overlap=overlap)
    return time.perf_counter() - start, threads


@pytest.mark.req("NT-PFQ-T6")
def test_functions_run_on_a_thread_concurrently_with_the_steps():
    seconds, threads = timed(overlap=True)
    assert seconds < 1.6
    *others, last = threads
    assert threading.current_thread() not in others
    assert len(others) == 4
    assert last is threading.current_thread()  # of the last step, when the run ends


@pytest.mark.req("NT-PFQ-T6")
def test_without_overlap_functions_run_on_the_calling_thread():
    seconds, threads = timed(overlap=False)
    assert set(threads) == {threading.current_thread()}
    assert seconds > 1.9


@pytest.mark.req("NT-PFQ-T6")
def test_the_error_of_a_function_on_the_thread_ends_the_run_with_the_original_error():
    error, threads = KeyError("bad"), []

    def target():
        threads.append(threading.current_thread())
        raise error

    manager = AsyncFunctionManager()
    push = manager.add_async_function(target)
    with pytest.raises(KeyError) as raised:
        drive_steps(5, push, manager)
    assert raised.value is error
    assert threads != [threading.current_thread()]


def test_a_call_waits_for_the_step_after_its_own_however_slow_the_thread_is():
    log, step_number, manager = [], iter(range(100)), AsyncFunctionManager()
    push = manager.add_async_function(
        lambda x: log.append(x.item()), [lambda: torch.tensor(now[0])]
    )
    now, makes_call = [0], [True, False, True, True, False, False, True]

    def step():
        now[0] = next(step_number)
        before = list(log)
        if makes_call[now[0]]:
            push()
        assert now[0] not in before

    drive_steps(7, step, manager)
    assert log == [0, 2, 3, 6]


@pytest.mark.parametrize("method", ["step", "pushed", "before_run", "after_run"])
@pytest.mark.parametrize("is_first", [True, False])
def test_every_call_is_executed_once_over_a_recovery(method, is_first):
    log, left, manager = [], list(range(6)), AsyncFunctionManager()
    push = manager.add_async_function(
        lambda x: log.append(x.item()), [lambda: torch.tensor(left[0])]
    )
    failures = [AbortedError("gone")]

    def fail():
        if len(log) == 2 and failures:
            raise failures.pop()

    class Failing(Hook):
        def before_run(self, ctx):
            return (method == "before_run" and fail()) or None

        def after_run(self, ctx, results):
            if method == "after_run":
                fail()

    def step():
        if method == "step":
            fail()
        if not left:
            raise StopIteration
        push()
        if method == "pushed":
            fail()
        left.pop(0)

    run = drive(
        step,
        [Failing(), *manager.hooks] if is_first else [*manager.hooks, Failing()],
        overlap=False,
    )
    assert (run.num_recoveries, log) == (1, list(range(6)))


def test_calls_of_steps_that_a_recovery_has_undone_are_not_executed():
    log, run, manager = [], Run(global_step=0), AsyncFunctionManager()
    push = manager.add_async_function(
        lambda x: log.append(x.item()), [lambda: torch.tensor(run.global_step)]
    )
    failures = [AbortedError("gone")]

    class Failing(Hook):
        def after_run(self, ctx, results):
            if run.global_step == 3 and failures:
                raise failures.pop()

    def step():
        push()
        run.global_step += 1

    def recover(error):
        run.global_step = 2
        return True

    drive(step, [*manager.hooks, Failing(), StopAfter(5)], run=run, recover=recover)
    assert log == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("is_body", [True, False])
@pytest.mark.parametrize(
    ("back", "expected"),
    [
        (3, [0, 1, 2, 3, 4, 5]),  # the state before the failed step, whose call is not executed
        (2, [0, 1, 2, 2, 3, 4, 5]),
    ],
)
def test_the_call_of_a_step_that_a_restore_has_undone_is_not_executed(back, expected, is_body):
    log, run, manager = [], Run(global_step=0), AsyncFunctionManager()
    push = manager.add_async_function(
        lambda x: log.append(x.item()), [lambda: torch.tensor(run.global_step)]
    )
    failures = [AbortedError("gone")]

    def fail():
        if run.global_step == (3 if is_body else 4) and failures:
            raise failures.pop()

    class Failing(Hook):
        def after_run(self, ctx, results):
            if not is_body:
                fail()

    def step():
        push()
        if is_body:
            fail()
        run.global_step += 1

    def recover(error):
        run.global_step = back
        return True

    drive(step, [Failing(), *manager.hooks, StopAtSix()], run=run, recover=recover)
    assert (log, run.num_set_backs) == (expected, 1)


class StopAtSix(Hook):
    def after_run(self, ctx, results):
        if ctx.run.global_step == 6:
            ctx.request_stop()


@pytest.mark.parametrize("is_first", [True, False])
def test_the_call_of_a_complete_step_is_executed_although_the_run_recovers_at_its_end(is_first):
    log, run, manager = [], Run(global_step=0), AsyncFunctionManager()
    push = manager.add_async_function(
        lambda x: log.append(x.item()), [lambda: torch.tensor(run.global_step)]
    )
    failures = [AbortedError("gone"), AbortedError("gone")]

    class Failing(Hook):
        def after_run(self, ctx, results):
            if run.global_step in (2, 3) and len(failures) == 4 - run.global_step:
                raise failures.pop()

    def step():
        push()
        run.global_step += 1

    def recover(error):
        return len(failures) == 1  # the first one restores a checkpoint of this very step

    hooks = [Failing(), *manager.hooks] if is_first else [*manager.hooks, Failing()]
    drive(step, [*hooks, StopAtSix()], run=run, recover=recover)
    assert (log, run.num_recoveries, run.num_set_backs) == ([0, 1, 2, 3, 4, 5], 2, 1)


def test_a_run_without_a_step_number_drops_the_call_of_an_undone_step_only():
    log, left, manager = [], list(range(5)), AsyncFunctionManager()
    push = manager.add_async_function(
        lambda x: log.append(x.item()), [lambda: torch.tensor(left[0])]
    )
    failures = {1: AbortedError("undone"), 3: AbortedError("kept")}

    class Failing(Hook):
        def after_run(self, ctx, results):
            if results.value == 3 and 3 in failures:
                raise failures.pop(3)

    def step():
        if not left:
            raise StopIteration
        push()
        if left[0] == 1 and 1 in failures:
            raise failures.pop(1)
        return left.pop(0)

    drive(step, [Failing(), *manager.hooks], recover=lambda error: str(error) == "undone")
    assert (log, failures) == ([0, 1, 2, 3, 4], {})


def test_calls_that_a_run_left_and_that_followed_it_are_executed_in_order():
    log, manager, numbers = [], AsyncFunctionManager(timeout_seconds=0), iter(range(4))
    push = manager.add_async_function(
        lambda x: log.append(x.item()), [lambda: torch.tensor(next(numbers))]
    )

    class SecondStepFails(Hook):
        def before_run(self, ctx):
            if next(steps):
                raise KeyError("bad")

    steps = iter(range(2))
    with pytest.raises(KeyError):
        drive(push, [*manager.hooks, SecondStepFails()])
    push()
    drive(push, manager.hooks)
    assert log == [0, 1, 2, 3]
