"""Saves of shards during training: restored rows are those of a replay of all updates."""

import threading

import pytest

from monolith.checkpoint import Chain, Contents, WriteOptions, open_checkpoint
from monolith.cluster import ShardedTable
from monolith.cluster.shard_hosts import ShardHost
from monolith.cluster.transport import LocalTransport
from monolith.table import Segment, Table, TableConfig
from monolith.table.optimizers import Adagrad
from monolith.table.reference import ReferenceTable
from monolith.table.replay import Record
from tests.suites.table_base import assert_same_rows, random_floats, random_keys

pytestmark = pytest.mark.thorough

CONFIG = TableConfig("user", Segment(4, Adagrad(0.1), precision="bf16"))
NUM_SHARDS, NUM_KEYS, NUM_SAVES, NUM_CALLS = 3, 400, 6, 6


def write_beside(table, turns, first_seed):
    """Change the table once for each turn."""
    for seed in range(first_seed, first_seed + NUM_SAVES * NUM_CALLS):
        turns.acquire()
        table.apply_gradients(random_keys(40, seed=seed), random_floats(40, 4, seed))
        if seed % 4 == 0:
            table.erase(random_keys(40, seed=seed - 3)[:9])


def test_restored_rows_of_shards_equal_the_replay_up_to_their_cuts(tmp_path):
    records, turns = [Record() for _ in range(NUM_SHARDS)], threading.Semaphore(0)
    transports = [LocalTransport(ShardHost(Table(CONFIG, record=record))) for record in records]
    table = ShardedTable(CONFIG, transports, clock=lambda: 100)
    for seed in range(5):
        table.apply_gradients(random_keys(NUM_KEYS, seed=seed), random_floats(NUM_KEYS, 4, seed))
    writers = [
        threading.Thread(target=write_beside, args=(table, turns, seed)) for seed in (1000, 2000)
    ]
    for writer in writers:
        writer.start()
    chain, numbers = Chain(tmp_path, keep=0, full_every=10), {}
    for step in range(NUM_SAVES):
        turns.release(2 * NUM_CALLS)  # these calls run while the cut is taken and written
        with chain.cut(Contents(tables=table, step=step, with_expired=True)) as snapshot:
            recorded = snapshot.tables[0]._storage.shards_recorded
            numbers[chain.save(snapshot, WriteOptions(num_threads=1)).prefix] = recorded
    for writer in writers:
        writer.join()
    assert sum(bool(open_checkpoint(prefix).manifest.base) for prefix in numbers) > 2
    reference, done = ReferenceTable(CONFIG, clock=lambda: 100), [0] * NUM_SHARDS
    for prefix, recorded in numbers.items():
        restored = Table(CONFIG)
        for record, first, last in zip(records, done, recorded, strict=True):
            record.replay(reference, first, last)
        done = recorded
        open_checkpoint(prefix).restore_tables(restored)
        assert_same_rows(restored, reference)
