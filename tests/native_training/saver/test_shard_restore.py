"""One of several servers is lost: its shards come from a checkpoint, the others stay newer.

The updates that were made are repeated on the reference table, which has no shards: those that the
lost server had seen after the checkpoint are left out, and no others.
"""

import threading

import pytest
import torch

from monolith.checkpoint import Contents, open_checkpoint, write
from monolith.cluster import LocalServers, ShardedTable
from monolith.cluster.shard_hosts import ShardHost
from monolith.native_training.saver import (
    HashTableCheckpointRestorerListener,
    HashTableCheckpointSaverListener,
    PartialRecoverySaver,
    PsMonitor,
)
from monolith.native_training.tables import DistributedHashTable
from monolith.table import Table, TableConfig
from monolith.table.reference import ReferenceTable
from monolith.table.replay import Record
from monolith.table.routing import FloorModRouting
from monolith.train.driver import Run
from tests.native_training.saver.spread_tables import KINDS, ROUNDED, Distributed, batch
from tests.suites.table_base import NOW, assert_same_rows

NUM_SERVERS, LOST = 3, 1
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


class Updates:
    """Updates of tables over servers, and of reference tables.

    Args:
        tables: of `spread_tables`.
    """

    def __init__(self, tables):
        self._routing = {name: table.routing for name, table in tables.items()}
        self.references = {
            name: ReferenceTable(table.config, clock=lambda: NOW) for name, table in tables.items()
        }

    def make(self, spread, seeds, lost=()):
        """Update; the reference does not see keys of servers that will be lost."""
        for seed in seeds:
            for name, (keys, grads) in spread.update(seed).items():
                shards = self._routing[name].shard_of(keys)
                is_kept = torch.tensor([shard not in lost for shard in shards.tolist()])
                self.references[name].apply_gradients(keys[is_kept], grads[is_kept], now=NOW)


def save(path, spread):
    listener = HashTableCheckpointSaverListener(spread.tables.values())
    return PartialRecoverySaver({"w": torch.ones(1)}).save(
        Run(), path / "c", tables=listener.tables
    )


def restore(prefix, spread, servers):
    """What a run does that starts: servers that are marked keep what they have."""
    monitor = PsMonitor(NUM_SERVERS, servers)
    listener = HashTableCheckpointRestorerListener(spread.tables.values(), monitor)
    listener.before_restore(Run(), prefix)
    monitor.setup_ps_initialized_state(None)


def candidates(table):
    """What admission remembers, in one order: that of shards is not that of one table."""
    columns = table.export_candidates()
    return sorted(zip(*(column.tolist() for column in columns.values()), strict=True))


@every_kind
def test_only_shards_of_the_lost_server_go_back(tmp_path, kind):
    with LocalServers(NUM_SERVERS) as servers:
        spread = kind(servers)
        updates = Updates(spread.tables)
        updates.make(spread, range(5))
        prefix = save(tmp_path, spread)
        PsMonitor(NUM_SERVERS, servers).setup_ps_initialized_state(None)
        updates.make(spread, range(5, 9), lost=[LOST])
        servers.restart(LOST)
        spread = kind(servers)
        restore(prefix, spread, servers)
        updates.make(spread, range(9, 14))
        for name, reference in updates.references.items():
            assert_same_rows(spread.tables[name], reference)
            assert candidates(spread.tables[name]) == candidates(reference)
            assert len(reference) > 60


def recorded(servers, config, index):
    """Give a server a shard that notes its changes."""
    record, server = Record(), servers[index]
    placement = FloorModRouting(len(servers)).placement_of(index)
    host = ShardHost(Table(config, record=record), device=server.label, placement=placement)
    server._shards[config.name] = host
    return record


def written(table, first):
    """Threads that update a table."""

    def write(start):
        for seed in range(start, start + 8):
            keys, grads = batch(seed, 5)
            table.apply_gradients([(grads, table.lookup(keys))])

    threads = [threading.Thread(target=write, args=(first + 20 * i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    return threads


def test_rows_equal_the_replay_of_what_each_server_has_left(tmp_path):
    config = TableConfig("user", ROUNDED)
    with LocalServers(NUM_SERVERS) as servers:
        records = [recorded(servers, config, index) for index in range(NUM_SERVERS)]
        table = DistributedHashTable(config, servers, clock=lambda: NOW)
        threads = written(table, 0)
        with table.table.cut() as snapshot:
            num_saved = snapshot._storage.shards_recorded[LOST]
            write(Contents(tables=snapshot), tmp_path / "c")
        for thread in threads:
            thread.join()
        servers.restart(LOST)
        again = recorded(servers, config, LOST)
        table = DistributedHashTable(config, servers, clock=lambda: NOW)
        open_checkpoint(tmp_path / "c").restore_tables(table.table, shards=[LOST])
        num_restored = len(again)
        for thread in written(table, 40):
            thread.join()
        reference = ReferenceTable(config, clock=lambda: NOW)
        for record, first, last in (
            (records[0], 0, None),
            (records[2], 0, None),
            (records[LOST], 0, num_saved),
            (again, num_restored, None),
        ):
            record.replay(reference, first, last)
        assert_same_rows(table.table, reference)


def test_without_a_new_server_nothing_is_restored(tmp_path):
    with LocalServers(NUM_SERVERS) as servers:
        spread = Distributed(servers)
        updates = Updates(spread.tables)
        prefix = save(tmp_path, spread)
        PsMonitor(NUM_SERVERS, servers).setup_ps_initialized_state(None)
        updates.make(spread, range(3))
        restore(prefix, spread, servers)
        assert_same_rows(spread.tables["user"], updates.references["user"])


def test_without_a_monitor_every_shard_goes_back(tmp_path):
    with LocalServers(NUM_SERVERS) as servers:
        spread = Distributed(servers)
        updates = Updates(spread.tables)
        updates.make(spread, range(3))
        prefix = save(tmp_path, spread)
        spread.update(3)
        listener = HashTableCheckpointRestorerListener(spread.tables.values())
        listener.before_restore(Run(), prefix)
        assert_same_rows(spread.tables["user"], updates.references["user"])


def test_shards_that_are_on_no_server_go_back_together(tmp_path):
    with LocalServers(NUM_SERVERS) as servers, ShardedTable.local(Distributed.config, 3) as table:
        PsMonitor(NUM_SERVERS, servers).setup_ps_initialized_state(None)
        write(Contents(tables=table), tmp_path / "c")
        table.assign(torch.arange(20), torch.ones(20, 5))
        assert table.devices == ["", "", ""]
        monitor = PsMonitor(NUM_SERVERS, servers)
        listener = HashTableCheckpointRestorerListener([table], monitor)
        listener.before_restore(Run(), str(tmp_path / "c"))
        assert len(table) == 0
