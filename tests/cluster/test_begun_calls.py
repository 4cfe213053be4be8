"""`ShardClient.begin`: calls whose answers are waited for later."""

import threading
from concurrent.futures import Future

import pytest

from monolith.cluster import transport
from monolith.cluster.transport import ShardClient, Transport
from monolith.errors import DeadlineExceededError, UnavailableError
from tests.suites.table_concurrency import run_together


class Pending(Transport):
    """Keeps calls; they are answered by `answer`."""

    num_tries = 1

    def __init__(self):
        self.calls, self.futures = [], []

    def send(self, call):
        self.calls.append(call)
        self.futures.append(Future())
        return self.futures[-1]

    def answer(self, number, value=None):
        self.futures[number].set_result(value)


@pytest.fixture
def shard():
    return Pending()


@pytest.fixture
def client(shard):
    client = ShardClient("t", [shard])
    yield client
    client.close()


def test_a_begun_call_is_sent_at_once_and_waited_for_later(client, shard):
    finish = client.begin("stats", [(1,)])
    assert [call.arguments for call in shard.calls] == [(1,)]
    shard.answer(0, "x")
    assert finish() == ["x"]


def test_answers_are_told_as_they_come(client, shard):
    told = []
    finish = client.begin("stats", [()], told.append)
    assert told == []
    shard.answer(0)
    assert told == [0]
    finish()


def test_an_error_is_not_told(client, shard):
    told = []
    finish = client.begin("stats", [()], told.append)
    shard.futures[0].set_exception(UnavailableError("gone"))
    with pytest.raises(UnavailableError, match="gone"):
        finish()
    assert told == []


def test_done_is_the_oldest_call_without_an_answer(client, shard):
    first, second = client.begin("stats", [()]), client.begin("stats", [()])
    shard.answer(1)
    second()
    third = client.begin("stats", [()])
    shard.answer(0)
    shard.answer(2)
    first()
    third()
    fourth = client.begin("stats", [()])
    assert [(call.sequence, call.done) for call in shard.calls] == [(0, 0), (1, 0), (2, 0), (3, 3)]
    shard.answer(3)
    fourth()


def in_thread(call):
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def ask_many(client, shard, count):
    """Begin and finish calls in another thread, while the first call runs."""

    def ask():
        for _ in range(count):
            finish = client.begin("stats", [()])
            shard.answer(-1)
            finish()

    return in_thread(ask)


def test_other_threads_are_at_most_256_calls_ahead(client, shard):
    first = client.begin("stats", [()])
    thread = ask_many(client, shard, 300)
    thread.join(0.3)
    assert thread.is_alive()
    assert len(shard.calls) == 257
    shard.answer(0)
    first()
    thread.join(60)
    assert len(shard.calls) == 301


def test_calls_of_the_same_thread_do_not_wait_for_it(client, shard):
    first = client.begin("stats", [()])
    for _ in range(300):
        finish = client.begin("stats", [()])
        shard.answer(-1)
        finish()
    shard.answer(0)
    first()


def test_a_call_that_never_ends_is_named(client, shard, monkeypatch):
    first = client.begin("stats", [()])
    ask_many(client, shard, 256).join(60)
    monkeypatch.setattr(transport, "WAIT_SECONDS", 0.05)
    errors = []

    def late():
        with pytest.raises(DeadlineExceededError) as caught:
            client.begin("erase", [()])
        errors.append(str(caught.value))

    in_thread(late).join(60)
    assert errors == [
        "[ShardedTable.erase] expected an answer to call 0 within 0.05 seconds, got none, and 256 "
        "calls after it (table 't')"
    ]
    shard.answer(0)
    first()


def test_a_call_that_cannot_be_sent_leaves_no_trace(client, shard):
    shard.send = lambda call: (_ for _ in ()).throw(KeyError("x"))
    with pytest.raises(KeyError):
        client.begin("stats", [()])
    assert client._running == {}


def test_calls_of_many_threads_are_all_answered(client, shard):
    lock = threading.Lock()
    send = shard.send

    def answered(call):
        with lock:
            future = send(call)
        future.set_result(call.sequence)
        return future

    shard.send = answered
    run_together(*[lambda: [client.call("stats", [()]) for _ in range(300)]] * 3)
    assert len({call.sequence for call in shard.calls}) == 900
    assert client._running == {}
