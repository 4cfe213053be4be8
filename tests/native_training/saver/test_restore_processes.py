"""Restores of a job whose servers are processes, of which one is killed."""

import pytest

from monolith.checkpoint import find
from tests.cluster.server_processes import Nursery
from tests.native_training.jobs.served_tasks import (
    LeaveHook,
    LeftError,
    lead,
    start_server,
    start_servers,
    values_of,
)

pytestmark = pytest.mark.dist

ONES, TWOS = [(1.0, 1.0), (1.0, 1.0)], [(2.0, 2.0), (2.0, 2.0)]


@pytest.fixture(scope="module")
def nursery():
    nursery = Nursery()
    yield nursery
    nursery.close()


class Stages:
    """Runs of chiefs; the values that the servers have after each."""

    def __init__(self, folder):
        self.folder = str(folder)

    def train(self, servers, until, *, saves=False):
        """A run until a step, which may be saved."""
        trainers, found = [], []

        def leave():
            if saves:
                trainers[0].save(self.folder)
            found.append(values_of(trainers[0]))

        hook = LeaveHook(until, leave)
        lead(servers, [hook], began=trainers.append, checkpoint_dir=self.folder)
        return found[0]

    def begin(self, servers, *, checkpoint=None, restores=False):
        """A run that makes no step."""
        found = []

        def look(trainer):
            if restores:
                trainer.restore(self.folder)
            found.append(values_of(trainer))
            raise LeftError

        lead(servers, [], began=look, checkpoint=checkpoint, checkpoint_dir=self.folder)
        return found[0]


@pytest.mark.req("TS-REST-T4")
def test_a_server_that_was_killed_restores_alone(nursery, tmp_path):
    stages, (a, b) = Stages(tmp_path), start_servers(nursery)
    assert stages.train([a, b], 1, saves=True) == ONES
    assert stages.train([a, b], 2) == TWOS
    c_and_d = start_servers(nursery)
    assert stages.begin(c_and_d, checkpoint=find(tmp_path)) == ONES
    b.kill()
    e = start_server(nursery, 1)
    assert stages.begin([a, e]) == [(2.0, 2.0), (1.0, 1.0)]


@pytest.mark.req("TS-REST-T4")
def test_servers_that_have_values_go_back_when_asked_to(nursery, tmp_path):
    stages, servers = Stages(tmp_path), start_servers(nursery)
    assert stages.train(servers, 1, saves=True) == ONES
    assert stages.train(servers, 2) == TWOS
    assert stages.begin(servers, restores=True) == ONES
