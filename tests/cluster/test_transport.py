"""Calls that are delayed, lost, doubled and reordered on their way to the shards and back."""

import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch

from monolith.cluster import ShardedTable
from monolith.cluster.call_host import Call
from monolith.cluster.shard_hosts import ShardHost
from monolith.cluster.transport import LocalTransport, ShardClient, Transport
from monolith.errors import AbortedError, DeadlineExceededError, UnavailableError
from monolith.table import Segment, Table, TableConfig
from monolith.table.optimizers import SGD, Adagrad
from monolith.table.reference import ReferenceTable
from monolith.table.replay import Record
from monolith.table.routing import FloorModRouting, PartitionRouting
from tests.suites.table_base import (
    NOW,
    assert_equal_rows,
    assert_same_rows,
    column,
    exported,
    keys,
    random_floats,
    random_keys,
)
from tests.suites.table_concurrency import run_together
from tests.table.test_replay import write

pytestmark = pytest.mark.thorough

SEGMENTS = [Segment(3, Adagrad(0.5), precision="fp16"), Segment(2, SGD(0.1), precision="bf16")]
CONFIG = TableConfig("user", SEGMENTS)


class FlakyTransport(Transport):
    """Loses calls and answers, delivers calls twice or late, and in another order.

    A late call is kept, and delivered before or after one of the next calls.
    """

    def __init__(self, host, seed):
        self._inner = LocalTransport(host)
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._late = []
        self.seen = []

    def send(self, call):
        with self._lock:
            fate = self._random.choice(["fine", "lost", "answer lost", "twice", "late", "refused"])
            late = [self._late.pop(self._random.randrange(len(self._late)))] if self._late else []
            if fate == "late" or self._random.random() < 0.2:
                self._late.append(call)  # a copy comes later, also of one that arrives now
            comes_first = self._random.random() < 0.5
            self.seen.append(fate)
        for other in late if comes_first else []:
            self._inner.send(other)
        answer = self._deliver(fate, call)
        for other in [] if comes_first else late:
            self._inner.send(other)
        return answer

    def _deliver(self, fate, call):
        if fate == "refused":
            raise UnavailableError("refused")
        lost = Future()
        if fate in ("lost", "late"):
            return lost
        answer = self._inner.send(call)
        if fate == "twice":
            answer = self._inner.send(call)
        return lost if fate == "answer lost" else answer


def flaky_table(num_shards=3, routing=None, seed=0):
    """A table whose calls go astray, the transports, and a record of each shard."""
    records = [Record() for _ in range(num_shards)]
    hosts = [ShardHost(Table(CONFIG, record=record)) for record in records]
    transports = [FlakyTransport(host, seed + i) for i, host in enumerate(hosts)]
    table = ShardedTable(CONFIG, transports, routing=routing, clock=lambda: NOW)
    table._client = ShardClient("user", transports, timeout_seconds=0.0, num_tries=200)
    return table, transports, records


def replayed(records):
    """The reference table after the changes of all shards; no two have a key in common."""
    reference = ReferenceTable(CONFIG, clock=lambda: NOW)
    for record in records:
        record.replay(reference)
    return reference


@pytest.mark.parametrize("routing", [PartitionRouting, FloorModRouting])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_calls_that_go_astray_change_nothing(routing, num_shards):
    table, transports, records = flaky_table(num_shards, routing(num_shards))
    undisturbed = Table(CONFIG, clock=lambda: NOW)
    for each in (table, undisturbed):
        draw = random.Random(5)
        for _ in range(16):
            write(each, draw)
    fates = {fate for transport in transports for fate in transport.seen}
    assert len(fates) == 6
    assert_same_rows(table, undisturbed)
    stats, expected = table.stats(), undisturbed.stats()
    for name in ReferenceTable(CONFIG).stats():
        assert stats[name] == expected[name]
    assert table.num_update_calls == undisturbed.num_update_calls
    assert_equal_rows(exported(replayed(records)), exported(undisturbed))


def test_calls_of_many_threads_that_go_astray_equal_their_replay():
    table, _, records = flaky_table()
    jobs = [random.Random(seed) for seed in range(3)]
    run_together(*(lambda draw=draw: [write(table, draw) for _ in range(10)] for draw in jobs))
    assert_equal_rows(exported(table), exported(replayed(records)))


