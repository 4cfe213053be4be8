"""Checkpoints beside writers, proven by replay: restored rows are those of the reference."""

import threading

import pytest

from monolith.checkpoint import Contents, open_checkpoint, write
from monolith.table import Segment, Table, TableConfig
from monolith.table.optimizers import Adagrad
from monolith.table.reference import ReferenceTable
from monolith.table.replay import Record
from tests.suites.table_base import assert_same_rows, random_floats, random_keys

pytestmark = pytest.mark.thorough

CONFIG = TableConfig("user", Segment(4, Adagrad(0.1), precision="bf16"))
NUM_SAVES, NUM_CALLS = 3, 10  # calls that begin before each save


def test_restored_rows_equal_the_replay_up_to_the_cut(tmp_path):
    record, turns = Record(), threading.Semaphore(0)
    table = Table(CONFIG, record=record, clock=lambda: 100)
    numbers = []

    def train():
        for seed in range(NUM_SAVES * NUM_CALLS):
            turns.acquire()
            table.apply_gradients(random_keys(40, seed=seed % 3), random_floats(40, 4, seed))

    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(NUM_SAVES):
        turns.release(2 * NUM_CALLS)
        with table.cut() as snapshot:
            numbers.append(snapshot.num_recorded)
            write(Contents(tables=snapshot), tmp_path / f"c-{i}")
    for thread in threads:
        thread.join()
    for i, number in enumerate(numbers):
        reference, restored = ReferenceTable(CONFIG, clock=lambda: 100), Table(CONFIG)
        record.replay(reference, 0, number)
        open_checkpoint(tmp_path / f"c-{i}").restore_tables(restored)
        assert_same_rows(restored, reference)
