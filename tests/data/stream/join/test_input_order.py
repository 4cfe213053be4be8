"""Inputs that wait: idle ones, ended ones, failed ones, and how a wait ends."""

import queue
import time

import pyarrow as pa
import pytest

from monolith.data.stream.join import JoinSettings
from monolith.data.stream.join.input_order import LiveInputs
from monolith.data.stream.join.join_stage import JoinOptions, JoinStage

LONG = 600.0


class WaitingCursor:
    """Gives what a test puts; waits for it like a stream."""

    def __init__(self, position=0):
        self.blocks, self.position, self.is_closed = queue.Queue(), position, False

    def put(self, *pairs, **columns):
        names = {"key": [key for key, _ in pairs], "time": [time for _, time in pairs], **columns}
        self.blocks.put(
            pa.record_batch({name: pa.array(each, pa.int64()) for name, each in names.items()})
        )

    def next(self):
        block = self.blocks.get()
        if isinstance(block, Exception):
            raise block
        self.position += 0 if block is None else block.num_rows
        return block

    def state(self):
        return {"row": self.position}

    def progress(self):
        return self.position, 0

    def close(self):
        self.is_closed = True
        self.blocks.put(None)


class WaitingStage:
    def __init__(self, cursor):
        self.cursor, self.opened_at = cursor, None

    def describe(self):
        return ["stream"]

    def open(self, epoch, state=None):
        self.opened_at = state
        return self.cursor


@pytest.fixture
def cursors(monkeypatch):
    monkeypatch.setattr("monolith.data.stream.join.input_order._PATIENCE_SECONDS", 0.05)
    return WaitingCursor(), WaitingCursor()


@pytest.fixture
def opened(tmp_path, cursors):
    """Opens the stage of a join over the cursors."""
    stages = tuple(WaitingStage(cursor) for cursor in cursors)
    all_opened = []

    def open_stage(idle_seconds=LONG, state=None):
        settings = JoinSettings("key", 10, {"click": [5]}, leaves_at_once=True)
        options = JoinOptions(tmp_path, 1_000, 4, 1 << 20, idle_seconds)
        all_opened.append(JoinStage(stages, settings, options).open(0, state))
        return all_opened[-1]

    open_stage.stages = stages
    yield open_stage
    for each in all_opened:
        each.close()


def test_whichever_input_has_events_is_taken(opened, cursors):
    joined = opened()
    cursors[0].put((1, 0))
    cursors[1].put((1, 3), kind=[5])
    assert joined.next()["key"].to_pylist() == [1]


def test_an_idle_input_does_not_hold_the_watermark(opened, cursors):
    cursors[0].put((1, 0), (2, 50))
    assert opened(idle_seconds=0.05).next()["key"].to_pylist() == [1]


def test_an_input_that_ended_does_not_hold_the_watermark(opened, cursors):
    cursors[0].put((1, 0), (2, 50))
    cursors[1].blocks.put(None)
    joined = opened()
    assert joined.next()["key"].to_pylist() == [1]
    cursors[0].blocks.put(None)
    assert joined.next()["key"].to_pylist() == [2]
    assert joined.next() is None


def test_an_idle_input_counts_again_when_it_has_events(cursors):
    inputs = LiveInputs(cursors, 0.05)
    left_out = {inputs.next([0, 0]).source, inputs.next([0, 0]).source}
    assert left_out == {0, 1}
    cursors[1].put((1, 0))
    arrival = inputs.next([0, 0])
    assert (arrival.source, arrival.position) == (1, {"row": 1})
    assert inputs.next([0, 0]).block is None
    inputs.close()


def test_the_input_that_is_idle_for_longest_is_left_out_first(cursors):
    inputs = LiveInputs(cursors, 0.05)
    cursors[0].put((1, 0))
    arrivals = [inputs.next([0, 0])]
    while arrivals[-1].block is None:  # the block was late
        arrivals.append(inputs.next([0, 0]))
    time.sleep(0.1)  # now both are idle
    later = inputs.next([0, 0])
    assert 1 in {each.source for each in arrivals} or later.source == 1
    inputs.close()


def test_the_error_of_an_input_reaches_the_reader(opened, cursors):
    cursors[1].blocks.put(OSError("broken"))
    joined = opened()
    for _ in range(2):
        with pytest.raises(OSError, match="broken"):
            joined.next()


def test_closing_ends_the_wait_of_an_input(cursors):
    inputs = LiveInputs(cursors, LONG)
    inputs.close()
    assert all(cursor.is_closed for cursor in cursors)
    assert inputs.progress() == [(0, 0), (0, 0)]


def test_a_resumed_stage_repeats_its_blocks_and_reads_on_after_them(opened, cursors):
    joined = opened(idle_seconds=0.05)
    state = joined.state()
    cursors[0].put((1, 0), (2, 50))
    blocks = [joined.next()]
    cursors[1].put((2, 51), kind=[5])
    blocks.append(joined.next())
    assert [block["key"].to_pylist() for block in blocks] == [[1], [2]]
    joined.close()
    for cursor in cursors:
        cursor.blocks = queue.Queue()
    again = opened(idle_seconds=0.05, state=state)
    assert [each.opened_at for each in opened.stages] == [{"row": 2}, {"row": 1}]
    assert [again.next(), again.next()] == blocks
