"""The thread that writes saves: order, waits, ends."""

import gc
import re
import threading
import time
import weakref

import pytest

from monolith.errors import CancelledError
from monolith.table.disk.workers import Progress
from monolith.train.saves.save_thread import SaveThread, Writing
from tests.time_limits import AT_ONCE


@pytest.fixture
def thread():
    thread = SaveThread()
    yield thread
    thread.close()
    assert not [other for other in threading.enumerate() if other.name.startswith("save")]


def write_slowly(writing):
    """Write for an hour, unless the rate is lifted or the save is stopped."""
    writing.note(Progress(1, 2, 3_000_000))
    writing.control.wait(3600, lambda: False)
    return writing.name


def test_a_save_runs_while_its_caller_goes_on(thread):
    save = thread.start("step 1", write_slowly)
    assert not save.is_done
    thread.finish()
    assert save.error() is None
    assert (save.is_done, save.result()) == (True, "step 1")


def test_saves_end_in_the_order_of_their_starts_without_their_rates(thread):
    ended = []
    saves = [
        thread.start(str(i), lambda writing: ended.append(write_slowly(writing))) for i in range(3)
    ]
    thread.finish()
    assert ended == ["0", "1", "2"]
    assert all(save.is_done for save in saves)


def test_abandoned_saves_end_at_once_also_those_that_have_not_begun(thread):
    saves = [thread.start(str(i), write_slowly) for i in range(3)]
    start = time.monotonic()
    thread.abandon()
    assert time.monotonic() - start < AT_ONCE
    assert {type(save.error()) for save in saves} == {CancelledError}
    assert "abandoned" in str(saves[2].error())


def test_a_save_that_is_failing_is_stopped_if_asked(thread):
    def fail(writing):
        writing.is_failing = True
        has_failed.set()
        write_slowly(writing)

    has_failed = threading.Event()
    first, second = thread.start("1", fail), thread.start("2", write_slowly)
    assert has_failed.wait(30)
    thread.finish(drops_failing=True)
    assert isinstance(first.error(), CancelledError)
    assert second.result() == "2"


def test_an_error_is_kept_without_a_cycle_that_holds_what_the_save_had(thread):
    class Large:
        pass

    def fail(writing):
        large = Large()
        alive.append(weakref.ref(large))
        raise ZeroDivisionError

    alive = []
    gc.disable()
    try:
        save = thread.start("step 1", fail)
        assert isinstance(save.error(), ZeroDivisionError)
        del save
        assert alive[0]() is None
    finally:
        gc.enable()


def test_a_long_wait_says_what_it_waits_for(thread, caplog):
    class Passing(threading.Event):
        """Three waits last as long as they may, without taking the time; the next one is real."""

        def wait(self, timeout=None):
            seconds.append(timeout)
            if len(seconds) <= 3:
                return False
            writing.control.lift_rate()
            return super().wait(60)

    seconds, has_begun = [], threading.Event()
    save = thread.start("step 7", lambda writing: write_and_tell(writing, has_begun))
    assert has_begun.wait(60)
    (writing,) = thread.running()
    writing.is_over = Passing()
    assert save.error() is None
    text = r"waiting for the save of step 7 since \d+ s, 3.0 MB are written; Ctrl-C twice"
    assert len(re.findall(text, caplog.text)) == 3
    assert seconds == [10, 20, 40, 80]


def write_and_tell(writing, has_begun):
    """Write slowly; `has_begun` is set when the progress is there."""
    writing.note = lambda progress: (Writing.note(writing, progress), has_begun.set())
    return write_slowly(writing)


def test_an_idle_thread_is_none():
    SaveThread().close()
    assert not [other for other in threading.enumerate() if other.name.startswith("save")]
