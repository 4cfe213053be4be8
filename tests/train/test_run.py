import contextvars
import threading

import pytest

from monolith.train.driver import Action, Run, current_or_default_run, current_run, enter_run


def in_new_context(call):
    return contextvars.Context().run(call)


def test_collections_keep_their_order_and_belong_to_one_run():
    run, other = Run(), Run()
    for value in (3, 1, 3):
        run.add("numbers", value)
    assert run.collection("numbers") == (3, 1, 3)
    assert other.collection("numbers") == run.collection("letters") == ()


def test_a_collection_that_was_read_does_not_change_the_run():
    run = Run()
    run.add("numbers", 1)
    assert isinstance(run.collection("numbers"), tuple)


def test_adding_from_many_threads_loses_nothing():
    run = Run()

    def add(first):
        for number in range(first, first + 1000):
            run.add("numbers", number)

    threads = [threading.Thread(target=add, args=(i * 1000,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(run.collection("numbers")) == list(range(8000))


def test_unique_names_count_up_and_skip_names_in_use():
    run = Run()
    names = [run.unique_name(name) for name in ("queue", "queue_1", "queue", "queue", "queue_1")]
    assert names == ["queue", "queue_1", "queue_2", "queue_3", "queue_1_1"]


def test_an_action_is_called_like_its_function():
    action = Run().action("add", lambda x, *, y: x + y)
    assert action(1, y=2) == 3
    assert (action.name, action.needs) == ("add", ())


def test_needed_by_follows_the_needs_of_needed_actions():
    run = Run()
    first = run.action("first", print)
    run.action("second", print, needs=[first])
    run.action("third", print, needs=["second"])
    run.action("other", print)
    assert run.needed_by(["third"]) == {"first", "second", "third"}
    assert run.needed_by(["first", "other"]) == {"first", "other"}


def test_an_action_of_a_taken_name_is_refused():
    run = Run()
    run.action("add", print)
    with pytest.raises(ValueError, match=r"\[Run.action\] expected a new name, got 'add'"):
        run.action("add", print)


def test_a_need_that_is_not_recorded_is_refused():
    with pytest.raises(ValueError, match=r"\[Run.action\] .* actions, got 'add'; record it"):
        Run().action("sum", print, needs=[Action("add", print)])


def test_needs_of_an_unknown_action_are_refused():
    with pytest.raises(ValueError, match=r"\[Run.needed_by\] .* actions, got 'add'; record it"):
        Run().needed_by(["add"])


def test_the_innermost_run_is_current():
    outer, inner = Run(), Run()
    assert current_run() is None
    with outer.as_current():
        with inner.as_current():
            assert current_run() is inner
        assert current_run() is outer
    assert current_run() is None


def test_a_run_is_taken_off_after_an_error():
    with pytest.raises(KeyError), Run().as_current():
        raise KeyError
    assert current_run() is None


def test_runs_may_be_left_in_any_order_and_more_than_once():
    first, second = Run(), Run()
    leave_first, leave_second = enter_run(first), enter_run(second)
    leave_first()
    leave_first()
    assert current_run() is second
    leave_second()
    assert current_run() is None


def test_a_run_that_was_entered_twice_is_left_twice():
    run = Run()
    leave = enter_run(run)
    with run.as_current():
        pass
    assert current_run() is run
    leave()


def test_a_copied_context_does_not_change_the_original():
    run = Run()
    context = contextvars.copy_context()
    leave = context.run(enter_run, run)
    assert current_run() is None
    assert context.run(current_run) is run
    context.run(leave)
    assert context.run(current_run) is None


def test_the_default_run_is_that_of_the_context_and_never_current():
    def twice():
        assert current_run() is None
        return current_or_default_run(), current_or_default_run()

    first, again = in_new_context(twice)
    assert first is again
    assert in_new_context(twice)[0] is not first


def test_the_current_run_comes_before_the_default_one():
    def both():
        current_or_default_run()
        with Run().as_current() as run:
            return run, current_or_default_run()

    run, current = in_new_context(both)
    assert run is current
