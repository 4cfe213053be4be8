"""Shares that open slowly, and shares that read over one connection."""

import threading
import time

import pytest

from monolith.cluster.data_service.open_share import OpenShare
from monolith.cluster.data_service.service_clients import ServiceClients
from monolith.cluster.job.job_values import share_of
from monolith.data.shares import split_source
from monolith.errors import UnavailableError
from tests.cluster.data_service.services import pipeline, service, users_of, write_files
from tests.train.roles.job_tasks import wait_for

pytest.importorskip("zmq")


class SlowShares:
    """The shares of a folder; `wait` is called with the name of a share before it is opened."""

    num_epochs = 1

    def __init__(self, folder, wait):
        self._folder, self._wait = folder, wait

    def divide(self, num_readers):
        self._shares = split_source(pipeline(self._folder), num_readers)
        return self

    def __iter__(self):
        return iter(pipeline(self._folder))

    def names(self):
        return self._shares.names()

    def open(self, name, epoch, position):
        self._wait(name)
        return self._shares.open(name, epoch, position)


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "data", num_files=2)


def test_a_share_that_opens_slowly_is_opened_once(folder, monkeypatch):
    def wait(name):
        opened.append(name)
        time.sleep(2.0 if len(opened) == 1 else 0.0)

    opened = []
    monkeypatch.setattr("monolith.cluster.data_service.stream.WAIT_SECONDS", 0.2)
    make = lambda _: SlowShares(folder, wait)  # noqa: E731
    with service(make, silent_seconds=1.0) as (source, _, _), iter(source) as batches:
        users = users_of(batches)
        assert batches.num_moves == 0
    assert sorted(users) == sorted(users_of(pipeline(folder)))
    assert len(opened) == len(set(opened)) > 1


def test_a_share_of_which_nothing_comes_is_given_up_in_time(folder, monkeypatch):
    monkeypatch.setattr("monolith.cluster.data_service.service_clients._AVOID_SECONDS", 0.1)
    end = threading.Event()
    make = lambda _: SlowShares(folder, lambda name: end.wait(60))  # noqa: E731
    options = {"silent_seconds": 0.3, "timeout_seconds": 1.5}
    with service(make, num_workers=1, **options) as (source, _, _), iter(source) as batches:
        timer = threading.Timer(15, batches.stop)
        timer.start()
        with pytest.raises(UnavailableError, match=r"expected a data worker within 1\.5 seconds"):
            next(batches)
        timer.cancel()
        end.set()


def test_time_in_which_training_stands_is_no_wait(folder):
    def stand():
        time.sleep(0.0 if end.is_set() else 1.5)
        end.set()

    end = threading.Event()
    make = lambda _: SlowShares(folder, lambda name: end.wait(60))  # noqa: E731
    with service(make, timeout_seconds=1.0) as (source, _, _), iter(source) as batches:
        batches.on_wait = stand
        assert len(users_of([next(batches)])) == 5
        batches.on_wait = None


def test_a_trainer_that_was_busy_for_long_leaves_no_data_worker(folder):
    make = lambda _: pipeline(folder, batch=1)  # noqa: E731
    with service(make, silent_seconds=0.5) as (source, _, _), iter(source) as batches:
        users = users_of([next(batches), next(batches)])
        time.sleep(1.0)
        users += users_of(batches)
        assert batches.num_moves == 0
    assert sorted(users) == sorted(users_of(pipeline(folder)))


def next_of(share):
    """The users of the next batch of a share."""
    found = []
    wait_for(lambda: share.work({}) or found.append(share.read()) or found[-1])
    return users_of([found[-1].batch])


def test_a_share_that_leaves_a_data_worker_leaves_the_connection_to_others(folder):
    make = lambda _: pipeline(folder, batch=1)  # noqa: E731
    with (
        service(make, num_workers=1, num_readers=2) as (source, _, (worker,)),
        ServiceClients(source.options) as clients,
    ):
        wait_for(lambda: clients.refresh() or clients.num_usable)
        names, _ = clients.shares()
        first, second = (
            OpenShare(share_of(0, name), None, clients, lambda: None) for name in names[:2]
        )
        assert (next_of(first), next_of(second)) == ([0], [5])
        caller = second._caller
        assert first._caller is caller
        first._leave(caller)
        wait_for(lambda: worker.status()["streams"] == 1)  # it is closed where nobody reads it
        assert next_of(second) == [6]
        assert clients.num_usable == 0
        second._leave(caller)
        assert not clients._callers
