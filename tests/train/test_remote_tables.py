"""A trainer whose tables are on servers of other processes, behind a connection without a wire."""

import pytest
import torch

from monolith.checkpoint import Checkpoint
from monolith.cluster.remote_servers import CLIENTS
from monolith.errors import AbortedError
from monolith.observe import MemorySink
from monolith.table import Table
from monolith.table.reference import ReferenceTable
from monolith.table.replay import Record
from monolith.train import CheckpointHook, Hook, Trainer, TrainSettings
from tests.cluster.direct_connection import remote_servers
from tests.suites.table_base import assert_equal_rows, assert_same_rows, exported
from tests.train.resumable import Clicks as Resumable
from tests.train.tasks import Clicks, clicks


class Restart(Hook):
    """Kills a server after a step, or while it does the next call of a verb."""

    def __init__(self, servers, step, verb=None):
        self.connection, self.step, self.verb = servers._connections[1], step, verb

    def after_run(self, context, values):
        if context.run.global_step == self.step:
            if self.verb is None:
                self.connection.restart()
            else:
                self.connection.restart_in(self.verb)


def state_of(trainer):
    """Rows and dense parameters."""
    rows = {name: exported(table) for name, table in trainer.features.tables.items()}
    return rows, {name: value.clone() for name, value in trainer.model.state_dict().items()}


def assert_same_state(one, other):
    for name, rows in one[0].items():
        assert_equal_rows(rows, other[0][name])
    for name, value in one[1].items():
        assert torch.equal(value, other[1][name])


def trained(task, servers=None, **settings):
    with Trainer(task, TrainSettings(**settings), servers, clock=lambda: 100) as trainer:
        result = trainer.fit()
        return result.num_steps, state_of(trainer)


@pytest.mark.req("NT-DPS-T12")
@pytest.mark.parametrize("task", [lambda: Clicks(clicks(20)), lambda: Resumable("plain")])
def test_a_sequential_run_over_three_servers_equals_the_local_run_bit_for_bit(task):
    num_steps, expected = trained(task())
    assert num_steps >= 20
    with remote_servers(3) as servers:
        got = trained(task(), servers)
        assert got[0] == num_steps
        assert_same_state(got[1], expected)


@pytest.mark.parametrize(("prefetch", "push"), [(0, 0), (2, 1)])
def test_recorded_updates_of_all_servers_replay_into_the_reference(monkeypatch, prefetch, push):
    records = {}

    def recorded(config, **options):
        records.setdefault(config.name, []).append(Record())
        return Table(config, record=records[config.name][-1], **options)

    monkeypatch.setattr("monolith.table.Table", recorded)
    settings = TrainSettings(prefetch=prefetch, push=push)
    with (
        remote_servers(3) as servers,
        Trainer(Clicks(clicks(30)), settings, servers, clock=lambda: 100) as trainer,
    ):
        trainer.fit()
        assert [len(of_table) for of_table in records.values()] == [3, 3]
        for name, table in trainer.features.tables.items():
            reference = ReferenceTable(table.config, clock=lambda: 100)
            for record in records[name]:
                record.replay(reference)
            assert_same_rows(table, reference)


def test_a_step_of_a_trainer_is_a_pull_and_a_push_of_each_server():
    others = []
    for num_steps in (10, 20):
        calls = []
        with remote_servers(2, calls) as servers:
            trained(Clicks(clicks(num_steps)), servers)
        verbs = [verb for _, verb, _ in calls]
        assert verbs.count("push") == 2 * num_steps
        others.append(len([verb for verb in verbs if verb not in ("pull", "push")]))
    assert others[0] == others[1]


def test_a_second_trainer_goes_on_with_the_tables():
    with remote_servers(2) as servers:
        trained(Clicks(clicks(5)), servers)
        with Trainer(Clicks(clicks(5)), servers=servers) as trainer:
            assert len(trainer.features.tables["user"]) > 0


@pytest.mark.parametrize("goes_remote", [False, True])
def test_a_checkpoint_goes_from_servers_into_local_tables_and_back(tmp_path, goes_remote):
    with remote_servers(3) as servers:
        places = [servers, None][:: -1 if goes_remote else 1]
        batches = clicks(6)
        with Trainer(Clicks(batches), servers=places[0], clock=lambda: 100) as trainer:
            trainer.fit()
            checkpoint = Checkpoint(trainer.save(tmp_path))
            clients = (checkpoint.read_trainer() or {}).get(CLIENTS)
            assert clients is None if goes_remote else len(clients) == 3
            expected = state_of(trainer)
        with Trainer(Clicks(batches), servers=places[1], clock=lambda: 100) as trainer:
            trainer.restore(tmp_path)
            assert_same_state(state_of(trainer), expected)


@pytest.mark.parametrize("verb", [None, "pull", "push"])
def test_a_run_goes_on_when_a_server_comes_back_empty(tmp_path, verb):
    sink, saves = MemorySink(), CheckpointHook(tmp_path, every_steps=4, busy="wait")
    with (
        remote_servers(3) as servers,
        Trainer(Clicks(clicks(20)), servers=servers, clock=lambda: 100, metrics=sink) as trainer,
    ):
        result = trainer.fit(hooks=[saves, Restart(servers, 10, verb)])
        tables = [connection.host.status()["tables"] for connection in servers._connections]
    assert (result.num_steps, result.num_recoveries) == (20, 0)
    assert [status["user"]["update_calls"] for status in tables] == [20, 20, 20]
    assert servers.lost_pushes == sink.total("lost_pushes", {"ps": "1"})
    assert 0 < servers.lost_pushes <= 10


def test_a_run_without_a_checkpoint_ends_with_the_name_of_the_empty_server():
    settings = TrainSettings(max_recoveries=2)
    with remote_servers(3) as servers, Trainer(Clicks(clicks(9)), settings, servers) as trainer:
        with pytest.raises(AbortedError, match="expected server 1 with its tables, got a new"):
            trainer.fit(hooks=[Restart(servers, 5, "pull")])
        assert trainer.run.global_step == 5
