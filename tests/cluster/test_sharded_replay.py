"""Replay proofs of shards: what they did on many threads, repeated on the reference table."""

import random
import threading

import pytest

from monolith.cluster import ShardedTable
from monolith.cluster.shard_hosts import ShardHost
from monolith.cluster.transport import LocalTransport
from monolith.table import Segment, Table, TableConfig
from monolith.table.optimizers import SGD, Adagrad
from monolith.table.reference import ReferenceTable
from monolith.table.replay import Record
from monolith.table.routing import FloorModRouting, PartitionRouting
from tests.suites.table_base import NOW, assert_equal_rows, exported
from tests.suites.table_concurrency import run_together, times_of, until
from tests.table.test_replay import write

pytestmark = pytest.mark.thorough

SEGMENTS = [Segment(3, Adagrad(0.5), precision="fp16"), Segment(2, SGD(0.1))]
CONFIG = TableConfig("user", SEGMENTS)


@pytest.mark.parametrize("routing", [PartitionRouting(3), FloorModRouting(3)])
def test_cuts_beside_writers_equal_the_replay(routing):
    records = [Record() for _ in range(3)]
    transports = [LocalTransport(ShardHost(Table(CONFIG, record=record))) for record in records]
    table = ShardedTable(CONFIG, transports, routing=routing, clock=lambda: NOW)
    stop, seen = threading.Event(), []

    def cut():
        with table.cut() as snapshot:
            seen.append((snapshot._storage.shards_recorded, exported(snapshot, chunk_rows=37)))

    draws = [random.Random(seed) for seed in range(2)]
    writers = (times_of(15, stop, lambda draw=draw: write(table, draw)) for draw in draws)
    run_together(*writers, until(stop, cut))
    seen.append(([len(record) for record in records], exported(table)))
    reference, done = ReferenceTable(CONFIG, clock=lambda: NOW), [0] * 3
    for numbers, rows in seen:
        for i, record in enumerate(records):
            record.replay(reference, done[i], numbers[i])
        done = numbers
        if len(rows):
            assert_equal_rows(exported(reference), rows)
    assert len(seen) > 2
