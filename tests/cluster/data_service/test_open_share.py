"""Shares that read over one connection."""

import pytest

from monolith.cluster.data_service.open_share import OpenShare
from monolith.cluster.data_service.service_clients import ServiceClients
from monolith.cluster.job.job_values import share_of
from tests.cluster.data_service.services import pipeline, service, users_of, write_files
from tests.train.roles.job_tasks import wait_for

pytest.importorskip("zmq")


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "data", num_files=2)


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
