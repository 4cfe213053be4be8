"""Chains and compactions beside writers: restored rows are those of a replay of all updates."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from monolith.checkpoint import Chain, Contents, WriteOptions, open_checkpoint
from monolith.table import Segment, Table, TableConfig
from monolith.table.optimizers import Adagrad
from monolith.table.reference import ReferenceTable
from monolith.table.replay import Record
from tests.suites.table_base import assert_same_rows, random_floats, random_keys

pytestmark = pytest.mark.thorough

CONFIG = TableConfig("user", Segment(4, Adagrad(0.1), precision="bf16"))
NUM_KEYS, NUM_SAVES, NUM_CALLS = 400, 9, 6  # calls of each thread that begin before each save


def change(table, seed):
    table.apply_gradients(random_keys(40, seed=seed), random_floats(40, 4, seed))
    if seed % 4 == 0:
        table.erase(random_keys(40, seed=seed - 3)[:9])


def write_beside(table, turns, first_seed):
    """Change the table once for each turn."""
    for i in range(NUM_SAVES * NUM_CALLS):
        turns.acquire()
        change(table, first_seed + i)


def save_all(chain, table, turns):
    """Save while writers go on, on a thread, and compact on another; prefix -> number of events."""
    numbers, compactions = {}, []
    with ThreadPoolExecutor(1) as saver, ThreadPoolExecutor(1) as compacter:
        for step in range(NUM_SAVES):
            turns.release(2 * NUM_CALLS)
            with chain.cut(Contents(tables=table, step=step, with_expired=True)) as snapshot:
                number = snapshot.tables[0].num_recorded
                options = WriteOptions(num_threads=1)
                saved = saver.submit(chain.save, snapshot, options).result()
            numbers[saved.prefix] = number
            if chain.is_long:
                compactions.append(compacter.submit(chain.compact))
    assert any(compaction.result() is not None for compaction in compactions)
    return numbers


def test_restored_rows_of_links_equal_the_replay_up_to_their_cuts(tmp_path):
    record, turns = Record(), threading.Semaphore(0)
    table = Table(CONFIG, record=record, clock=lambda: 100)
    for seed in range(20):
        table.apply_gradients(random_keys(NUM_KEYS, seed=seed), random_floats(NUM_KEYS, 4, seed))
    threads = [
        threading.Thread(target=write_beside, args=(table, turns, seed)) for seed in (1000, 2000)
    ]
    for thread in threads:
        thread.start()
    numbers = save_all(Chain(tmp_path, keep=0, full_every=3), table, turns)
    for thread in threads:
        thread.join()
    assert sum(bool(open_checkpoint(prefix).manifest.base) for prefix in numbers) > 2
    for prefix, number in numbers.items():
        reference, restored = ReferenceTable(CONFIG, clock=lambda: 100), Table(CONFIG)
        record.replay(reference, 0, number)
        open_checkpoint(prefix).restore_tables(restored)
        assert_same_rows(restored, reference)
