"""What a dispatcher and a data worker refuse, and what they do for clients that are gone."""

import json

import pytest

from monolith import data
from monolith.cluster.call_host import Call
from monolith.cluster.data_service.data_worker import MAX_STREAMS, DataWorkerHost, SourceShares
from monolith.cluster.data_service.dispatcher import DispatcherHost
from monolith.cluster.data_service.service_host import HostServer
from monolith.cluster.job.job_values import share_of
from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from tests.cluster.data_service.services import pipeline, write_files

JOINED = ("tcp://127.0.0.1:1", json.dumps(["a", "b"]), 1, json.dumps(["task Clicks"]))
NO_STATE, NO_REPORT = json.dumps(None), json.dumps([[], {}])


class Client:
    """Calls a host, as the wire does."""

    def __init__(self, host, number=1):
        self.host, self.number, self._next = host, number, 0

    def __call__(self, verb, *arguments):
        call = Call(self.number, self._next, self._next, verb, arguments)
        self._next += 1
        return self.host.do(call)


@pytest.fixture
def dispatcher():
    return DispatcherHost(num_readers=2)


@pytest.fixture
def worker(tmp_path):
    folder = write_files(tmp_path / "data", num_files=9)
    host = DataWorkerHost(SourceShares(lambda count: pipeline(folder), 2))
    yield host
    host.close()


def taken(client, reading="r", report=NO_REPORT):
    return client("take_data", reading, 1, report)


def test_a_dispatcher_knows_its_data_workers(dispatcher):
    first, second = Client(dispatcher, 1), Client(dispatcher, 2)
    assert first("data_shares") is None
    first("join_service", *JOINED)
    second("join_service", "tcp://127.0.0.1:2", *JOINED[1:])
    assert first("data_workers") == ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]
    assert first("data_shares") == (JOINED[1], 1)
    dispatcher.release_client(1)
    assert second("data_workers") == ["tcp://127.0.0.1:2"]
    assert dispatcher.status()["shares"] == 2


def test_a_data_worker_that_starts_again_replaces_its_earlier_start(dispatcher):
    Client(dispatcher, 1)("join_service", *JOINED)
    Client(dispatcher, 2)("join_service", *JOINED)
    assert Client(dispatcher, 3)("data_workers") == [JOINED[0]]
    dispatcher.release_client(1)
    assert Client(dispatcher, 3)("data_workers") == [JOINED[0]]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ((1, '["a", "c"]'), "with 'b', got 'c'"),
        ((1, '["a"]'), "with 'b', got 'nothing'"),
        ((2, 3), "with 1, got 3"),
        ((3, '["task Users"]'), "with 'task Clicks', got 'task Users'"),
    ],
)
def test_a_data_worker_with_other_data_is_refused(dispatcher, change, text):
    Client(dispatcher, 1)("join_service", *JOINED)
    place, value = change
    other = [*JOINED[:place], value, *JOINED[place + 1 :]]
    with pytest.raises(InvalidArgumentError, match=text):
        Client(dispatcher, 2)("join_service", *other)


@pytest.mark.parametrize(
    ("verb", "arguments", "text"),
    [
        ("join_service", ("a", "x", 1, "[]"), "expected names as JSON"),
        ("join_service", ("a", "{}", 1, "[]"), "expected names as a list of texts"),
        ("join_service", ("a", "[1]", 1, "[]"), "expected names as a list of texts"),
        ("join_service", ("a", "[]", 0, "[]"), "expected num_epochs of at least 1, or -1"),
        ("open_reading", ("r", "[" * 100_000), "expected state as JSON"),
        ("take_data", ("r", 2, NO_REPORT), "expected wants as an int in"),
        ("take_data", ("r", 1, "[]"), "expected a list of shares that have ended"),
        ("take_data", ("r", 1, '[["a"], {}]'), "expected a list of shares that have ended"),
        ("push", (), "expected a verb"),
    ],
)
def test_wrong_calls_are_refused(dispatcher, verb, arguments, text):
    with pytest.raises(InvalidArgumentError, match=text):
        Client(dispatcher)(verb, *arguments)


def test_a_wrong_state_is_refused(dispatcher):
    Client(dispatcher)("join_service", *JOINED)
    with pytest.raises(InvalidArgumentError, match="expected names, next and open"):
        Client(dispatcher, 2)("open_reading", "r", json.dumps({"next": 1}))


def test_readers_of_one_reading_share_the_data(dispatcher):
    Client(dispatcher, 9)("join_service", *JOINED)
    first, second = Client(dispatcher, 1), Client(dispatcher, 2)
    for client in (first, second):
        assert client("open_reading", "r", NO_STATE)
    kind, share, position = taken(first)
    assert (kind, share, json.loads(position)) == ("share", share_of(0, "a"), None)
    assert taken(second)[1] == share_of(0, "b")
    report = json.dumps([[], {share: {"batches": 3}}])
    assert taken(first, report=report)[0] == "wait"
    dispatcher.release_client(1)  # it is gone
    kind, again, position = taken(second)
    assert (again, json.loads(position)) == (share, {"batches": 3})
    assert dispatcher.status()["returned_shares"] == 1
    assert taken(first) is None  # it was given up


