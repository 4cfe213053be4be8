import threading

import pytest

from monolith.errors import CancelledError, DeadlineExceededError
from monolith.train.driver import Coordinator, Run, current_run

WAIT_SECONDS = 60  # never reached


def raising(error):
    def call():
        raise error

    return call


def failing(error, prepare):
    """Run a block that prepares a coordinator and then raises."""
    with Coordinator() as coordinator:
        prepare(coordinator)
        raise error


def test_the_end_of_the_block_stops_and_joins_the_threads():
    with Coordinator() as coordinator:
        stop = lambda: coordinator.wait_for_stop(WAIT_SECONDS)  # noqa: E731
        threads = [coordinator.start(stop, name=str(i)) for i in range(3)]
    assert coordinator.stop_requested
    assert not any(thread.is_alive() for thread in threads)


def test_a_thread_that_goes_on_does_not_keep_the_program_alive():
    with Coordinator() as coordinator:
        assert coordinator.start(lambda: None, name="x").daemon


def test_an_error_of_a_thread_is_raised_at_the_end():
    with pytest.raises(KeyError, match="bad"), Coordinator() as coordinator:
        coordinator.start(raising(KeyError("bad")), name="bad").join()


def test_an_error_of_a_thread_requests_a_stop_and_can_be_raised_before_the_end():
    coordinator = Coordinator()
    coordinator.start(raising(KeyError("bad")), name="bad")
    assert coordinator.wait_for_stop(WAIT_SECONDS)
    with pytest.raises(KeyError, match="bad"):
        coordinator.raise_error()


def test_the_first_error_counts_and_others_are_logged(caplog):
    coordinator = Coordinator()
    for text in ("first", "second"):
        coordinator.request_stop(KeyError(text))
    with pytest.raises(KeyError, match="first"):
        coordinator.close()
    assert [record.exc_info[1].args for record in caplog.records] == [("second",)]


def test_clean_ups_run_last_first_after_the_stop_and_before_the_join():
    seen = []
    with Coordinator() as coordinator:
        woken = threading.Event()
        coordinator.start(lambda: woken.wait(WAIT_SECONDS) and seen.append("thread"), name="t")
        coordinator.add_cleanup(woken.set)
        coordinator.add_cleanup(lambda: seen.append(coordinator.stop_requested))
    assert seen == [True, "thread"]


@pytest.mark.parametrize("error", [KeyError("run"), KeyboardInterrupt()])
def test_clean_ups_run_when_the_block_fails_and_its_error_stays(error, caplog):
    seen = []

    def prepare(coordinator):
        coordinator.add_cleanup(lambda: seen.append("first"))
        coordinator.add_cleanup(raising(ValueError("clean-up")))

    with pytest.raises(type(error)) as caught:
        failing(error, prepare)
    assert caught.value is error
    assert seen == ["first"]
    assert [record.exc_info[1].args for record in caplog.records] == [("clean-up",)]


def test_an_error_of_a_clean_up_is_raised_if_there_is_no_other():
    with pytest.raises(ValueError, match="clean-up"), Coordinator() as coordinator:
        coordinator.add_cleanup(raising(ValueError("clean-up")))


def test_a_clean_up_runs_once():
    seen = []
    coordinator = Coordinator()
    coordinator.add_cleanup(lambda: seen.append(1))
    coordinator.close()
    coordinator.close()
    assert seen == [1]


def test_the_error_of_a_thread_takes_the_place_of_the_cancellation_that_it_caused():
    producer = KeyError("producer")
    with pytest.raises(KeyError) as caught:
        failing(CancelledError("queue"), lambda c: c.request_stop(producer))
    assert caught.value is producer
    assert isinstance(caught.value.__context__, CancelledError)


def test_a_cancellation_without_another_error_stays():
    with pytest.raises(CancelledError, match="queue"), Coordinator():
        raise CancelledError("queue")


def test_an_error_that_is_raised_again_is_not_logged(caplog):
    error = KeyError("bad")
    with pytest.raises(KeyError):
        failing(error, lambda c: c.request_stop(error))
    assert not caplog.records


def test_a_thread_that_goes_on_is_named():
    leave = threading.Event()
    coordinator = Coordinator(stop_seconds=0)
    thread = coordinator.start(lambda: leave.wait(WAIT_SECONDS), name="reader 7")
    text = r"within 0 s of the stop, got 1 that go on: reader 7; have them look"
    with pytest.raises(DeadlineExceededError, match=text):
        coordinator.close()
    leave.set()
    thread.join()


def test_a_wrong_limit_is_refused():
    with pytest.raises(ValueError, match=r"\[Coordinator\] .* got -1"):
        Coordinator(stop_seconds=-1)


def test_a_thread_sees_the_run_that_was_current_when_it_was_started():
    seen = []
    with Run().as_current() as run, Coordinator() as coordinator:
        coordinator.start(lambda: seen.append(current_run()), name="t").join()
    assert seen == [run]