def test_cuts_and_changes_that_go_astray_are_those_of_one_moment():
    table, _, _ = flaky_table()
    assert table.changes("reader").full
    numbers, values = random_keys(100), random_floats(100, 5)
    table.assign(numbers, values)
    before = exported(table)
    for i in range(10):
        with table.cut() as snapshot:
            table.assign(numbers[i::2].contiguous(), values[i::2] * 2)
            assert_equal_rows(exported(snapshot), before) if i == 0 else None
    assert sorted(table.changes("reader").keys.tolist()) == sorted(numbers.tolist())
    assert table.changes("reader").keys.tolist() == []
    assert not table._has_cut()


class SlowTransport(Transport):
    """Answers on a thread, when it is told to."""

    def __init__(self, host, pool):
        self._inner, self._pool = LocalTransport(host), pool
        self.is_sent, self.go_on = threading.Event(), threading.Event()

    def send(self, call):
        self.is_sent.set()
        return self._pool.submit(self._answer, call)

    def _answer(self, call):
        assert self.go_on.wait(60)
        return self._inner.send(call).result()


def test_calls_to_all_shards_are_in_flight_at_once():
    config = TableConfig("user", Segment(1))
    with ThreadPoolExecutor(4) as pool:
        slow = [SlowTransport(ShardHost(Table(config)), pool) for _ in range(3)]
        table = ShardedTable(config, slow)
        running = pool.submit(table.assign, random_keys(30), torch.ones(30, 1))
        for transport in reversed(slow):
            assert transport.is_sent.wait(60)
        assert not running.done()
        for transport in slow:
            transport.go_on.set()
        running.result(60)
        assert len(table) == 30


class LosingTransport(Transport):
    def send(self, call):
        return Future()


def test_a_shard_that_never_answers_is_named():
    config = TableConfig("user", Segment(1))
    transports = [LocalTransport(ShardHost(Table(config))), LosingTransport()]
    client = ShardClient("user", transports, timeout_seconds=0.0, num_tries=3)
    text = (
        r"\[ShardedTable\.num_rows\] expected an answer of shard 1 within 3 tries of 0\.0 seconds, "
        r"got none since 20.* UTC: TimeoutError\(\) \(table 'user'\); the call may be done in part"
    )
    with pytest.raises(UnavailableError, match=text):
        client.call("num_rows", [(), ()])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"timeout_seconds": -1.0}, r"timeout_seconds in \[0, .*\], got -1.0"),
        ({"num_tries": 0}, "num_tries >= 1, got 0"),
    ],
)
def test_bounds_of_the_tries(options, text):
    with pytest.raises(ValueError, match=rf"\[ShardClient\] expected {text} \(table 'user'\)"):
        ShardClient("user", [LosingTransport()], **options)


def assign_once(host, sequence=0, done=0, value=1.0):
    return host.do(Call(1, sequence, done, "assign_add", (keys(7), column(value), NOW, 1)))


def test_a_write_that_comes_twice_is_done_once_and_has_the_same_answer():
    host = ShardHost(Table(TableConfig("user", Segment(1, SGD(1.0)))))
    call = Call(1, 0, 0, "reinitialize", (keys(7), NOW))
    assert host.do(call).tolist() == [0]
    assert host.do(call).tolist() == [0]
    assert host.do(call._replace(sequence=1)).tolist() == [1]


def test_a_write_that_comes_twice_at_once_is_done_once():
    table = Table(TableConfig("user", Segment(1, SGD(1.0))))
    host = ShardHost(table)
    run_together(*[lambda: assign_once(host)] * 8)
    assert table.num_update_calls == 1


class StuckTable(Table):
    """An assignment goes on until it is told to end."""

    def __init__(self, config):
        super().__init__(config)
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def _assign_add(self, *arguments):
        self.has_begun.set()
        assert self.may_end.wait(60)
        super()._assign_add(*arguments)


