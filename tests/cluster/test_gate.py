import threading

import pytest

from monolith.cluster import ShardedTable
from monolith.cluster.gate import Gate
from monolith.errors import DeadlineExceededError
from monolith.table import Segment, TableConfig
from tests.suites.table_base import column, keys


def start(work):
    """A thread that works, and the event that it is inside."""
    inside, leave = threading.Event(), threading.Event()

    def run():
        with work():
            inside.set()
            assert leave.wait(60)

    thread = threading.Thread(target=run)
    thread.start()
    return inside, leave, thread


def test_writers_are_inside_together():
    gate = Gate("ShardedTable", "user")
    with gate.shared(), gate.shared():
        pass


@pytest.mark.parametrize("kind", ["shared", "alone"])
def test_who_is_alone_waits_for_those_inside(kind):
    gate = Gate("ShardedTable", "user")
    first_inside, first_leave, first = start(getattr(gate, kind))
    assert first_inside.wait(60)
    inside, leave, thread = start(gate.alone)
    assert not inside.wait(0.01)
    first_leave.set()
    assert inside.wait(60)
    leave.set()
    first.join()
    thread.join()


def test_writers_wait_for_who_waits_to_be_alone():
    gate = Gate("ShardedTable", "user")
    with gate.shared():
        alone_inside, alone_leave, alone = start(gate.alone)
        while not gate._num_alone:
            assert not alone_inside.wait(0.001)
        inside, leave, writer = start(gate.shared)
        assert not inside.wait(0.01)
    assert alone_inside.wait(60)
    assert not inside.wait(0.01)
    alone_leave.set()
    assert inside.wait(60)
    leave.set()
    alone.join()
    writer.join()


def test_an_interrupted_wait_lets_the_others_go_on(monkeypatch):
    gate = Gate("ShardedTable", "user")

    def interrupt(*_):
        raise KeyboardInterrupt

    with gate.shared():
        monkeypatch.setattr(gate._changed, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt), gate.alone():
            pass
        monkeypatch.undo()
        with gate.shared():
            pass


NUMBERS = {("shared", "alone"): (1, 0), ("alone", "shared"): (0, 1), ("alone", "alone"): (0, 1)}


@pytest.mark.parametrize(("held", "wanted"), NUMBERS)
def test_a_wait_that_takes_too_long_says_for_what_since_when_and_how_to_end_it(held, wanted):
    gate = Gate("ShardedTable", "user", timeout_seconds=0.0)
    num_writing, num_alone = NUMBERS[held, wanted]
    text = (
        rf"\[ShardedTable\] expected the calls before this one to end within 0\.0 seconds, got "
        rf"{num_writing} that write and {num_alone} that are alone or wait to be, since 20\d\d-.* "
        r"UTC \(table 'user'\); end them, .* or make the table with a larger timeout_seconds"
    )
    inside, refused = getattr(gate, held)(), pytest.raises(DeadlineExceededError, match=text)
    with inside, refused, getattr(gate, wanted)():
        pass
    with gate.alone():
        pass


def test_the_limit_is_a_setting_of_the_table():
    config = TableConfig("user", Segment(1))
    table = ShardedTable.local(config, 2, timeout_seconds=0.0)
    with table._gate.alone(), pytest.raises(DeadlineExceededError):
        table.assign(keys(7), column(1))
    assert len(table) == 0
