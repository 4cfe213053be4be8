import threading

import pytest

from monolith.embedding.gate import Gate


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
    gate = Gate()
    with gate.shared(), gate.shared():
        pass


@pytest.mark.parametrize("kind", ["shared", "alone"])
def test_who_is_alone_waits_for_those_inside(kind):
    gate = Gate()
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
    gate = Gate()
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
    gate = Gate()

    def interrupt():
        raise KeyboardInterrupt

    with gate.shared():
        monkeypatch.setattr(gate._changed, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt), gate.alone():
            pass
        monkeypatch.undo()
        with gate.shared():
            pass
