"""Saves links, and compacts them meanwhile, until it is killed; started by test_kill_chain.py.

Reads lines from stdin: a directory. For each it forks a child that goes on with the newest
checkpoint of the directory, says its process id, and the step of each save and compaction.
Step `s` sets the rows of `KEYS_PER_STEP` keys to `s` and erases one key of the step before.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import torch

from monolith.checkpoint import Chain, Contents, RestoreMark, WriteOptions, find
from monolith.table import MinCount, Segment, Table, TableConfig
from monolith.table.disk import table_files
from monolith.table.optimizers import SGD
from tests.forker import fork_for_lines

NUM_KEYS, KEYS_PER_STEP, FULL_EVERY = 2000, 60, 3
CONFIG = TableConfig("user", Segment(8, SGD()), admission=MinCount(0, {1: 5}))


def keys_of(step):
    return torch.arange(KEYS_PER_STEP) * 31 % NUM_KEYS + step * 17 % 100


def train_step(table, step):
    if step == 0:
        table.assign(torch.arange(NUM_KEYS), torch.zeros(NUM_KEYS, 8))
        return
    table.erase(keys_of(step - 1)[:1])
    keys = keys_of(step)
    table.assign(keys, torch.full((len(keys), 8), float(step)))


def expected_table(step):
    """The table after a step, made without any save."""
    table = Table(CONFIG, clock=lambda: 1000)
    for each in range(step + 1):
        train_step(table, each)
    return table


def go_on(path):
    torch.set_num_threads(1)
    checkpoint = find(path, fallback=True)
    with Table(CONFIG, clock=lambda: 1000) as table:
        chain = Chain(path, keep=2, full_every=FULL_EVERY)
        step, threads, compaction = -1, ThreadPoolExecutor(1), None
        if checkpoint is not None:
            checkpoint.restore_tables(table)
            chain.follow(RestoreMark.set(checkpoint.prefix, [table]))
            step = checkpoint.step
        while True:
            step += 1
            train_step(table, step)
            dense = {"weight": torch.full((1000,), float(step))}
            contents = Contents(
                tables=table, dense=dense, trainer={"v": step}, step=step, with_expired=True
            )
            with chain.cut(contents) as snapshot:
                chain.save(snapshot, WriteOptions(num_threads=2))
            os.write(1, f"{step}\n".encode())
            if chain.is_long and (compaction is None or compaction.done()):
                compaction = threads.submit(chain.compact)


if __name__ == "__main__":
    table_files._FILE_BYTES = 1 << 14
    fork_for_lines(go_on)
