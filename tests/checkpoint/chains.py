"""Chains of checkpoints that the tests of this folder share."""

import torch

from monolith.checkpoint import Chain, Contents, WriteOptions, open_checkpoint
from monolith.table import Expiry, MinCount, Segment, Table, TableConfig
from monolith.table.optimizers import SGD, Adagrad
from tests.suites.table_base import random_floats, random_keys
from tests.table.disk.cases import assert_same_table

NOW = 1_700_000_000
CONFIG = TableConfig(
    "user",
    [Segment(3, Adagrad(0.5)), Segment(2, SGD(0.5), name="wide", precision="bf16")],
    admission=MinCount(1),
    expiry=Expiry(1),
)
NUM_KEYS = 2000


def new_table(config=CONFIG, **options):
    return Table(config, clock=lambda: NOW, **options)


def first_rows(table):
    """Give a table rows and candidates."""
    keys = torch.arange(NUM_KEYS)
    for end in (NUM_KEYS, NUM_KEYS * 3 // 4):
        table.apply_gradients(keys[:end], random_floats(end, table.dim, 1), now=NOW)


def few_changes(table, seed):
    """Change, add, erase and evict some rows, and count some candidates."""
    table.apply_gradients(
        torch.arange(50) + seed, random_floats(50, table.dim, seed), now=NOW + seed
    )
    new = NUM_KEYS * 10 + random_keys(60, seed=seed)
    for _ in range(2):
        table.apply_gradients(new, random_floats(60, table.dim, seed), now=NOW - 200_000 + seed)
    table.apply_gradients(torch.arange(20) + 10**9 + seed, torch.ones(20, table.dim), now=NOW)
    table.erase(torch.arange(7) * 11 + seed)
    if seed % 3 == 0:
        table.evict(NOW)


def save(chain, table, step, **options):
    """Save a table, with a dense tensor that is the step."""
    contents = Contents(
        tables=table,
        dense={"weight": torch.full((3,), float(step))},
        trainer={"step": step},
        step=step,
        with_expired=True,
    )
    with chain.cut(contents) as snapshot:
        return chain.save(snapshot, WriteOptions(num_threads=1, **options))


def saved_chain(path, num_links=3, table=None, **options):
    """A chain with a full checkpoint and some links; the chain, the table and what was saved."""
    table = new_table() if table is None else table
    chain = Chain(path, **options)
    first_rows(table)
    saves = [save(chain, table, 0)]
    for step in range(1, num_links + 1):
        few_changes(table, step)
        saves.append(save(chain, table, step))
    return chain, table, saves


def assert_restores(prefix, table):
    """A checkpoint restores a table, bit for bit."""
    restored = open_checkpoint(prefix).load_tables()[table.name]
    assert_same_table(restored, table)