def test_a_copy_of_a_write_that_goes_on_and_on_is_told_so():
    table = StuckTable(TableConfig("user", Segment(1, SGD(1.0))))
    host = ShardHost(table, timeout_seconds=0.0)
    text = (
        r"\[ShardHost\.do\] expected the end of 'assign_add', number 0 of client 1, within 0\.0 "
        r"seconds, got a call that runs since 20\d\d-.* UTC \(table 'user'\); it goes on: send it "
        "again for its answer, or make the host with a larger timeout_seconds"
    )
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(assign_once, host)
        assert table.has_begun.wait(60)
        with pytest.raises(DeadlineExceededError, match=text):
            assign_once(host)
        table.may_end.set()
        first.result(60)
    assert assign_once(host) is None
    assert table.num_update_calls == 1


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_host_refuses_a_limit_that_is_none(seconds):
    text = rf"\[ShardHost\] expected timeout_seconds in \[0, .*\], got {seconds} \(table 'user'\)"
    with pytest.raises(ValueError, match=text):
        ShardHost(Table(TableConfig("user", Segment(1))), timeout_seconds=seconds)


def test_writes_of_two_clients_are_apart():
    host = ShardHost(Table(TableConfig("user", Segment(1))))
    call = Call(1, 0, 0, "reinitialize", (keys(7), NOW))
    assert host.do(call).tolist() == [0]
    assert host.do(call._replace(client=2)).tolist() == [1]


def test_the_error_of_a_write_is_repeated():
    host = ShardHost(Table(TableConfig("user", Segment(1))))
    call = Call(1, 0, 0, "apply_gradients", (keys(7), column(float("nan")), [0.1], 0, NOW, 1))
    for _ in range(2):
        with pytest.raises(ValueError, match="expected finite gradients"):
            host.do(call)


def test_a_late_copy_of_a_call_that_has_its_answer_is_refused():
    table = Table(TableConfig("user", Segment(1, SGD(1.0))))
    host = ShardHost(table)
    assign_once(host)
    assign_once(host, sequence=1, done=1)
    text = (
        r"\[ShardHost\.do\] expected calls from number 1 on, got 0, whose answer is no longer kept "
        r"\(table 'user'\)"
    )
    with pytest.raises(AbortedError, match=text):
        assign_once(host)
    assert table.num_update_calls == 2


def test_answers_are_forgotten_when_the_client_has_them():
    host = ShardHost(Table(TableConfig("user", Segment(1))))
    for sequence in range(50):
        assign_once(host, sequence, done=max(0, sequence - 2))
    assert len(host._clients[1].writes) == 3


def test_an_unknown_verb_is_refused():
    host = ShardHost(Table(TableConfig("user", Segment(1))))
    text = r"\[ShardHost\.do\] expected a verb of a shard, got '__class__' \(table 'user'\)"
    with pytest.raises(ValueError, match=text):
        host.do(Call(1, 0, 0, "__class__", ()))


def test_a_client_that_is_gone_is_forgotten():
    host = ShardHost(Table(TableConfig("user", Segment(1))))
    for _ in range(5):
        client = ShardClient("user", [LocalTransport(host)])
        client.call("assign_add", [(keys(7), column(1), NOW, 1)])
        assert len(host._clients) == 1
        del client
    assert len(host._clients) == 0


def test_a_late_copy_of_a_call_of_a_client_that_is_gone_is_refused():
    table = Table(TableConfig("user", Segment(1)))
    host = ShardHost(table)
    assign_once(host)
    host.do(Call(1, 0, 0, "bye", ()))
    text = (
        r"\[ShardHost\.do\] expected calls of a client that is there, got number 0 of one that "
        r"is gone \(table 'user'\)"
    )
    with pytest.raises(AbortedError, match=text):
        assign_once(host)
    assert table.num_update_calls == 1


def test_the_memory_of_gone_clients_is_bounded():
    host = ShardHost(Table(TableConfig("user", Segment(1))))
    for client in range(2000):
        host.do(Call(client, 0, 0, "bye", ()))
    assert len(host._gone) == 1024


class RefusingTransport(Transport):
    def send(self, call):
        raise UnavailableError("nobody")


def test_a_client_goes_quietly_where_a_shard_cannot_be_reached():
    host = ShardHost(Table(TableConfig("user", Segment(1))))
    client = ShardClient("user", [LocalTransport(host), RefusingTransport(), LocalTransport(host)])
    client.call("assign_add", [(keys(7), column(1), NOW, 1), None, None])
    del client  # an error of a finalizer would be a warning, and so an error
    assert len(host._clients) == 0