def test_a_reading_that_is_not_known_is_none(dispatcher):
    assert taken(Client(dispatcher)) is None
    assert Client(dispatcher, 2)("open_reading", "r", NO_STATE) is False


def test_old_readings_make_room_and_used_ones_do_not(dispatcher, monkeypatch):
    monkeypatch.setattr("monolith.cluster.data_service.dispatcher._MAX_READINGS", 2)
    Client(dispatcher, 9)("join_service", *JOINED)
    clients = [Client(dispatcher, number) for number in range(3)]
    for number in (0, 1):
        clients[number]("open_reading", f"r{number}", NO_STATE)
    with pytest.raises(FailedPreconditionError, match="expected at most 2 readings at once"):
        clients[2]("open_reading", "r2", NO_STATE)
    dispatcher.release_client(0)
    assert clients[2]("open_reading", "r2", NO_STATE)
    assert taken(clients[0], "r0") is None


def test_there_is_room_for_so_many_data_workers(dispatcher, monkeypatch):
    monkeypatch.setattr("monolith.cluster.data_service.dispatcher._MAX_WORKERS", 1)
    Client(dispatcher, 1)("join_service", *JOINED)
    with pytest.raises(FailedPreconditionError, match="expected at most 1 data workers"):
        Client(dispatcher, 2)("join_service", "tcp://127.0.0.1:2", *JOINED[1:])


def test_a_call_for_another_host_is_refused(dispatcher):
    server = HostServer(dispatcher)
    assert server.is_called(0, 1)
    assert not server.is_called(1, 2)
    with pytest.raises(NotFoundError, match="it is no parameter server"):
        server.do(5, Call(1, 0, 0, "describe_service", ()))


# Data workers


def first_share(worker):
    return share_of(0, worker._source_shares.names()[0])


def answer_of(client, stream):
    answer = client("read_batch", stream, 0, 0)
    return answer if isinstance(answer, tuple) else answer.result(20)


def first_answer(client, share, position):
    stream, _ = client("open_stream", share, position)
    return answer_of(client, stream)


def test_a_data_worker_opens_shares_of_its_own_source(worker):
    client = Client(worker)
    stream, ahead = client("open_stream", first_share(worker), "null")
    assert (ahead, worker.status()["streams"]) == (4, 1)
    assert answer_of(client, stream)[0] == "batch"
    client("close_stream", stream)
    assert client("read_batch", stream, 1, 1) == ("gone",)
    assert worker.status()["streams"] == 0


@pytest.mark.parametrize(
    ("share", "position", "error", "text"),
    [
        ("x", "null", InvalidArgumentError, "expected a share, got 'x'"),
        ('[0, "a"]', "null", ValueError, "expected the name of a share"),
        (
            share_of(0, '{"file":"/etc/passwd","size":100}'),
            "null",
            FailedPreconditionError,
            "expected file '/etc/passwd' among the files of the source",
        ),
        ("first", "x", InvalidArgumentError, "expected a position as JSON"),
        ("first", '{"other": 1}', FailedPreconditionError, "expected a state of version 1"),
    ],
)
def test_what_is_no_share_of_the_source_is_refused(worker, share, position, error, text):
    share = first_share(worker) if share == "first" else share
    with pytest.raises(error, match=text):
        first_answer(Client(worker), share, position)


def test_a_data_worker_has_so_many_streams(worker, monkeypatch):
    assert MAX_STREAMS == 256
    monkeypatch.setattr("monolith.cluster.data_service.data_worker.MAX_STREAMS", 1)
    client = Client(worker)
    client("open_stream", first_share(worker), "null")
    with pytest.raises(FailedPreconditionError, match="expected at most 1 shares at once"):
        client("open_stream", first_share(worker), "null")


def test_streams_of_a_reader_that_is_gone_are_closed(worker):
    for number in (1, 2):
        Client(worker, number)("open_stream", first_share(worker), "null")
    worker.release_client(1)
    assert worker.status()["streams"] == 1
    worker.end_waits()
    assert worker.status()["streams"] == 0


def test_a_source_that_can_be_read_once_is_made_anew_for_each_share():
    def make(num_readers):
        made.append(num_readers)
        return iter(list(data.arrow_table({"user": [1, 2, 3]}).batch(1)))

    made = []
    shares = SourceShares(make, 1)
    (name,) = shares.names()
    for _ in range(2):
        assert len(list(shares.open(name, 0, None))) == 3
    assert made == [1, 1, 1]
