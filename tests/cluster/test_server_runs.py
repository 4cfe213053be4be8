"""Trainers over real server processes: the bits of local runs, and the replay of every server."""

import dataclasses
import random
import signal

import pytest
import torch

from monolith.cluster.servers_engine import servers_engine
from monolith.features import BagFeature, PendingGradients
from monolith.ops import Ragged
from monolith.table import MinCount, Segment, TableConfig
from monolith.table.optimizers import Adagrad
from monolith.table.reference import ReferenceTable
from monolith.table.routing import PartitionRouting
from monolith.train import Trainer, TrainSettings
from tests.cluster.server_processes import Nursery, connect
from tests.cluster.server_records import read_records
from tests.suites.engine import read
from tests.suites.table_base import assert_equal_rows, exported
from tests.suites.table_concurrency import run_together
from tests.train.resumable import Clicks as Resumable
from tests.train.tasks import Clicks, Losses, clicks
from tests.train.test_remote_tables import assert_same_state, state_of

pytestmark = [pytest.mark.dist, pytest.mark.thorough]

NOW = 100


@pytest.fixture(scope="module")
def nursery():
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def start(nursery):
    """(number of servers, options) -> their commands; they end with the test."""
    started = []

    def start(num_servers, **options):
        started.extend(nursery.start_all(num_servers, **options))
        return started[-num_servers:]

    yield start
    for server in started:
        if server.is_alive():
            server.kill()


def trained(task, servers=None):
    """(losses, rows with their state, dense) of a run in which every step waits for the last."""
    losses = Losses()
    with Trainer(task, TrainSettings(), servers, clock=lambda: NOW) as trainer:
        trainer.fit(hooks=[losses])
        return losses.losses, *state_of(trainer)


@pytest.mark.req("NT-DPS-T12", "NT-DPS-T14")
@pytest.mark.parametrize("task", [lambda: Clicks(clicks(20)), lambda: Resumable("mixed")])
def test_a_sequential_run_over_three_processes_equals_the_local_run_bit_for_bit(start, task):
    losses, *state = trained(task())
    with connect(start(3)) as servers:
        found, *other = trained(task(), servers)
    assert found == losses
    assert len(losses) >= 20
    assert_same_state(other, state)


def end(servers):
    """End servers as their users do, so that they write their records."""
    for server in servers:
        server.signal(signal.SIGTERM)
    for server in servers:
        server.wait()


def assert_replayed(folder, rows, configs, num_servers):
    """Replay the tables of all servers into reference tables, which have the rows."""
    for config in configs:
        records = read_records(folder, config.name)
        assert len(records) == num_servers
        assert all(len(record) > 0 for record in records)
        config = dataclasses.replace(config, admission=None, expiry=None)
        reference = ReferenceTable(config, clock=lambda: NOW)
        for record in records:
            record.replay(reference)
        assert_equal_rows(exported(reference), rows[config.name])


@pytest.mark.req("NT-DPS-T14")
@pytest.mark.parametrize(("prefetch", "push"), [(0, 0), (2, 1)])
def test_recorded_updates_of_all_processes_replay_into_the_reference(
    start, tmp_path, prefetch, push
):
    servers, settings = start(3, records=str(tmp_path)), TrainSettings(prefetch=prefetch, push=push)
    with (
        connect(servers) as connected,
        Trainer(Clicks(clicks(30)), settings, connected, clock=lambda: NOW) as trainer,
    ):
        trainer.fit()
        rows, _ = state_of(trainer)
        configs = [table.config for table in trainer.features.tables.values()]
    end(servers)
    assert_replayed(tmp_path, rows, configs, 3)


@pytest.mark.req("NT-DPS-T14")
def test_two_trainers_at_once_replay_into_the_reference(start, tmp_path):
    servers, trainers = start(3, records=str(tmp_path)), []
    settings = TrainSettings(prefetch=2, push=1)
    for i in range(2):
        connected = connect(servers, worker=(i, 2))
        task = Clicks(clicks(40, seed=i))
        trainers.append(Trainer(task, settings, connected, clock=lambda: NOW))
    assert [r.num_steps for r in run_together(*(trainer.fit for trainer in trainers))] == [40, 40]
    rows, _ = state_of(trainers[0])
    configs = [table.config for table in trainers[0].features.tables.values()]
    for trainer in trainers:
        trainer.close()
        trainer.servers.close()
    end(servers)
    assert_replayed(tmp_path, rows, configs, 3)


# Rows of 16 bits are rounded by the number of the update; admission counts occurrences.
SMALL = [
    TableConfig(name, Segment(3, Adagrad(0.1), precision="bf16"), admission=MinCount(2))
    for name in "ab"
]
X, Y = BagFeature("x", "a"), BagFeature("y", "b")


def engine(servers, configs=SMALL):
    routing = PartitionRouting(len(servers))
    tables = [servers.table(config, routing, lambda: NOW) for config in configs]
    return PendingGradients(servers_engine(servers)(tables, [X, Y]))


def push(pending, x, y):
    ids = {"x": Ragged.from_lists([x]), "y": Ragged.from_lists([y])}
    read(pending, ids)[0].sum().backward()
    return pending.apply()


@pytest.mark.req("NT-DPS-T14")
def test_pushes_of_two_clients_at_once_replay_into_the_reference(start, tmp_path):
    servers = start(2, records=str(tmp_path))
    with connect(servers, worker=(0, 2)) as first, connect(servers, worker=(1, 2)) as second:
        engines = [engine(first), engine(second)]

        def work(pending, seed):
            draw = random.Random(seed)
            for _ in range(40):
                push(pending, draw.choices(range(40), k=30), draw.choices(range(40), k=30))

        run_together(*(lambda i=i: work(engines[i], i) for i in range(2)))
        rows = {name: exported(table) for name, table in engines[0].engine.tables.items()}
    end(servers)
    assert_replayed(tmp_path, rows, SMALL, 2)


@pytest.mark.req("NT-TESTU-T2", "NT-DPS-T14")
def test_two_processes_host_a_value_each_and_shut_down(start):
    commands = start(2)
    with connect(commands) as servers:
        values = [([(f"v{i}", torch.full((2,), float(i)))],) for i in range(2)]
        servers._client.call("write_values", values)
    with connect(commands) as servers:
        assert servers._client.call("value_names", [()] * 2) == [["v0"], ["v1"]]
        found = servers._client.call("read_values", [(["v0"],), (["v1"],)])
        assert [value.tolist() for (value,) in found] == [[0, 0], [1, 1]]
    end(commands)
