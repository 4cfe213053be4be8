"""Processes of a data service that are killed while a trainer reads."""

import signal
from dataclasses import replace
from itertools import islice

import pytest

from monolith.cluster.zmq.curve_keys import read_keys
from monolith.errors import UnavailableError
from tests.cli.run import run
from tests.cluster.data_service.service_nursery import service_nursery
from tests.cluster.data_service.services import pipeline, users_of, write_files

pytest.importorskip("zmq")
pytestmark = pytest.mark.dist


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    with service_nursery(tmp_path_factory.mktemp("task")) as nursery:
        yield nursery


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("data") / "files", num_files=9)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_others_go_on_for_a_data_worker_that_ends(nursery, data, how):
    source, _, workers = nursery.start(data)
    with iter(source) as batches:
        users = users_of(islice(batches, 7))
        workers[0].signal(how)
        users += users_of(batches)
        assert batches.num_moves >= 1
    assert sorted(users) == sorted(users_of(pipeline(data)))  # none is lost, none comes twice


def test_others_go_on_for_a_data_worker_that_hangs(nursery, data):
    source, _, workers = nursery.start(data, silent_seconds=1.0)
    with iter(source) as batches:
        users = users_of(islice(batches, 3))
        workers[1].signal(signal.SIGSTOP)
        try:
            users += users_of(batches)
        finally:
            workers[1].signal(signal.SIGCONT)
    assert sorted(users) == sorted(users_of(pipeline(data)))


def test_a_data_worker_that_starts_later_takes_part(nursery, data):
    late = write_files(data.parent / "many", num_files=60)
    dispatcher = nursery.dispatcher(2)
    first = nursery.worker(dispatcher.address, late)
    source = nursery.source(dispatcher.address)
    with iter(source) as batches:
        users = users_of(islice(batches, 5))
        second = nursery.worker(dispatcher.address, late)
        users += users_of(batches)
    assert sorted(users) == sorted(users_of(pipeline(late)))
    assert first.address != second.address


def test_a_trainer_goes_on_with_a_dispatcher_that_has_started_again(nursery, data):
    source, dispatcher, _ = nursery.start(data)
    port = dispatcher.address.rpartition(":")[2]
    with iter(source) as batches:
        users = users_of(islice(batches, 7))
        dispatcher.kill()
        nursery.dispatcher(2, "--bind", f"127.0.0.1:{port}")
        users += users_of(batches)
    assert sorted(users) == sorted(users_of(pipeline(data)))


def test_shares_that_are_open_need_no_dispatcher(nursery, data):
    source, dispatcher, _ = nursery.start(data, num_workers=1)  # all the data is one share
    with iter(source) as batches:
        users = users_of(islice(batches, 2))
        dispatcher.kill()
        users += users_of(islice(batches, 34))
    assert users == users_of(pipeline(data))


def test_a_service_that_is_gone_is_named(nursery, data):
    source, dispatcher, workers = nursery.start(data, num_workers=1)
    with iter(source) as batches:
        next(batches)  # a busy machine takes longer than the limit for it
        batches._clients.options = replace(batches._clients.options, timeout_seconds=1.5)
        for process in (dispatcher, *workers):
            process.kill()
        with pytest.raises(UnavailableError, match=r"expected a data worker within 1\.5 seconds"):
            list(batches)


def test_a_dispatcher_without_data_workers_is_named(nursery):
    source = nursery.source(nursery.dispatcher().address, timeout_seconds=0.3)
    with pytest.raises(UnavailableError, match="start `monolith data-service worker TASK"):
        iter(source)


def test_only_holders_of_the_keys_read(nursery, data, tmp_path, capsys, monkeypatch):
    for name in ("job.keys", "other.keys"):
        assert run(capsys, monkeypatch, "keys", "new", tmp_path / name).status == 0
    keys = ("--keys", tmp_path / "job.keys")
    dispatcher = nursery.dispatcher(1, *keys)
    nursery.worker(dispatcher.address, data, *keys)
    right = nursery.source(dispatcher.address, keys=read_keys(str(tmp_path / "job.keys")))
    with iter(right) as batches:
        assert len(users_of(batches)) == 180
    for wrong in (None, read_keys(str(tmp_path / "other.keys"))):
        source = nursery.source(dispatcher.address, keys=wrong, timeout_seconds=0.5)
        with pytest.raises(UnavailableError, match="'describe_service'"):
            iter(source)
