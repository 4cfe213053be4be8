"""What dispatchers, data workers and trainers refuse, and how they find each other."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from monolith import data
from monolith.cluster.data_service import (
    DataWorkerProcess,
    DispatcherProcess,
    ListenOptions,
    ServiceOptions,
    ServiceSource,
)
from monolith.cluster.data_service.service_process import _advertised
from monolith.cluster.server_host import ServerHost
from monolith.cluster.zmq.server_loop import ServerLoop
from monolith.errors import (
    AbortedError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)
from tests.cluster.data_service.services import pipeline, service, users_of, write_files


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "data", num_files=9)


@pytest.fixture
def server():
    """The address of a parameter server."""
    with ServerLoop(ServerHost(0, 1), "tcp://127.0.0.1:0") as loop:
        yield loop.address


def test_a_parameter_server_is_no_dispatcher(server):
    source = ServiceSource(ServiceOptions(server, timeout_seconds=10.0))
    with pytest.raises(InvalidArgumentError, match="expected a dispatcher at tcp://127"):
        iter(source)


def test_a_data_worker_is_no_dispatcher(folder):
    make = lambda _: pipeline(folder)  # noqa: E731
    with service(make, 1) as (_, _, workers):
        address = workers[0].address
        with pytest.raises(InvalidArgumentError, match="got a data worker"):
            iter(ServiceSource(ServiceOptions(address)))
        with pytest.raises(InvalidArgumentError, match="got another process"):
            DataWorkerProcess(make, address)


def test_a_dispatcher_that_does_not_answer_is_named(folder):
    with pytest.raises(UnavailableError, match="'describe_service' of the dispatcher"):
        DataWorkerProcess(lambda _: pipeline(folder), "127.0.0.1:1", timeout_seconds=0.2)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: DispatcherProcess(num_readers=0), "expected num_readers in"),
        (lambda: DispatcherProcess(ListenOptions("0.0.0.0:0")), "expected keys for an address"),
        (lambda: DataWorkerProcess(lambda _: [], "a:1", ahead=0), "expected ahead in"),
        (lambda: DataWorkerProcess(lambda _: [], "nowhere"), "expected an address as host:port"),
        (lambda: ServiceOptions("a:1", window=0), "expected window >= 1, got 0"),
        (lambda: ServiceOptions("a:1", away_seconds=0), "expected away_seconds > 0, got 0"),
    ],
)
def test_wrong_options_are_refused(make, text):
    with pytest.raises(InvalidArgumentError, match=text):
        make()


def test_a_data_worker_with_other_files_is_refused(folder, tmp_path):
    other = write_files(tmp_path / "other", num_files=9)
    with (
        service(lambda _: pipeline(folder), 2) as (_, dispatcher, _),
        pytest.raises(InvalidArgumentError, match="expected the data of the first data worker"),
    ):
        DataWorkerProcess(lambda _: pipeline(other), dispatcher.address)


def test_a_generator_is_read_by_one_data_worker():
    def make(_):
        return (batch for batch in data.arrow_table({"user": [1, 2]}).batch(1))

    with service(make, 1) as (source, _, _):
        for _ in range(2):
            with iter(source) as batches:
                assert users_of(batches) == [1, 2]
    text = "expected a source that can be iterated again"
    with DispatcherProcess(num_readers=2) as dispatcher, pytest.raises(TypeError, match=text):
        DataWorkerProcess(make, dispatcher.address)


class Damaged:
    """Gives a batch, and then an error."""

    def __iter__(self):
        yield from data.arrow_table({"user": [1]}).batch(1)
        raise DataLossError("file 7 is damaged")


def test_an_error_of_the_data_names_the_data_worker():
    with service(lambda _: Damaged(), 1) as (source, _, _), iter(source) as batches:
        assert users_of([next(batches)]) == [1]
        with pytest.raises(
            DataLossError, match=r"file 7 is damaged \(data worker tcp://127.0.0.1:"
        ):
            next(batches)


def test_a_file_that_is_gone_is_named(folder):
    options = {"num_workers": 1, "num_readers": 2}
    with service(lambda _: pipeline(folder), **options) as (source, *_), iter(source) as batches:
        next(batches)
        max(folder.glob("*.parquet")).unlink()  # of a share that nobody has opened
        with pytest.raises(FailedPreconditionError, match="put it back"):
            list(batches)


def test_trainers_of_one_reading_share_the_data(folder):
    with service(lambda _: pipeline(folder), 2) as (source, _, _):
        shared = [ServiceSource(source.options, reading="run 1") for _ in range(2)]
        with iter(shared[0]) as first, iter(shared[1]) as second:
            users = users_of([next(first), next(second)])
            state = first.state_dict()
            with ThreadPoolExecutor(2) as pool:
                rest = list(pool.map(users_of, [first, second]))
        assert sorted([*users, *rest[0], *rest[1]]) == sorted(users_of(pipeline(folder)))
        with pytest.raises(FailedPreconditionError, match="several trainers share"):
            source.resume(state)


def test_a_reading_that_the_dispatcher_has_forgotten_is_an_error_if_it_is_shared(folder):
    with (
        service(lambda _: pipeline(folder), 2) as (source, dispatcher, _),
        iter(ServiceSource(source.options, reading="run 1")) as batches,
    ):
        next(batches)
        dispatcher._host._readings.clear()
        with pytest.raises(AbortedError, match="expected the reading 'run 1'"):
            list(batches)


def test_a_reading_that_the_dispatcher_has_forgotten_goes_on(folder):
    with (
        service(lambda _: pipeline(folder), 2) as (source, dispatcher, _),
        iter(source) as batches,
    ):
        users = users_of([next(batches)])
        dispatcher._host._readings.clear()
        users += users_of(batches)
    assert sorted(users) == sorted(users_of(pipeline(folder)))


def test_an_iteration_can_be_stopped_and_closed(folder):
    with service(lambda _: pipeline(folder), 1) as (source, _, workers):
        batches = iter(source)
        next(batches)
        batches.stop()
        assert list(batches) == []
        batches.close()
        batches.close()
        assert workers[0].status()["streams"] == 0


def test_a_wait_is_told(folder, caplog, monkeypatch):
    monkeypatch.setattr("monolith.cluster.data_service.served_batches._WORD_SECONDS", 0.0)
    with service(lambda _: pipeline(folder), 1) as (source, _, _), iter(source) as batches:
        batches._check_wait()
        next(batches)
        batches._check_wait()
    assert "waiting for a batch: a share of the dispatcher" in caplog.text
    assert "data worker is connected at tcp://127.0.0.1:" in caplog.text


@pytest.mark.parametrize(
    ("listening", "advertised", "expected"),
    [
        ("tcp://127.0.0.1:7", None, "tcp://127.0.0.1:7"),
        ("tcp://0.0.0.0:7", None, "tcp://10.1.2.3:7"),
        ("tcp://0.0.0.0:7", "b:8", "tcp://b:8"),
        ("ipc:///tmp/x", None, "ipc:///tmp/x"),
    ],
)
def test_others_are_told_an_address_that_they_reach(monkeypatch, listening, advertised, expected):
    monkeypatch.setenv("CLOUDNATIVE_INET_ADDR", "10.1.2.3")
    assert _advertised(listening, advertised) == expected
