import math
import threading
import time

import pytest

from monolith import data
from monolith.data import stream
from monolith.data.cursor import NothingYetError, SourceWait, WaitEndedError
from tests.data.samples import memory, users
from tests.data.stream.folders import COLUMNS, Later, add, read, tailed
from tests.time_limits import AT_ONCE, at_once


def test_a_batch_ends_by_size(tmp_path):
    add(tmp_path, "a.jsonl", range(10))
    with at_once(), iter(tailed(tmp_path, size=4, seconds=3_600)) as batches:
        assert [users([next(batches)]) for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("depth", [0, 2])
def test_a_batch_ends_by_time(tmp_path, depth):
    add(tmp_path, "a.jsonl", [7])
    pipeline = tailed(tmp_path, seconds=0.02)
    with at_once(), iter(pipeline.prefetch(depth) if depth else pipeline) as batches:
        assert users([next(batches)]) == [7]


def test_the_time_of_a_batch_begins_with_its_first_sample(tmp_path):
    with at_once(), iter(tailed(tmp_path, seconds=0.2)) as batches:

        def write_two():
            time.sleep(0.3)  # longer than the time of a batch
            add(tmp_path, ".a", [1, 2])
            (tmp_path / ".a").rename(tmp_path / "a.jsonl")

        with Later(batches, write_two):
            assert users([next(batches)]) == [1, 2]


def test_without_seconds_a_batch_waits_until_it_is_full(tmp_path):
    add(tmp_path, "a.jsonl", [1, 2])
    pipeline = stream.tail(tmp_path, columns=COLUMNS).batch(3)
    with (
        at_once(),
        iter(pipeline) as batches,
        Later(batches, lambda: add(tmp_path, "a.jsonl", [3])),
    ):
        assert users([next(batches)]) == [1, 2, 3]


@pytest.mark.parametrize("seconds", [0, -1.0, math.nan, math.inf])
def test_a_time_that_never_ends_is_refused(tmp_path, seconds):
    with pytest.raises(ValueError, match="expected seconds above 0 and finite"):
        stream.tail(tmp_path, columns=COLUMNS).batch(4, seconds=seconds)


def test_a_source_that_ends_has_no_time():
    with pytest.raises(ValueError, match="expected a stream with seconds"):
        memory().batch(4, seconds=0.1)


class Stop:
    """Ends the wait of an iteration once it is asked for."""

    def __call__(self):
        raise WaitEndedError


@pytest.mark.parametrize("depth", [0, 2])
def test_a_wait_that_was_ended_goes_on_later(tmp_path, depth):
    pipeline = tailed(tmp_path)
    with at_once(), iter(pipeline.prefetch(depth) if depth else pipeline) as batches:
        batches.on_wait = Stop()
        assert list(batches) == []
        batches.on_wait = None
        add(tmp_path, "a.jsonl", [7])
        assert read(batches, 1) == [7]


@pytest.mark.parametrize("depth", [0, 2])
def test_close_ends_the_wait_of_another_thread(tmp_path, depth):
    pipeline = tailed(tmp_path)
    batches = iter(pipeline.prefetch(depth) if depth else pipeline)
    waits = threading.Event()
    batches.on_wait = waits.set
    reader = threading.Thread(target=lambda: list(batches), daemon=True)
    reader.start()
    assert waits.wait(AT_ONCE)
    with at_once():
        batches.close()
    reader.join(AT_ONCE)
    assert not reader.is_alive()


def test_an_iteration_that_is_forgotten_ends_its_thread(tmp_path):
    batches = iter(tailed(tmp_path).prefetch(2))
    thread = batches._ahead._thread
    del batches
    thread.join(AT_ONCE)
    assert not thread.is_alive()


STAGES = {
    "map": lambda source: source.map(lambda block: block),
    "filter": lambda source: source.filter(lambda block: block["user"].to_numpy() >= 0),
    "shard": lambda source: source.shard(0, 1),
    "take": lambda source: source.take(100),
    "shuffle": lambda source: source.shuffle(2),
    "sample": lambda source: source.sample(lambda block, draws: block),
    "repeat": lambda source: source.repeat(),
    "merge": lambda source: source.merge(source),
    "split": lambda source: source.split("user", {"all": 0, "other": 1}, others="drop")["all"],
}


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_goes_on_after_the_end_of_a_time(tmp_path, name):
    """A sample that is alone ends its batch by time, and the next one is not lost."""
    pipeline = STAGES[name](stream.tail(tmp_path, columns=COLUMNS)).batch(64, seconds=0.01)
    seen = []
    with at_once(), iter(pipeline) as batches:
        for _ in range(3):
            add(tmp_path, "a.jsonl", [0, 0])
            seen += read(batches, 2)
    assert seen == [0] * len(seen)
    assert len(seen) >= 6


def test_several_workers_are_refused(tmp_path):
    with pytest.raises(ValueError, match="expected one worker to train on a stream, got 2"):
        data.split_source(tailed(tmp_path), 2)
    (name,) = data.split_source(tailed(tmp_path), 1).names()
    add(tmp_path, "a.jsonl", [7])
    with at_once(), data.split_source(tailed(tmp_path), 1).open(name) as batches:
        assert read(batches, 1) == [7]


def test_a_pause_ends_at_its_deadline_and_a_stop_ends_all():
    wait = SourceWait()
    wait.wake()
    with at_once():
        wait.pause(3_600)  # woken before
        wait.deadline = time.monotonic() + 0.01
        wait.pause(3_600)
        with pytest.raises(NothingYetError):
            wait.pause(3_600)
        wait.stop()
        for _ in range(2):
            with pytest.raises(WaitEndedError):
                wait.pause(3_600)


def test_a_pipeline_knows_whether_it_ends(tmp_path):
    assert tailed(tmp_path).is_stream
    assert not memory().batch(3).is_stream
