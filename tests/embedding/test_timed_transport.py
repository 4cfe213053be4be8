import pytest

from monolith.embedding.call_host import Call, CallHost
from monolith.embedding.timed_transport import LOOKUP_TIME, TimedTransport
from monolith.embedding.transport import LocalTransport
from monolith.observe import MemorySink

TAGS = {"model_name": "clicks", "ps": "3"}


class Host(CallHost):
    def __init__(self):
        super().__init__("user", frozenset({"lookup"}), frozenset({"assign"}))

    def _run(self, call):
        if call.arguments:
            raise KeyError(call.arguments)
        return "answer"


def send(verb, *arguments):
    """A call through a timed transport: its answer, and the number of times that are told."""
    sink = MemorySink()
    transport = TimedTransport(LocalTransport(Host()), 3, "clicks", sink)
    pending = transport.send(Call(1, 0, 0, verb, arguments))
    return pending, lambda: sink.summary(LOOKUP_TIME, TAGS).num_times


def test_a_lookup_is_measured_when_its_answer_is_there():
    pending, num_times = send("lookup")
    assert num_times() == 0
    assert pending.result() == "answer"
    assert num_times() == 1


def test_other_calls_are_not_measured():
    pending, num_times = send("assign")
    assert pending.result() == "answer"
    assert num_times() == 0


def test_an_error_is_not_measured():
    pending, num_times = send("lookup", 7)
    with pytest.raises(KeyError):
        pending.result()
    assert num_times() == 0
