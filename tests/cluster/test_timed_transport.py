from concurrent.futures import Future

import pytest

from monolith.cluster import timed_transport
from monolith.cluster.call_host import Call, CallHost
from monolith.cluster.host_verbs import HostFacts, Read, Write
from monolith.cluster.timed_transport import LOOKUP_TIME, TimedTransport, timed
from monolith.cluster.transport import LocalTransport, Transport
from monolith.errors import InvalidArgumentError
from monolith.observe.metrics import MemorySink, NullSink
from monolith.table import Segment, TableConfig

LOOKUP = Call(1, 0, 0, "lookup", ())
TAGS = {"model_name": "clicks", "ps": "3"}


class Host(CallHost):
    def __init__(self):
        facts = HostFacts("user", [TableConfig("user", Segment(1))])
        super().__init__(facts, {"lookup": Read(), "assign": Write()})

    def _run(self, call):
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


def test_a_local_lookup_takes_no_longer_when_its_answer_is_taken_late(monkeypatch):
    clock = [1.0]
    monkeypatch.setattr(timed_transport.time, "perf_counter", lambda: clock[0])
    sink, inner = MemorySink(), LocalTransport(Host())
    pending = TimedTransport(inner, 3, "clicks", sink).send(LOOKUP)
    clock[0] = 9.0
    assert pending.result() == "answer"
    assert sink.summary(LOOKUP_TIME, TAGS).maximum == 0


class Later(Transport):
    def __init__(self):
        self.answer = Future()

    def send(self, call):
        return self.answer


def test_a_distant_lookup_is_measured_until_its_answer_comes(monkeypatch):
    clock = [1.0]
    monkeypatch.setattr(timed_transport.time, "perf_counter", lambda: clock[0])
    sink, inner, told = MemorySink(), Later(), []
    pending = TimedTransport(inner, 3, "clicks", sink).send(LOOKUP)
    pending.add_done_callback(told.append)
    clock[0] = 2.0
    inner.answer.set_result("answer")
    clock[0] = 9.0
    assert len(told) == 1
    assert pending.result() == "answer"
    assert sink.summary(LOOKUP_TIME, TAGS).maximum == pytest.approx(1e6)


def test_other_calls_are_not_measured():
    pending, num_times = send("assign")
    assert pending.result() == "answer"
    assert num_times() == 0


def test_an_error_is_not_measured():
    pending, num_times = send("lookup", 7)  # which takes no argument
    with pytest.raises(InvalidArgumentError):
        pending.result()
    assert num_times() == 0


@pytest.mark.parametrize("sink", [None, NullSink()])
def test_without_a_sink_nothing_lies_on_the_way(sink):
    transports = [LocalTransport(Host()), LocalTransport(Host())]
    assert timed(transports, sink) == transports
