"""Restores over two servers, with and without a monitor."""

import pytest
import torch

from monolith.cluster import LocalServers
from monolith.native_training.saver import (
    CheckpointRestorerHook,
    HashTableCheckpointRestorerListener,
    HashTableCheckpointSaverListener,
    NoFirstSaveCheckpointSaverHook,
    PartialRecoverySaver,
    PsMonitor,
)
from monolith.native_training.tables import DistributedHashTable
from monolith.table import Segment, TableConfig, Zeros
from monolith.table.optimizers import SGD
from monolith.train.driver import Run, drive

KEY = torch.tensor([7], dtype=torch.int64)
WIDE = TableConfig("wide", Segment(1, SGD(1.0), Zeros()))


class Model:
    """On each server a parameter and a table, and an action that adds 1 to both."""

    def __init__(self, servers):
        self.servers, self.run = servers, Run(global_step=0)
        self.vars, self.tables = [], []
        for i in range(2):
            with servers.ps_device(i) as server:
                self.vars.append(server.parameter(f"v{i}", torch.tensor(0.0)))
                config = TableConfig(f"table{i}", Segment(1, SGD(1.0), Zeros()))
                self.tables.append(server.table(config))

    def step(self):
        if self.run.global_step == 1:
            raise StopIteration
        self.run.global_step += 1
        for variable, table in zip(self.vars, self.tables, strict=True):
            variable.data += 1
            table.assign_add(KEY, torch.ones(1, 1))

    def values(self):
        """(parameter, lookup) of each server."""
        return [
            (variable.item(), table.lookup(KEY).item())
            for variable, table in zip(self.vars, self.tables, strict=True)
        ]


def hooks(path, servers, monitor, *, restore, wide=()):
    saver = PartialRecoverySaver(servers, sharded=True, ps_monitor=monitor)
    found, tables = [], [servers, wide]
    if restore:
        listeners = [HashTableCheckpointRestorerListener(each, monitor) for each in tables]
        found.append(CheckpointRestorerHook(path, saver, listeners=listeners))
    listeners = [HashTableCheckpointSaverListener(each) for each in tables]
    found.append(NoFirstSaveCheckpointSaverHook(path, None, 100, saver, listeners=listeners))
    return found


def train(path, servers, monitor=None):
    """One step, saved."""
    model = Model(servers)
    drive(model.step, hooks(path, servers, monitor, restore=False), run=model.run)
    return model.values()


def restored(path, servers, monitor=None):
    """A run that restores and makes no step; what it finds."""
    model = Model(servers)
    found = hooks(path, servers, monitor, restore=True)
    model.run.global_step = 1
    drive(model.step, found, run=model.run)
    return model.values()


def one_step(servers):
    """One step of a run without hooks."""
    model = Model(servers)
    drive(model.step, run=model.run)
    return model.values()


@pytest.mark.req("TS-REST-T1")
@pytest.mark.req("TS-REST-T3")
def test_a_new_server_restores_alone_with_a_monitor(tmp_path):
    with LocalServers(2) as first, LocalServers(2) as second:
        assert train(tmp_path, first, PsMonitor(2, first)) == [(1.0, 1.0), (1.0, 1.0)]
        assert one_step(first) == [(2.0, 2.0), (2.0, 2.0)]
        assert restored(tmp_path, second, PsMonitor(2, second)) == [(1.0, 1.0), (1.0, 1.0)]
        first.restart(1)
        assert restored(tmp_path, first, PsMonitor(2, first)) == [(2.0, 2.0), (1.0, 1.0)]


@pytest.mark.req("TS-REST-T2")
@pytest.mark.req("TS-REST-T3")
def test_every_server_restores_without_a_monitor(tmp_path):
    with LocalServers(2) as servers:
        assert train(tmp_path, servers) == [(1.0, 1.0), (1.0, 1.0)]
        assert one_step(servers) == [(2.0, 2.0), (2.0, 2.0)]
        assert restored(tmp_path, servers) == [(1.0, 1.0), (1.0, 1.0)]


def test_a_new_server_restores_its_shards_of_wide_tables_alone(tmp_path):
    ids, run = torch.arange(4), Run(global_step=0)
    with LocalServers(2) as servers:
        monitor = PsMonitor(2, servers)
        servers[0].parameter("bias", torch.zeros(1))

        def started(value, *, restore):
            """A run that may restore, and then makes a step."""
            wide = DistributedHashTable(WIDE, servers)
            found = hooks(tmp_path, servers, monitor, restore=restore, wide=[wide.table])
            values = []

            def step():
                if values:
                    raise StopIteration
                run.global_step += 1
                values.extend(wide.lookup(ids).flatten().tolist())
                wide.assign(ids, torch.full((4, 1), value))

            drive(step, found, run=run)
            return values

        assert started(1.0, restore=False) == [0.0] * 4
        DistributedHashTable(WIDE, servers).assign(ids, torch.full((4, 1), 2.0))
        servers.restart(1)
        assert started(3.0, restore=True) == [2.0, 1.0, 2.0, 1.0]


@pytest.mark.parametrize(("with_monitor", "step"), [(False, 1), (True, 5)])
def test_the_step_goes_back_only_with_every_server(tmp_path, with_monitor, step):
    with LocalServers(2) as servers:
        monitor = PsMonitor(2, servers)
        train(tmp_path, servers, monitor)
        saver = PartialRecoverySaver(servers, ps_monitor=monitor if with_monitor else None)
        saver.restore(run := Run(global_step=5), f"{tmp_path}/model.ckpt-1")
    assert run.global_step == step


def test_marks_belong_to_servers_and_not_to_runs():
    with LocalServers(2) as servers:
        monitor = PsMonitor(2)
        label = servers[0].label
        assert monitor.is_ps_uninitialized(None, label)
        with servers.run():
            assert monitor.is_ps_uninitialized(None, label)
            monitor.setup_ps_initialized_state(None)
            assert not PsMonitor(2).is_ps_uninitialized(None, label)
            assert PsMonitor(2).is_ps_uninitialized(None, "/job:worker/task:0")
            assert PsMonitor(2).is_ps_uninitialized(None, "/job:ps/task:5/device:CPU:0")


def test_tables_of_no_server_are_restored_too(tmp_path):
    with LocalServers(1) as servers:
        table = servers[0].table(TableConfig("t", Segment(1, SGD(1.0), Zeros())))
        table.assign(KEY, torch.ones(1, 1))
        listener = HashTableCheckpointSaverListener([table])
        saver = PartialRecoverySaver({"w": torch.ones(1)})
        prefix = saver.save(Run(), tmp_path / "c", tables=listener.tables)
        table.clear()
        HashTableCheckpointRestorerListener([table]).before_restore(Run(), prefix)
        assert table.lookup(KEY).item() == 1.0


def test_a_table_spread_over_servers_is_given_itself(tmp_path, caplog):
    keys = torch.arange(20)
    with LocalServers(2) as servers:
        wide = DistributedHashTable(WIDE, servers)
        wide.table.assign(keys, torch.ones(20, 1))
        assert HashTableCheckpointSaverListener(servers).tables == []
        assert "tables ['wide'] are spread over the servers" in caplog.text
        listener = HashTableCheckpointSaverListener([wide.table])
        saver = PartialRecoverySaver({"w": torch.ones(1)})
        prefix = saver.save(Run(), tmp_path / "c", tables=listener.tables)
        wide.table.clear()
        HashTableCheckpointRestorerListener([wide.table]).before_restore(Run(), prefix)
        assert wide.table.lookup(keys).tolist() == [[1.0]] * 20
